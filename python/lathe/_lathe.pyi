from typing import Any

import numpy as np

from ._layouts import Part

class Layout:
    def __init__(self, text: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def bytes_per_token(self) -> int: ...
    @property
    def row_elems(self) -> int: ...
    @property
    def homogeneous(self) -> bool: ...
    @property
    def scale_policy(self) -> str: ...
    @property
    def scale_tile(self) -> int: ...
    @property
    def dims(self) -> dict[str, int]: ...
    @property
    def parts(self) -> list[Part]: ...
    @property
    def hash(self) -> int: ...
    def page_stride(self, page_size: int) -> int: ...
    def offset(self, role: str, page_size: int, index: int) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def layout_names() -> list[str]: ...
def encode(
    rows: Any,
    slots: Any,
    pool: Any,
    layout: Layout,
    page_size: int,
    key_scale: float,
    value_scale: float,
    path: str,
) -> None: ...
def decode(
    pool: Any,
    layout: Layout,
    first: int,
    count: int | None,
    page_size: int,
    dtype: str,
    key_scale: float,
    value_scale: float,
    path: str,
) -> np.ndarray: ...
def gather_decode(
    pool: Any,
    slots: Any,
    layout: Layout,
    page_size: int,
    dtype: str,
    key_scale: float,
    value_scale: float,
    path: str,
) -> np.ndarray: ...
def requantize(
    src: Any,
    src_slots: Any,
    src_layout: Layout,
    dst: Any,
    dst_slots: Any,
    dst_layout: Layout,
    page_size: int,
    dst_page_size: int,
    src_key_scale: float,
    dst_key_scale: float,
    path: str,
) -> tuple[float, int, int]: ...
def copy_pages(
    src: Any, src_pages: Any, dst: Any, dst_pages: Any, layout: Layout, page_size: int
) -> None: ...
def copy_slots(
    src: Any, src_slots: Any, dst: Any, dst_slots: Any, layout: Layout, page_size: int, dst_page_size: int
) -> None: ...
def plan(attention: str, device: str, request_json: str, /) -> tuple[bool, str, str]: ...
def keyword_types() -> dict[str, str]: ...
has_cuda: bool

def end_calls() -> None: ...
def command(words: list[str]) -> int: ...

class GpuScratch:
    """Memory that calls on one stream of a GPU reuse."""

    def __init__(self, ordinal: int, /) -> None: ...

def attend_on_gpu(
    scratch: GpuScratch,
    stream: int,
    kind: str,
    attention: str,
    q: Any,
    q_indptr: Any,
    kv_lens: Any,
    lens_on_gpu: bool,
    main: dict[str, Any],
    extra: dict[str, Any] | None,
    options: dict[str, Any],
    out: Any,
    lse: Any,
    workspace: Any,
) -> tuple[Any, Any, GpuCall]: ...

class GpuCall:
    """A call that has been checked."""

    kept: Any

    def run(self, out: int = 0, lse: int = 0, workspace: int = 0, scheduled: bool = False) -> None:
        """Runs a call that find() gave. out, lse: addresses of memory made for it; workspace: of one to take in place of the first
        call's, in which the schedule lies if `scheduled`."""

class Repeats:
    """Checked calls on torch's tensors, by all that is not an address."""

    def __init__(
        self, tensor: type, parameter: type, exchange: Any, scratches: dict[tuple[int, int, int], GpuScratch], /
    ) -> None: ...
    def find(self, arrays: tuple[Any, ...], settings: tuple[Any, ...], stream: int | None) -> GpuCall | None: ...
    def keep(self, arrays: tuple[Any, ...], settings: tuple[Any, ...], call: GpuCall, kept: Any) -> None: ...

def attend_workspace(
    gpu: int,
    kind: str,
    attention: str,
    rows: int,
    heads: int,
    requests: int,
    max_request_rows: int,
    max_kv_len: int,
    main: dict[str, Any],
    extra: dict[str, Any] | None,
) -> int: ...
def attend(
    device: str,
    threads: int,
    batch_invariant: bool,
    kind: str,
    attention: str,
    q: Any,
    q_indptr: Any,
    kv_lens: Any,
    main: dict[str, Any],
    extra: dict[str, Any] | None,
    options: dict[str, Any],
    out: Any,
    lse: Any,
) -> tuple[np.ndarray, np.ndarray]: ...

def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, out: Any, lse: Any) -> None: ...

class Engine:
    def __init__(self, options: str, progress: Any) -> None: ...
    def json(self) -> str: ...
    def stats_json(self) -> str: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_chat(self, messages: str) -> list[int]: ...
    def submit(self, prompt: list[int], params: str) -> int: ...
    def cancel(self, request: int) -> None: ...
    def step(self) -> list[tuple[Any, ...]]: ...
    def close(self) -> None: ...
    def closed(self) -> bool: ...
