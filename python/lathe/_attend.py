"""Attention over a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _args, _cuda, _lathe, _planned, _repeat
from ._args import LayoutLike
from ._errors import LatheError
from ._plan import Plan

_DEFAULT_LAYOUTS = {
    "v4": "v4_fp8",
    "window_compressed": "v4_fp8",
    "gqa": "gqa_bf16",
    "grouped_query": "gqa_bf16",
}
# Fields of `extra`, the second source; the first source has them as arguments of the same names.
_SOURCE_FIELDS = (
    "pool",
    "layout",
    "page_size",
    "compact",
    "indices",
    "index_lengths",
    "key_scale",
    "value_scale",
)


def default_layout(attention: str) -> str:
    """The layout that gives the dims of compact rows by default."""
    return _DEFAULT_LAYOUTS.get(attention, "mla_bf16")


def _source(
    attention: str,
    prefix: str,
    pool: Any = None,
    layout: LayoutLike | None = None,
    page_size: int | None = None,
    compact: Any = None,
    page_table: Any = None,
    indices: Any = None,
    index_lengths: Any = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> dict[str, Any]:
    if (pool is None) == (compact is None):
        came = "neither" if pool is None else "both"
        raise LatheError("invalid_argument", prefix + "pool", "a pool or compact rows", came)
    if (page_table is None) == (indices is None):
        came = "neither" if indices is None else "both"
        field = prefix + ("page_table" if prefix == "" else "indices")
        wanted = "a page_table or indices" if prefix == "" else "indices"
        raise LatheError("invalid_argument", field, wanted, came)
    if layout is None:
        if pool is not None:
            raise LatheError("invalid_argument", prefix + "layout", "the pool's layout", "None")
        layout = default_layout(attention)
    return {
        "pool": pool,
        "layout": _args.layout(prefix + "layout", layout),
        "page_size": _args.page_size(
            64 if page_size is None else page_size, prefix + "page_size"
        ),
        "compact": compact,
        "page_table": _args.indices(page_table),
        "indices": _args.indices(indices),
        "index_lengths": _args.indices(index_lengths),
        "key_scale": _args.real(prefix + "key_scale", key_scale),
        "value_scale": _args.real(prefix + "value_scale", value_scale),
    }


def _second_source(attention: str, extra: Any) -> dict[str, Any] | None:
    if extra is None:
        return None
    if not isinstance(extra, dict):
        raise TypeError(f"extra: wanted a dict, got {type(extra).__name__}")
    unknown = [name for name in extra if name not in _SOURCE_FIELDS]
    if unknown:
        names = ", ".join(map(str, unknown))
        raise TypeError(f"extra: knows no {names}; known: {', '.join(_SOURCE_FIELDS)}")
    return _source(attention, "extra.", **extra)


def _scale(name: str, value: Any, gpu: int | None) -> tuple[float, Any]:
    """A tensor scale as a number and, where it lies beside q on a GPU, an array [1] that is one more factor."""
    shape = tuple(getattr(value, "shape", ()))
    if shape not in ((), (1,)):
        raise LatheError("invalid_argument", name, "a number, or an array of shape [1]", f"shape {list(shape)}")
    if gpu is not None and _cuda.place(value) is not None:
        return 1.0, value.reshape(1)
    return _args.real(name, value.item() if hasattr(value, "item") else value), None


def attend(
    q: Any,
    pool: Any = None,
    layout: LayoutLike | None = None,
    page_size: int | None = None,
    *,
    plan: Plan | None = None,
    phase: str = "decode",
    attention: str | None = None,
    compact: Any = None,
    page_table: Any = None,
    indices: Any = None,
    index_lengths: Any = None,
    q_indptr: Any = None,
    kv_lens: Any = None,
    scale: float | None = None,
    sink: Any = None,
    window: int | None = None,
    top_k: int | None = None,
    extra: dict[str, Any] | None = None,
    kind: str | None = None,
    w_uk: Any = None,
    w_uv: Any = None,
    q_scale: Any = 1.0,
    key_scale: Any = 1.0,
    value_scale: float = 1.0,
    device: str | None = None,
    threads: int = 0,
    batch_invariant: bool = True,
    out: Any = None,
    lse: Any = None,
    lse_base_2: bool = False,
    empty_lse_plus_inf: bool = False,
    max_request_rows: int | None = None,
    max_kv_len: int | None = None,
    stream: int | None = None,
    workspace: Any = None,
    part: str = "both",
) -> tuple[Any, Any]:
    """Attention over a cache.

    For each row and head, over the keys k that the row sees: s = scale * q . k, and
    out = softmax(s) . v. Latent attention ("mla", "dsa") takes an absorbed, rotated q; its values
    are the keys' nope part. The values of "v4" are the whole keys. In "gqa", heads / kv_heads query
    heads share a key-value head.

    q: [rows, heads, nope + rope] (gqa: head_dim; ragged: qk_nope_head + rope), contiguous within a
        row; float32, bfloat16, uint16 (bits of bfloat16), float8_e4m3fn or uint8 (its codes), the
        last two times q_scale. float16 is converted: exactly in host memory; torch's on a GPU to
        bfloat16, which costs a launch and three of eleven significant bits.
    pool, layout, page_size: the cache (see encode); the layout's dims are the problem's. Pages
        have 64 slots by default.
    plan, phase: device and kind come from the plan's last route of that phase ("extend",
        "decode", ...); attention, window and top_k from its problem; layout and page_size from its
        caches: ``attend(q, pool, indices=chosen, plan=lathe.plan("dsa", "cpu"), phase="extend")``.
        Other values are errors, and so are other heads, a sink that the plan lacks, and more rows
        or longer requests than planned. If the route reads compact rows, the rows that the batch
        needs are gathered from the pools; for latents on the cpu within the plan's budget "gather".
    compact: instead of a pool, rows [n, row_elems] of float32, bfloat16 or uint16; `layout` then
        only gives the dims, by default those of the attention's family.
    page_table: [requests, width] int32 or int64, -1 past a request's pages. Row j of a request
        with n rows and L keys is at position L - n + j and sees the keys up to it, with a window
        the last `window` of them.
    indices: instead of a page table, [rows, width]: exactly these slots (pool) or rows (compact);
        -1 and entries out of range are no keys. index_lengths: [rows], number of valid entries.
    q_indptr: [requests + 1], first row of each request; by default one row per request.
    kv_lens: [requests], keys of each request, its own rows included; not needed with indices.
    attention: "mla", "dsa" (the default), "v4" or "gqa".
    scale: by default the family's: 1/sqrt(head_dim) for gqa, 1/sqrt(512) for v4, DeepSeek V3's
        YaRN-scaled 1/sqrt(192) otherwise. Used as float32, as kernels do.
    sink: [heads] float32, raw logits that are part of the denominator but not of the LSE.
    window: tokens; for v4 (128 by default) and gqa, by page table.
    extra: v4's compressed entries, a dict of pool, layout, page_size (or compact), indices and
        optionally index_lengths, key_scale, value_scale; one softmax over both sources.
    kind: "inplace", the default, and "native" (homogeneous layouts) read the pages, "gather" reads
        compact rows; "ragged" expands mla or dsa latents by w_uk [heads, qk_nope_head, nope] and
        w_uv [heads, v_head, nope], float32 (by page table; dsa while no request has more than
        top_k keys, 2048 by default).
    q_scale, key_scale, value_scale: the tensor scales of an fp8 q, and of mla_fp8 and gqa_fp8. The first
        two may be float32 arrays of shape [1]: those on a GPU, for an fp8 q, are read when the kernel runs.
    device: "cpu", the default for arrays in host memory, computes in float32; "ref", the slow
        oracle of all kernels, in double; "sm90", the default if q is on a GPU, runs on Hopper.
    threads: of the cpu device; 0 = one per core.
    out, lse: arrays to write to, [rows, heads, v_dim] and [rows, heads], with any stride between rows:
        float32 or bfloat16 and float32 in host memory, bfloat16 and float32 on a GPU. By default
        they are allocated.
    lse_base_2, empty_lse_plus_inf: LSE in base 2, like FlashInfer's; +inf instead of -inf for a row
        without keys, like FlashMLA's.
    batch_invariant: a request's bits depend on the request alone; off, splits depend on threads.

    On a GPU (torch, or anything with DLPack) q is bfloat16, or fp8 codes if kind is "native" and the
    layout mla_fp8. All arrays are on the same GPU, lists as contiguous int32; only q_indptr and
    kv_lens may be in host memory, where they are checked and copied. Calls do not wait.
    max_request_rows, max_kv_len: bounds on lengths that are on the GPU: most rows of a request (1 by
        default) and most keys of one (by default the page table's capacity). With `indices` and no
        lengths, all rows count as one request's. max_request_rows says that they are of many requests,
        as in a decode step; there 128 heads then need 5 % less time.
    stream: a cudaStream_t as an integer; by default torch's current one, else the default stream.
    workspace: uint8 [bytes] on the GPU, aligned to 256, of the size that attend_workspace() returns,
        for one stream at a time; by default memory that Lathe keeps for each thread and stream. A
        captured graph uses it for as long as the graph lives.
    part: for calls with a workspace. "both", the default, computes the schedule of the lengths, leaves
        it in the workspace and attends. "attention" reuses the schedule of a call with the same shapes,
        bounds and lengths, and gives the same bits. "schedule" only computes it. So the layers of a
        step can share one: "both" in the first layer, "attention" in the others.

    Returns (out, lse): [rows, heads, v_dim], and [rows, heads] of natural logs, both float32, or
    float64 from "ref"; on a GPU bfloat16 and float32, as torch tensors if q is one. A row without
    keys has out 0 and lse -inf. Raises LatheError naming the argument, or TypeError for values that
    are not arrays or numbers.
    """
    arrays = (
        q, pool, compact, page_table, indices, index_lengths, *_repeat.arrays_of(extra), sink, q_scale,
        key_scale, q_indptr, kv_lens, out, lse, workspace,
    )  # fmt: skip
    settings = (
        layout, page_size, plan, phase, attention, scale, window, top_k, _repeat.settings_of(extra), kind,
        value_scale, device, threads, batch_invariant, lse_base_2, empty_lse_plus_inf, max_request_rows,
        max_kv_len, part,
    )  # fmt: skip
    call = _repeat.find(arrays, settings, stream)
    if call is not None:
        return _repeat.run(call, q, out, lse)
    made_out, made_lse, call = checked(
        q, pool, layout, page_size, plan, phase, attention, compact, page_table, indices, index_lengths,
        q_indptr, kv_lens, scale, sink, window, top_k, extra, kind, w_uk, w_uv, q_scale, key_scale,
        value_scale, device, threads, batch_invariant, out, lse, lse_base_2, empty_lse_plus_inf,
        max_request_rows, max_kv_len, stream, workspace, part,
    )  # fmt: skip
    if call is not None:
        _repeat.keep(arrays, settings, call, getattr(made_out, "shape", None))
    return made_out, made_lse


def attend_reference(*args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
    """attend() on the device "ref": double precision, float64 results, the oracle."""
    return attend(*args, **{"device": "ref", **kwargs})


# Defaults of the arguments after q.
DEFAULTS = {**dict.fromkeys(("pool", "layout", "page_size")), **(attend.__kwdefaults__ or {})}


def checked(
    q: Any, pool: Any, layout: Any, page_size: Any, plan: Any, phase: Any, attention: Any, compact: Any,
    page_table: Any, indices: Any, index_lengths: Any, q_indptr: Any, kv_lens: Any, scale: Any, sink: Any,
    window: Any, top_k: Any, extra: Any, kind: Any, w_uk: Any, w_uv: Any, q_scale: Any, key_scale: Any,
    value_scale: Any, device: Any, threads: Any, batch_invariant: Any, out: Any, lse: Any, lse_base_2: Any,
    empty_lse_plus_inf: Any, max_request_rows: Any, max_kv_len: Any, stream: Any, workspace: Any, part: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """attend() with all of its arguments. Also returns the GpuCall if q is torch's on a GPU, else None."""
    gpu = _cuda.place(q)
    q_scale, device_q_scale = _scale("q_scale", q_scale, gpu)
    key_scale, device_key_scale = _scale("key_scale", key_scale, gpu)
    fields = {
        "pool": pool,
        "layout": layout,
        "page_size": page_size,
        "compact": compact,
        "page_table": page_table,
        "indices": indices,
        "index_lengths": index_lengths,
        "key_scale": key_scale,
        "value_scale": value_scale,
    }
    route = None
    if plan is not None:
        for name, given in (("kind", kind), ("device", device)):
            if given is not None:
                raise LatheError("invalid_argument", name, "None with a plan", str(given))
        route = _planned.Planned(plan, phase)
        if attention is not None:
            route.check_attention(_args.text("attention", attention))
        attention, kind, device = route.attention, route.kind, route.device
        fields = route.source("main", "", fields)
        extra = route.extra(extra)
        route.check_batch(kv_lens, max_kv_len, sink)
        top_k = route.number("top_k", top_k)
        window = route.number("window", window)
    attention = "dsa" if attention is None else _args.text("attention", attention)
    kind = "inplace" if kind is None else _args.text("kind", kind)
    if device is None:
        device = "cpu" if gpu is None else "sm90"
    device = _args.text("device", device)
    on_gpu = gpu is not None or device == "sm90"
    if on_gpu and device != "sm90":
        wanted = 'None or "sm90" for a q on a GPU'
        raise LatheError("invalid_argument", "device", wanted, device)
    on_gpu_only = (max_request_rows, max_kv_len, stream, workspace)
    if not on_gpu and any(given is not None for given in on_gpu_only):
        names = "max_request_rows, max_kv_len, stream and workspace"
        raise LatheError("invalid_argument", "q", f"an array on a GPU, as {names} ask for", "none")
    part = _args.text("part", part)
    if part not in ("both", "schedule", "attention"):
        raise LatheError("invalid_argument", "part", '"both", "schedule" or "attention"', part)
    if part != "both" and workspace is None:
        raise LatheError("invalid_argument", "workspace", f'an array for part="{part}"', "None")
    main = _source(attention, "", **fields)
    second = _second_source(attention, extra)
    q = _args.query(q)
    gather_bytes = 0
    if route is not None and main["pool"] is not None:
        gather_bytes = route.gather_bytes
    if on_gpu and route is not None and route.gathers and main["pool"] is not None:
        wanted = "compact rows on a GPU where the route gathers"
        raise LatheError("unsupported", "pool", wanted, "a pool", "gather them, or plan inplace")
    if route is not None and route.gathers and main["pool"] is not None and not gather_bytes:
        width = 0 if window is None else _args.integer("window", window)
        rows = q.shape[0] if getattr(q, "ndim", 0) > 0 else 0
        main = _planned.compact(main, second, rows, q_indptr, kv_lens, width)
        second = None
    options = {
        "scale": None if scale is None else _args.real("scale", scale),
        "q_scale": q_scale,
        "device_q_scale": device_q_scale,
        "device_key_scale": device_key_scale,
        "sink": sink,
        "window": None if window is None else _args.integer("window", window),
        "top_k": None if top_k is None else _args.integer("top_k", top_k),
        "w_uk": w_uk,
        "w_uv": w_uv,
        "gather_bytes": gather_bytes,
        "lse_base_2": bool(lse_base_2),
        "empty_lse_plus_inf": bool(empty_lse_plus_inf),
        "planned": None if route is None else route.heads_and_rows,
    }
    if on_gpu:
        rows, keys = max_request_rows, max_kv_len
        options["max_request_rows"] = 0 if rows is None else _args.integer("max_request_rows", rows, 1)
        options["max_kv_len"] = 0 if keys is None else _args.integer("max_kv_len", keys, 0)
        options["part"] = part
        return _cuda.attend(
            kind, attention, q, q_indptr, kv_lens, main, second, options, out, lse, stream, workspace
        )
    threads = _args.integer("threads", threads)
    if not 0 <= threads <= 1024:
        raise LatheError("invalid_argument", "threads", "0 to 1024", str(threads))
    made_out, made_lse = _lathe.attend(
        device,
        threads,
        bool(batch_invariant),
        kind,
        attention,
        q,
        _args.indices(q_indptr),
        _args.indices(kv_lens),
        main,
        second,
        options,
        out,
        lse,
    )
    return (made_out if out is None else out), (made_lse if lse is None else lse), None
