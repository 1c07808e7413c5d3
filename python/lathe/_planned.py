"""Applies a plan to a call of attend(), and gathers compact rows for kernels that do not gather themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _args, _codec, _cuda
from ._errors import LatheError
from ._plan import Plan

_ATTENTION = {
    "dense_latent": "mla",
    "sparse_latent": "dsa",
    "window_compressed": "v4",
    "grouped_query": "gqa",
}


def _differs(field: str, wanted: object, offered: object) -> LatheError:
    return LatheError("invalid_argument", field, f"the plan's {wanted}", str(offered))


class Planned:
    """The route of a phase that covers every batch, and the plan's caches."""

    def __init__(self, plan: Any, phase: str) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan: wanted a lathe.Plan, got {type(plan).__name__}")
        phases = plan.data["phases"]
        if _args.text("phase", phase) not in phases:
            raise LatheError("invalid_argument", "phase", f"one of {', '.join(phases)}", phase)
        self.problem: dict[str, Any] = plan.data["problem"]
        self.attention = _ATTENTION[self.problem["kind"]]
        self.device: str = plan.data["device"]
        # Earlier routes have bounds that this batch may exceed.
        route = phases[phase]["routes"][-1]
        self.kind: str = route["kind"]
        self.gathers: bool = route["unit"] == "ragged_row"
        # The cpu kernels gather latents themselves, tile by tile within the plan's budget.
        by_itself = self.gathers and self.device == "cpu" and self.attention != "gqa"
        budgets = {budget["name"]: budget["bytes"] for budget in plan.data["budgets"]}
        self.gather_bytes: int = budgets["gather"] if by_itself else 0
        self._max_rows: int = plan.data["max_rows"]
        self._context_length: int = plan.data["context_length"]
        self._caches = {cache["role"]: cache for cache in plan.data["caches"]}

    def check_attention(self, given: str) -> None:
        if given not in (self.attention, self.problem["kind"]):
            raise _differs("attention", self.attention, given)

    @property
    def heads_and_rows(self) -> tuple[int, int]:
        """The number of heads that q must have, and the most rows."""
        return self.problem["heads"], self._max_rows

    def check_batch(self, kv_lens: Any, max_kv_len: Any, sink: Any) -> None:
        """Errors: LatheError if the plan does not cover the batch.

        Lengths on a GPU are not read; max_kv_len bounds them.
        """
        if (sink is not None) != self.problem["sink"]:
            wanted = "sink per head" if self.problem["sink"] else "None"
            raise _differs("sink", wanted, "None" if sink is None else "a sink")
        field, longest = "kv_lens", 0
        if _cuda.place(kv_lens) is not None:
            given = 0 if max_kv_len is None else max_kv_len
            field, longest = "max_kv_len", _args.integer("max_kv_len", given)
        elif kv_lens is not None:
            longest = _numpy(kv_lens, "kv_lens", 1).max(initial=0)
        if longest > self._context_length:
            raise _differs(field, f"{self._context_length} keys at most", longest)

    def number(self, field: str, given: Any) -> Any:
        """The problem's value of the field, None for 0. Errors: LatheError if a different value is given."""
        planned = self.problem[field]
        if given is not None and _args.integer(field, given) != planned:
            raise _differs(field, planned, given)
        return planned or None

    def source(self, role: str, prefix: str, fields: dict[str, Any]) -> dict[str, Any]:
        """fields, with layout and page size filled in from the cache `role` if they are None.

        Errors: LatheError if they differ: the plan holds only for its own layout.
        """
        cache = self._caches[role]
        layout = _args.layout("layout", cache["layout"])
        given = fields.get("layout")
        if given is not None and _args.layout(prefix + "layout", given) != layout:
            raise _differs(prefix + "layout", layout, given)
        made = {**fields, "layout": layout}
        if fields.get("pool") is not None:
            page_size = fields.get("page_size")
            if page_size not in (None, cache["page_size"]):
                raise _differs(prefix + "page_size", cache["page_size"], page_size)
            made["page_size"] = cache["page_size"]
        return made

    def extra(self, fields: Any) -> Any:
        if not isinstance(fields, dict) or "compressed" not in self._caches:
            return fields
        return self.source("compressed", "extra.", fields)


def _numpy(value: Any, name: str, rank: int) -> np.ndarray:
    made = np.asarray(_args.indices(value))
    if made.dtype == object and hasattr(value, "__dlpack__"):
        made = np.from_dlpack(value)
    # An empty list has no dtype.
    if made.ndim != rank or (made.size and made.dtype.kind not in "iu"):
        offered = f"{made.dtype} array of {made.ndim} axes"
        raise LatheError("invalid_argument", name, f"integers on {rank} axes", offered)
    return made.astype(np.int64)


def _slots_of_pool(source: dict[str, Any]) -> int:
    pool = source["pool"]
    shape = pool.shape if hasattr(pool, "shape") else memoryview(pool).shape
    stride = source["layout"].page_stride(source["page_size"])
    return (shape[0] if len(shape) == 2 else shape[0] // stride) * source["page_size"]


def _listed_slots(source: dict[str, Any], prefix: str) -> np.ndarray:
    slots = _numpy(source["indices"], prefix + "indices", 2)
    keep = (slots >= 0) & (slots < _slots_of_pool(source))
    if source["index_lengths"] is not None:
        name = prefix + "index_lengths"
        lengths = _numpy(source["index_lengths"], name, 1)
        if len(lengths) != len(slots):
            raise LatheError("invalid_argument", name, f"{len(slots)} entries", str(len(lengths)))
        keep &= np.arange(slots.shape[1]) < lengths[:, None]
    return np.where(keep, slots, -1)


def _paged_slots(
    source: dict[str, Any], rows: int, q_indptr: Any, kv_lens: Any, window: int
) -> np.ndarray:
    """The slots that each row sees, padded with -1."""
    table = _numpy(source["page_table"], "page_table", 2)
    if kv_lens is None:
        raise LatheError("invalid_argument", "kv_lens", "the keys of each request", "None")
    lens = _numpy(kv_lens, "kv_lens", 1)
    first = np.arange(rows + 1) if q_indptr is None else _numpy(q_indptr, "q_indptr", 1)
    counts = np.diff(first)
    good = len(first) > 0 and first[0] == 0 and first[-1] == rows and (counts >= 0).all()
    if not good or len(counts) != len(lens):
        offered = f"{len(lens)} requests and {first.tolist()[:8]}"
        raise LatheError("invalid_argument", "q_indptr", f"requests of {rows} rows", offered)
    if len(table) != len(lens):
        wanted = f"{len(lens)} requests"
        raise LatheError("invalid_argument", "page_table", wanted, str(len(table)))
    if (lens < counts).any():
        raise LatheError("invalid_argument", "kv_lens", "the request's rows at least", "fewer")
    request = np.repeat(np.arange(len(lens)), counts)
    ends = lens[request] - first[request + 1] + np.arange(rows) + 1
    starts = np.maximum(ends - window, 0) if window else np.zeros_like(ends)
    size = source["page_size"]
    # Checked before anything of that size is allocated.
    if ends.max(initial=0) > table.shape[1] * size:
        raise LatheError("invalid_argument", "page_table", "the pages of every key", "fewer pages")
    at = starts[:, None] + np.arange((ends - starts).max(initial=0))
    seen = at < ends[:, None]
    pages = table[request[:, None], np.where(seen, at // size, 0)] if seen.any() else at
    slots = np.where(seen, pages * size + at % size, -1)
    # Not a hole: the lengths say that there is a key.
    if (seen & ((pages < 0) | (slots >= _slots_of_pool(source)))).any():
        raise LatheError("out_of_range", "page_table", "pages of the pool", "a page outside it")
    return slots


def compact(
    main: dict[str, Any],
    extra: dict[str, Any] | None,
    rows: int,
    q_indptr: Any,
    kv_lens: Any,
    window: int,
) -> dict[str, Any]:
    """Decodes the slots of both sources into one compact bf16 buffer, each slot once."""
    sources = [(main, "")] if extra is None else [(main, ""), (extra, "extra.")]
    buffers, lists, count = [], [], 0
    for source, prefix in sources:
        if source["pool"] is None:
            field = prefix + "pool"
            raise LatheError("invalid_argument", field, "a pool, as the other source", "None")
        if source["indices"] is not None:
            slots = _listed_slots(source, prefix)
        else:
            slots = _paged_slots(source, rows, q_indptr, kv_lens, window)
        valid = slots >= 0
        used, where = np.unique(slots[valid], return_inverse=True)
        # A buffer needs at least one row; this one is zeros and unused.
        used = used if used.size else np.array([-1])
        buffers.append(
            _codec.gather_decode(
                source["pool"],
                used,
                source["layout"],
                source["page_size"],
                key_scale=source["key_scale"],
                value_scale=source["value_scale"],
            )
        )
        slots[valid] = where.reshape(-1) + count
        lists.append(slots)
        count += len(used)
    if len({len(made) for made in lists}) != 1:
        offered = " and ".join(str(len(made)) for made in lists)
        raise LatheError("invalid_argument", "extra.indices", "a list per row", offered)
    return {
        **main,
        "pool": None,
        "page_table": None,
        "index_lengths": None,
        "compact": np.concatenate(buffers),
        "indices": np.concatenate(lists, axis=1),
        "key_scale": 1.0,
        "value_scale": 1.0,
    }
