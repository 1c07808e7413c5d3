"""FlashMLA's schedule object, which the layers of a step share, and repeated calls."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _workspace
from .._errors import LatheError
from . import _tensors as t


@dataclasses.dataclass
class FlashMLASchedMeta:
    """Shared by calls of equal shapes, which the first call sets.

    On a GPU the first call of a step makes the schedule of the lengths, which later calls reuse while
    the lengths are the same: the same tensors (address and shape), and no write that torch's version
    counter shows. A schedule made outside a captured CUDA graph is not reused inside it, nor the other
    way round, so a graph makes its own and replays compute it from the current lengths.

    What cannot be seen: writes that torch does not count, which are those through ``.data``, by a
    replayed graph or another library, and to lengths that were made in inference mode; and a second
    captured graph. After such a write, and for each graph, use a new FlashMLASchedMeta, as one step
    does in FlashMLA. The schedule of old lengths gives wrong numbers.
    """

    @dataclasses.dataclass
    class Config:
        b: int
        s_q: int
        h_q: int
        page_block_size: int
        h_k: int
        causal: bool
        is_fp8_kvcache: bool
        topk: int | None
        extra_page_block_size: int | None
        extra_topk: int | None
        enable_batch_invariant: bool = False

    have_initialized: bool = False
    config: Config | None = None
    tile_scheduler_metadata: Any = None
    num_splits: Any = None
    workspace: Any = None  # on a GPU, with the schedule
    made_of: Any = None  # the shapes and lengths that the schedule was computed from


@dataclasses.dataclass
class Kept:
    """What is kept of a call that may repeat."""

    config: FlashMLASchedMeta.Config
    shapes: Any  # shapes_of(): what a schedule depends on, except lengths
    workspace: int | None  # bytes
    out: tuple[int, ...]
    copy_lse: bool


def again(
    call: Any, meta: Any, q: Any, out: Any, lengths: tuple[Any, ...]
) -> tuple[Any, Any] | None:
    """The result of a call that repeats an earlier one in all but addresses; None if it has to be checked."""
    kept, torch = call.kept, t.torch_of(q)
    b, s_q, h, _ = kept.out
    shared = isinstance(meta, FlashMLASchedMeta)
    if shared and meta.have_initialized and meta.config is not kept.config and meta.config != kept.config:
        return None
    workspace, made_of, scheduled = None, None, False
    if kept.workspace is not None:
        made_of = (kept.shapes, [t.state(x) for x in lengths], t.capturing(q))
        workspace, scheduled = meta.workspace, meta.made_of == made_of
        if workspace is None or not scheduled:
            workspace, scheduled = torch.empty(kept.workspace, dtype=torch.uint8, device=q.device), False
    out_at = 0
    if out is None:
        row = h * kept.out[3]
        out = torch.empty_strided(kept.out, (s_q * row, row, kept.out[3], 1), dtype=torch.bfloat16, device=q.device)
        out_at = out.data_ptr()
    lse = torch.empty_strided((b, h, s_q), (s_q * h, 1, h), dtype=torch.float32, device=q.device)
    try:
        call.run(out_at, lse.data_ptr(), 0 if workspace is None else workspace.data_ptr(), scheduled)
    except LatheError:
        return None
    if shared:
        meta.have_initialized, meta.config = True, kept.config
    if workspace is not None and not scheduled:
        meta.workspace, meta.made_of = workspace, made_of
    return out, lse.contiguous() if kept.copy_lse else lse


def shapes_of(q: Any, call: dict[str, Any]) -> Any:
    """What a schedule depends on, except lengths, if configurations are equal (they determine whether there are q_indptr and bounds)."""
    extra = call.get("extra")
    shapes = [tuple(call["pool"].shape)]
    shapes += [tuple(call[name].shape) for name in ("page_table", "indices") if name in call]
    if extra is not None:
        shapes += [tuple(extra["pool"].shape), tuple(extra["indices"].shape)]
    return shapes, str(call["layout"]), t.dtype(q)


def share(
    meta: FlashMLASchedMeta, q: Any, call: dict[str, Any], shapes: Any, lengths: tuple[Any, ...]
) -> dict[str, Any]:
    """Arguments of attend(): the step's workspace, and part="attention" if its schedule is there already."""
    extra = call.get("extra")
    made_of = (shapes, [t.state(x) for x in lengths], t.capturing(q))
    if meta.workspace is not None and meta.made_of == made_of:
        return {"workspace": meta.workspace, "part": "attention"}
    rows = q.shape[0] * q.shape[1]
    by_table = "page_table" in call
    width = 0 if by_table else call["indices"].shape[1]
    bytes_of = _workspace.attend_workspace(
        rows,
        q.shape[2],
        call["layout"],
        call["page_size"],
        pages=call["pool"].shape[0],
        attention=call["attention"],
        kind=call.get("kind", "inplace"),
        requests=len(call["kv_lens"]) if by_table else rows,
        max_request_rows=call.get("max_request_rows", 1),
        max_kv_len=call["page_table"].shape[1] * call["page_size"] if by_table else 0,
        index_width=width,
        extra=None if extra is None else dict(
            layout=extra["layout"], page_size=extra["page_size"], pages=extra["pool"].shape[0],
            index_width=extra["indices"].shape[1],
        ),
        gpu=q.device.index,
    )  # fmt: skip
    meta.workspace, meta.made_of = t.empty(q, (bytes_of,), t.torch_of(q).uint8), made_of
    return {"workspace": meta.workspace}
