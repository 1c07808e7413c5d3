"""FlashMLA's functions for Hopper over Lathe's kernels.

The signatures are those of FlashMLA until 2026-04, with the additions of vLLM's fork (out, the fp8 functions) and of sgl-flash-mla
(use_legacy, kv_format, descale_q, descale_k). Tensors are torch's on a Hopper GPU; torch's or numpy's in host memory run on the CPU.

Supported: dense decode over pages of bfloat16, and of float8_e4m3fn with a float8 q; sparse decode over caches of 656 bytes per token
(DeepSeek V3.2), of 528 (the same without rope) and of 584 with an extra cache (V4); sparse prefill over bfloat16 rows. Any number of
heads up to 128, any page size, any width of index lists. One KV head.

Differences: max_logits is None unless compute_max_logits is True, as no kernel computes it: a second pass over the keys does, which takes
several times as long as the attention. A FlashMLASchedMeta belongs to one step, like FlashMLA's: on a GPU the first call with it makes the
schedule of the lengths, and the step's other layers reuse it. Lengths in another tensor, or changed by a write that torch counts, make a new
one; FlashMLASchedMeta's docstring names the writes that it does not see. The older pair of tensors holds nothing: lengths are read at every
call.

Unsupported calls raise FlashMlaError, a lathe.LatheError and RuntimeError; wrong arguments raise ArgumentError, which is also an
AssertionError.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NoReturn

from .. import _attend, _repeat
from .._errors import LatheError
from .._layouts import Layout
from . import _schedule as schedule
from . import _tensors as t
from ._max_logits import max_logits
from ._schedule import FlashMLASchedMeta

scale_policy = "pow2_ceil"  # of 656 and 528 B caches; install() sets it
compute_max_logits = False  # of flash_mla_sparse_fwd()

_LATENT = 512


class FlashMlaError(LatheError, RuntimeError):
    """A call that Lathe's kernels do not support."""


class ArgumentError(FlashMlaError, AssertionError):
    """A wrong argument, or one that does not match the others."""


def has_legacy() -> bool:
    """Whether Hopper kernels exist; always True here."""
    return True


def get_mla_metadata(cache_seqlens: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Without arguments (FlashMLASchedMeta(), None); with lengths the older pair of tensors."""
    if cache_seqlens is None:
        return FlashMLASchedMeta(), None
    return _pair(cache_seqlens)


def get_mla_decoding_metadata(
    seqlens_k: Any,
    num_q_tokens_per_head_k: int,
    h_k: int,
    h_q: int | None = None,
    is_fp8_kvcache: bool = False,
    topk: int | None = None,
    use_legacy: bool = False,
) -> tuple[Any, Any]:
    """The older pair of tensors."""
    return _pair(seqlens_k)


def get_mla_metadata_dense_fp8(
    cache_seqlens: Any, num_q_tokens_per_head_k: int, num_heads_k: int
) -> tuple[Any, Any]:
    """The older pair of tensors (vLLM's name)."""
    return _pair(cache_seqlens)


def flash_mla_with_kvcache(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool | None = None,
    indices: Any = None,
    attn_sink: Any = None,
    extra_k_cache: Any = None,
    extra_indices_in_kvcache: Any = None,
    topk_length: Any = None,
    extra_topk_length: Any = None,
    out: Any = None,
    enable_batch_invariant: bool = False,
    use_legacy: bool = False,
    kv_format: str | None = None,
    descale_q: Any = None,
    descale_k: Any = None,
) -> tuple[Any, Any]:
    """Decode over pages: dense by block_table, or sparse by indices.

    q: [b, s_q, h_q, d]. k_cache: dense [blocks, page, 1, d], sparse [blocks, page, 1, bytes].
    indices: int32 [b, s_q, topk] of slots, block * page + offset; -1 and entries out of range are no
    keys. topk_length: int32 [b]. Returns (out [b, s_q, h_q, 512] in bfloat16, lse float32
    [b, h_q, s_q], +inf for a row without keys).
    """
    sparse = indices is not None
    lengths = (topk_length, extra_topk_length) if sparse else (cache_seqlens,)
    arrays = (
        q, k_cache, None, None if sparse else block_table, indices, topk_length, extra_k_cache, None,
        extra_indices_in_kvcache, extra_topk_length, attn_sink, descale_q, descale_k, None,
        None if sparse else cache_seqlens, out, None, None,
    )  # fmt: skip
    settings = (
        head_dim_v, softmax_scale, causal, is_fp8_kvcache, enable_batch_invariant, kv_format, scale_policy,
        type(tile_scheduler_metadata), num_splits is None,
    )  # fmt: skip
    known = _repeat.find(arrays, settings)
    if known is not None:
        done = schedule.again(known, tile_scheduler_metadata, q, out, lengths)
        if done is not None:
            return done
    _shape("q", q, 4)
    _shape("k_cache", k_cache, 4)
    if head_dim_v != _LATENT:
        _wrong("head_dim_v", str(_LATENT), str(head_dim_v))
    if k_cache.shape[2] != 1:
        _unserved("k_cache", "one KV head", f"{k_cache.shape[2]}")
    if enable_batch_invariant and t.on_gpu(q):
        _unserved("enable_batch_invariant", "False on a GPU", "True")
    if is_fp8_kvcache is None:
        is_fp8_kvcache = sparse
    config = FlashMLASchedMeta.Config(
        b=q.shape[0],
        s_q=q.shape[1],
        h_q=q.shape[2],
        page_block_size=k_cache.shape[1],
        h_k=k_cache.shape[2],
        causal=causal,
        is_fp8_kvcache=is_fp8_kvcache,
        topk=indices.shape[-1] if sparse else None,
        extra_page_block_size=None if extra_k_cache is None else extra_k_cache.shape[1],
        extra_topk=None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[-1],
        enable_batch_invariant=enable_batch_invariant,
    )
    _check_schedule(tile_scheduler_metadata, num_splits, config)
    call: dict[str, Any] = {"scale": q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale}
    if sparse:
        if causal:
            _wrong("causal", "False with indices", "True")
        if not is_fp8_kvcache:
            _wrong("is_fp8_kvcache", "True with indices", "False")
        call |= _sparse_call(q, k_cache, indices, topk_length, kv_format)
        if attn_sink is not None:
            call["sink"] = attn_sink
        if extra_k_cache is not None:
            call["extra"] = _extra(q, extra_k_cache, extra_indices_in_kvcache, extra_topk_length)
    else:
        for name, given in (("attn_sink", attn_sink), ("extra_k_cache", extra_k_cache),
                            ("topk_length", topk_length), ("kv_format", kv_format)):
            if given is not None:
                _wrong(name, "None without indices", "a value")
        call |= _dense_call(q, k_cache, block_table, cache_seqlens, causal)
        if t.dtype(q).startswith("float8"):
            call |= {
                "q_scale": _descale("descale_q", descale_q),
                "key_scale": _descale("descale_k", descale_k),
            }
    shapes = workspace = None
    if isinstance(tile_scheduler_metadata, FlashMLASchedMeta) and t.on_gpu(q) and len(q) > 0:
        shapes = schedule.shapes_of(q, call)
        call |= schedule.share(tile_scheduler_metadata, q, call, shapes, lengths)
        workspace = len(call["workspace"])
    made, lse, known = _decode(q, out, call, copy_lse=not sparse)
    if known is not None:
        kept = schedule.Kept(config, shapes, workspace, tuple(made.shape), copy_lse=not sparse)
        _repeat.keep(arrays, settings, known, kept)
    return made, lse


def flash_mla_with_kvcache_fp8(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    descale_q: Any = None,
    descale_k: Any = None,
) -> tuple[Any, Any]:
    """Dense decode with a float8_e4m3fn q over pages of 576 float8_e4m3fn (vLLM's name)."""
    return flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits,
        softmax_scale, causal, is_fp8_kvcache=True, descale_q=descale_q, descale_k=descale_k,
    )  # fmt: skip


def sglang_flash_mla_with_kvcache(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    descale_q: Any = None,
    descale_k: Any = None,
    is_fp8_kvcache: bool | None = None,
    indices: Any = None,
    attn_sink: Any = None,
    extra_k_cache: Any = None,
    extra_indices_in_kvcache: Any = None,
    topk_length: Any = None,
    extra_topk_length: Any = None,
    kv_format: str | None = None,
    *,
    use_legacy: bool = True,
) -> tuple[Any, Any]:
    """flash_mla_with_kvcache() with its arguments in the order of SGLang's own facade."""
    return flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits,
        softmax_scale, causal, is_fp8_kvcache, indices, attn_sink, extra_k_cache,
        extra_indices_in_kvcache, topk_length, extra_topk_length, use_legacy=use_legacy,
        kv_format=kv_format, descale_q=descale_q, descale_k=descale_k,
    )  # fmt: skip


def flash_mla_sparse_fwd(
    q: Any,
    kv: Any,
    indices: Any,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: Any = None,
    topk_length: Any = None,
    out: Any = None,
    use_legacy: bool = False,
    return_log2_lse: bool | None = None,
) -> tuple[Any, Any, Any]:
    """Sparse prefill over rows.

    q: bfloat16 [s_q, h_q, d]. kv: bfloat16 [s_kv, 1, d]. indices: int32 [s_q, 1, topk] rows of kv.
    topk_length: int32 [s_q]. Returns (out bfloat16 [s_q, h_q, 512], max_logits float32 [s_q, h_q] or None
    (compute_max_logits), lse float32 [s_q, h_q], in base 2 if return_log2_lse is True, None if it is
    False).
    """
    _shape("q", q, 3)
    _shape("kv", kv, 3)
    _shape("indices", indices, 3)
    if d_v != _LATENT:
        _wrong("d_v", str(_LATENT), str(d_v))
    if kv.shape[1] != 1 or indices.shape[1] != 1:
        _unserved("kv", "one KV head", f"{kv.shape[1]}")
    d = q.shape[2]
    if d not in (_LATENT, 576) or kv.shape[2] != d:
        _wrong("kv", "rows of 512 or 576 numbers, as q", f"{kv.shape[2]} and {d}")
    if d == _LATENT:
        attention, layout = "v4", Layout("v4_fp8")
    else:
        attention, layout = "dsa", Layout("mla_bf16")
    made = t.empty(q, (*q.shape[:2], d_v), q.dtype) if out is None else out
    lse = t.empty(q, tuple(q.shape[:2]))
    call: dict[str, Any] = dict(
        attention=attention,
        kind="gather",
        layout=layout,
        compact=kv[:, 0],
        indices=_int32("indices", indices[:, 0]),
        index_lengths=None if topk_length is None else _int32("topk_length", topk_length),
        scale=sm_scale,
        sink=attn_sink,
        lse_base_2=return_log2_lse is True,
    )
    _attend_to(q, made, lse, call)
    most = None
    if compute_max_logits:
        most = max_logits(q, kv[:, 0], call["indices"], call["index_lengths"], sm_scale)
    return made, most, None if return_log2_lse is False else lse


def _only_blackwell(*args: Any, **kwargs: Any) -> NoReturn:
    """Not on Hopper."""
    _unserved("flash_attn", "a GPU of SM100, which has this function", "Hopper")


flash_attn_varlen_func = _only_blackwell
flash_attn_varlen_qkvpacked_func = _only_blackwell
flash_attn_varlen_kvpacked_func = _only_blackwell


def _wrong(field: str, wanted: str, offered: str) -> NoReturn:
    raise ArgumentError("invalid_argument", field, wanted, offered)


def _unserved(field: str, wanted: str, offered: str, hint: str = "") -> NoReturn:
    raise FlashMlaError("unsupported", field, wanted, offered, hint)


def _shape(name: str, x: Any, rank: int) -> None:
    shape = getattr(x, "shape", None)
    if shape is None or len(shape) != rank:
        _wrong(name, f"a tensor of {rank} axes", "none" if shape is None else f"{len(shape)} axes")


def _int32(name: str, x: Any) -> Any:
    """A contiguous list of int32, or of int64 in host memory if int32 holds its numbers.

    FlashMLA takes int32 alone. Numbers of another type would be cut to other slots.
    """
    kind = t.dtype(x)
    if kind == "int64" and not t.on_gpu(x):
        if t.any_outside(x, -(2**31), 2**31 - 1):
            _wrong(name, "numbers that int32 holds", "larger ones")
    elif kind != "int32":
        _wrong(name, "int32", kind)
    return t.int32(x)


def _pair(lengths: Any) -> tuple[Any, Any]:
    # Engines copy both into buffers of these sizes; no kernel here reads the contents.
    torch = t.torch_of(lengths)
    parts = 1
    if t.on_gpu(lengths):
        parts = torch.cuda.get_device_properties(lengths.device).multi_processor_count
    b = len(lengths)
    return t.steps(lengths, parts * 8, 1).reshape(parts, 8), t.steps(lengths, b + 1, 1)


def _check_schedule(metadata: Any, num_splits: Any, config: FlashMLASchedMeta.Config) -> None:
    if not isinstance(metadata, FlashMLASchedMeta):
        if metadata is None or num_splits is None:
            _wrong("tile_scheduler_metadata", "a FlashMLASchedMeta, or the pair of tensors", "neither")
        return
    if not metadata.have_initialized:
        metadata.have_initialized, metadata.config = True, config
        return
    for field in dataclasses.fields(config):
        kept, given = getattr(metadata.config, field.name), getattr(config, field.name)
        if kept != given:
            _wrong(f"tile_scheduler_metadata.{field.name}", f"{kept}, as in its first call", f"{given}")


def _pages(name: str, cache: Any, layout: Layout) -> Any:
    """[blocks, page, 1, d] as the bytes of pages."""
    data = t.as_bytes(cache)
    blocks, page, _, width = data.shape
    stride, inner = t.strides(data)[:2]
    if page > 1 and inner != width:
        _wrong(name, f"tokens {width} bytes apart", f"{inner}")
    if blocks < 2:
        stride = max(stride, layout.page_stride(page))
    if stride < layout.page_stride(page):
        wanted = f"pages at least {layout.page_stride(page)} bytes apart"
        _wrong(name, wanted, f"{stride}")
    # Include a page's padding.
    return t.strided(data, (blocks, layout.page_stride(page)), stride)


def _sparse_layout(name: str, cache: Any, kv_format: str | None) -> tuple[str, Layout]:
    """The attention and layout of a cache, from its bytes per token."""
    width = cache.shape[3]
    if t.dtype(cache) not in ("uint8", "int8", "float8_e4m3fn"):
        _wrong(name, "uint8, int8 or float8_e4m3fn", t.dtype(cache))
    # Only SGLang passes formats; its writer stores raw scales.
    policy = scale_policy if kv_format is None else "raw_f32"
    if width == 656 and kv_format in (None, "V32"):
        return "dsa", Layout(f"mla_fp8_block(scale={policy})")
    if width == 528 and kv_format == "V32_NO_ROPE":
        return "dsa", Layout(f"mla_fp8_block(rope=0,scale={policy})")
    if width == 584 and kv_format in (None, "V4"):
        return "v4", Layout("v4_fp8")
    known = "656 bytes a token (V32), 584 (V4), or 528 with kv_format V32_NO_ROPE"
    _unserved(name, known, f"{width} bytes with kv_format {kv_format}")


def _list(name: str, given: Any, b: int, s_q: int) -> Any:
    """[b, s_q, topk] as one list per row."""
    _shape(name, given, 3)
    if tuple(given.shape[:2]) != (b, s_q):
        _wrong(name, f"[{b}, {s_q}, topk]", str(tuple(given.shape)))
    return _int32(name, given.reshape(b * s_q, given.shape[2]))


def _counts(name: str, given: Any, b: int, s_q: int) -> Any:
    """[b] repeated for each row."""
    if given is None:
        return None
    if tuple(given.shape) != (b,):
        _wrong(name, f"[{b}]", str(tuple(given.shape)))
    return t.repeat(_int32(name, given), s_q)


def _sparse_call(q: Any, cache: Any, indices: Any, lengths: Any, kv_format: Any) -> dict[str, Any]:
    b, s_q, _, d = q.shape
    attention, layout = _sparse_layout("k_cache", cache, kv_format)
    if d != layout.row_elems:
        _wrong("q", f"{layout.row_elems} numbers a head for this cache", f"{d}")
    return dict(
        attention=attention,
        layout=layout,
        pool=_pages("k_cache", cache, layout),
        page_size=cache.shape[1],
        indices=_list("indices", indices, b, s_q),
        index_lengths=_counts("topk_length", lengths, b, s_q),
    ) | (dict(max_request_rows=s_q) if t.on_gpu(q) else {})


def _extra(q: Any, cache: Any, indices: Any, lengths: Any) -> dict[str, Any]:
    b, s_q = q.shape[:2]
    _shape("extra_k_cache", cache, 4)
    attention, layout = _sparse_layout("extra_k_cache", cache, None)
    if attention != "v4":
        _unserved("extra_k_cache", "584 bytes a token (V4)", f"{cache.shape[3]}")
    return dict(
        layout=layout,
        pool=_pages("extra_k_cache", cache, layout),
        page_size=cache.shape[1],
        indices=_list("extra_indices_in_kvcache", indices, b, s_q),
        index_lengths=_counts("extra_topk_length", lengths, b, s_q),
    )


def _dense_call(q: Any, cache: Any, table: Any, lengths: Any, causal: bool) -> dict[str, Any]:
    b, s_q, _, d = q.shape
    if cache.shape[3] != d:
        _wrong("k_cache", f"{d} numbers a token, as q has", f"{cache.shape[3]}")
    kind = t.dtype(cache)
    if t.dtype(q) != kind:
        _wrong("k_cache", f"{t.dtype(q)}, as q", kind)
    if kind == "bfloat16" and d in (_LATENT, 576):
        layout, how = Layout(f"mla_bf16(rope={d - _LATENT})"), "inplace"
    elif kind == "float8_e4m3fn" and d == 576:
        layout, how = Layout("mla_fp8"), "native"
    else:
        _unserved("q", "bfloat16 of 512 or 576 numbers, or float8_e4m3fn of 576", f"{kind} of {d}")
    _shape("block_table", table, 2)
    _shape("cache_seqlens", lengths, 1)
    if len(table) != b or len(lengths) != b:
        _wrong("block_table", f"{b} requests, as q", f"{len(table)} and {len(lengths)} lengths")
    table, lengths = _int32("block_table", table), _int32("cache_seqlens", lengths)
    call = dict(attention="mla", kind=how, layout=layout, pool=_pages("k_cache", cache, layout),
                page_size=cache.shape[1])  # fmt: skip
    # Rows of a request share its keys. In host memory a request with fewer keys than rows is refused.
    if (causal or s_q == 1) and (t.on_gpu(lengths) or not t.any_between(lengths, 0, s_q)):
        call |= dict(page_table=table, kv_lens=lengths)
        if s_q > 1:
            call["q_indptr"] = t.steps(lengths, b + 1, s_q)
            if t.on_gpu(lengths):
                call["max_request_rows"] = s_q
        return call
    ends = t.repeat(lengths, s_q)
    if causal:
        ends = t.at_least_0(ends - s_q + 1 + t.steps(lengths, b * s_q, 1) % s_q)
    return call | dict(page_table=t.repeat(table, s_q), kv_lens=t.int32(ends))


def _descale(name: str, given: Any) -> Any:
    if given is None:
        return 1.0
    if math.prod(given.shape) != 1:
        _wrong(name, "one float32", f"shape {list(given.shape)}")
    return given.reshape(1)


def _decode(q: Any, out: Any, call: dict[str, Any], copy_lse: bool) -> tuple[Any, Any, Any]:
    b, s_q, h, d = q.shape
    shape = (b, s_q, h, _LATENT)
    # There is no float8 result.
    torch = t.torch_of(q)
    kind = (torch.bfloat16 if torch else None) if t.dtype(q).startswith("float8") else q.dtype
    made = t.empty(q, shape, kind) if out is None else out
    if tuple(made.shape) != shape:
        _wrong("out", str(shape), str(tuple(made.shape)))
    try:
        rows_out = t.view(made, (b * s_q, h, _LATENT))
    except ValueError as error:
        raise ArgumentError("invalid_argument", "out", "rows at one stride", str(error)) from None
    lse = t.empty(q, (b * s_q, h))
    known = _attend_to(q.reshape(b * s_q, h, d), rows_out, lse, call)
    by_head = t.swap(lse.reshape(b, s_q, h))
    return made, t.contiguous(by_head) if copy_lse else by_head, known


def _attend_to(q: Any, out: Any, lse: Any, call: dict[str, Any]) -> Any:
    """Returns the call if it may repeat."""
    if not t.dense(q[0] if len(q) else q):
        q = t.contiguous(q)  # heads apart, as in a fused projection's output
    try:
        _, _, known = _attend.checked(
            q, **{**_attend.DEFAULTS, **call, "out": out, "lse": lse, "empty_lse_plus_inf": True}
        )
    except LatheError as error:
        kind = FlashMlaError if error.code == "unsupported" else ArgumentError
        raise kind(error.code, error.field, error.wanted, error.offered, error.hint) from None
    return known
