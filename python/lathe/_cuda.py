"""Attention on GPU arrays, passed through DLPack. torch is used if imported, but not needed."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from . import _args, _lathe
from ._errors import LatheError

_CUDA = 2  # kDLCUDA

# Scratch by thread, GPU and stream, because concurrent calls must not share it. It outlives its thread: graphs that the thread captured
# contain its address. A later thread with the same id reuses it.
scratches: dict[tuple[int, int, int], Any] = {}
_warm: dict[tuple[int, int], Any] = {}  # by thread and GPU: the scratch of the latest call that was not captured


def place(value: Any) -> int | None:
    """The GPU that an array is on; None for host memory and for other values."""
    if _torch_of(value) is not None:  # a hundred times as fast as the calls below
        return value.get_device() if value.is_cuda else None
    if not hasattr(value, "__dlpack_device__"):
        return None
    kind, ordinal = value.__dlpack_device__()
    return int(ordinal) if int(kind) == _CUDA else None


def _scratch_of(gpu: int, stream: int, captured: bool) -> Any:
    if not _lathe.has_cuda:
        raise LatheError(
            "unsupported",
            "q",
            "an array in host memory, as this build has no CUDA kernels",
            f"an array on cuda:{gpu}",
            "build lathe where nvcc is on PATH",
        )
    owner = (threading.get_ident(), gpu, stream)
    if captured and owner not in scratches:
        # A capture cannot allocate, and engines may warm up on another stream than the one they capture on. The scratch is not kept for
        # this stream: a later call on it needs its own, and a later capture one that may have grown.
        return _warm.get(owner[:2]) or _lathe.GpuScratch(gpu)
    if owner not in scratches:
        scratches[owner] = _lathe.GpuScratch(gpu)
    scratch = scratches[owner]
    if not captured:
        _warm[owner[:2]] = scratch
    return scratch


def _torch_of(value: Any) -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


class _Importer:
    """Imports DLPack capsules, synchronised with the kernel's stream."""

    def __init__(self, gpu: int, stream: int) -> None:
        self.gpu = gpu
        # DLPack's name for the legacy default stream.
        self.stream = 1 if stream == 0 else stream
        # If torch's current stream is the kernel's, nothing has to wait, and torch's own export is ten times as fast as __dlpack__.
        torch = sys.modules.get("torch")
        self.torch: Any = None
        if torch is not None and torch.cuda.is_initialized():
            if torch.cuda.current_stream(gpu).cuda_stream == stream:
                self.torch = torch
                self.export = torch.utils.dlpack.to_dlpack

    def __call__(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if self.torch is not None and type(value) is self.torch.Tensor:
            plain = value.is_cuda and not value.requires_grad and not value.is_conj()
            if plain and value.get_device() == self.gpu:
                return self.export(value)
        if not hasattr(value, "__dlpack_device__") or not hasattr(value, "__dlpack__"):
            came = type(value).__name__
            raise LatheError(
                "invalid_argument", name, f"an array on cuda:{self.gpu}, as q", came
            )
        where = place(value)
        if where != self.gpu:
            came = "an array in host memory" if where is None else f"one on cuda:{where}"
            raise LatheError(
                "invalid_argument", name, f"an array on cuda:{self.gpu}, as q", came
            )
        torch = _torch_of(value)
        # torch exports only tensors of its current GPU.
        current = contextlib.nullcontext() if torch is None else torch.cuda.device(self.gpu)
        try:
            with current:
                return value.__dlpack__(stream=self.stream)
        except BufferError as error:
            wanted = "an array that can be exported"
            raise LatheError("invalid_argument", name, wanted, str(error)) from error

    def source(self, prefix: str, source: dict[str, Any]) -> dict[str, Any]:
        arrays = ("pool", "compact", "page_table", "indices", "index_lengths")
        return {k: self(prefix + k, v) if k in arrays else v for k, v in source.items()}


def _on_stream(torch: Any, device: Any, stream: int) -> Any:
    """Runs torch's operators on the kernel's stream, so that a graph captures them as well."""
    ours = torch.cuda.current_stream(device)
    if ours.cuda_stream != stream:
        # For ExternalStream 0 means "a new stream".
        ours = torch.cuda.ExternalStream(stream, device=device) if stream else None
        ours = ours or torch.cuda.default_stream(device)
    return torch.cuda.stream(ours)


def attend(
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
    stream: int | None,
    workspace: Any,
) -> tuple[Any, Any, Any]:
    """attend() with q on a GPU. Returns out and lse, as torch tensors if q is one, else as arrays with DLPack; and the GpuCall if q is torch's."""
    gpu = place(q)
    if gpu is None:
        raise LatheError("invalid_argument", "q", "an array on a GPU", "one in host memory")
    torch = _torch_of(q)
    if stream is None:
        stream = torch.cuda.current_stream(gpu).cuda_stream if torch else 0
    stream = _args.integer("stream", stream, 0, 2**64 - 1)
    scratch = _scratch_of(gpu, stream, torch is not None and torch.cuda.is_current_stream_capturing())
    take = _Importer(gpu, stream)
    if torch and q.dtype == torch.float16:
        with _on_stream(torch, q.device, stream):
            q = q.bfloat16()
    if torch and len(q.shape) == 3:
        layout = main["layout"]
        dims = layout.dims
        # V4's keys are its values.
        by_attention = layout.row_elems if attention.startswith(("v4", "window")) else dims.get("nope")
        shape = (*q.shape[:2], dims.get("v_head_dim", by_attention))
        if out is None:
            out = torch.empty(shape, dtype=torch.bfloat16, device=q.device)
        if lse is None:
            lse = torch.empty(shape[:2], dtype=torch.float32, device=q.device)
    lens_on_gpu = place(kv_lens) is not None
    if lens_on_gpu or place(q_indptr) is not None:
        kv_lens, q_indptr = take("kv_lens", kv_lens), take("q_indptr", q_indptr)
        if kv_lens is None:
            raise LatheError("invalid_argument", "kv_lens", "lengths with q_indptr", "None")
        lens_on_gpu = True
    else:
        kv_lens, q_indptr = _args.indices(kv_lens), _args.indices(q_indptr)
    made_out, made_lse, call = _lathe.attend_on_gpu(
        scratch,
        stream,
        kind,
        attention,
        take("q", q),
        q_indptr,
        kv_lens,
        lens_on_gpu,
        take.source("", main),
        None if extra is None else take.source("extra.", extra),
        {
            **options,
            "sink": take("sink", options["sink"]),
            "device_q_scale": take("q_scale", options["device_q_scale"]),
            "device_key_scale": take("key_scale", options["device_key_scale"]),
        },
        take("out", out),
        take("lse", lse),
        take("workspace", workspace),
    )
    made_out, made_lse = made_out if out is None else out, made_lse if lse is None else lse
    return made_out, made_lse, call if torch else None
