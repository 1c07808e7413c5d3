"""Replacements of SGLang's functions. Each hook gets the original, for calls that Lathe does not serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lathe
from lathe.compat import flash_mla
from lathe.compat.plugin import Tally, pages, place_reason

# By whether a pool holds bytes of fp8, and by the bytes or numbers of a token; 528 and 512 are of models without rope.
# SGLang's writer of fp8 pages stores amax / 448 without rounding it to a power of two.
_LAYOUTS = {
    (True, 656): "mla_fp8_block(scale=raw_f32)",
    (True, 528): "mla_fp8_block(rope=0,scale=raw_f32)",
    (False, 576): "mla_bf16",
    (False, 512): "mla_bf16(rope=0)",
}


def _or_original(
    tally: Tally, name: str, serve: Callable[[], Any], original: Callable[[], Any], where: Any
) -> Any:
    """serve()'s result, or original()'s if Lathe does not serve the call.

    After a LatheError nothing has been written, so the original starts from the same state. Lack of memory is not a reason
    to fall back: ranks would diverge.
    """
    reason = place_reason(where)
    if reason is None:
        try:
            made = serve()
        except lathe.LatheError as error:
            if error.code == "exhausted":
                raise
            reason = str(error)
        else:
            tally.served += 1
            return made
    tally.fall_back(name, reason)
    return original()


def _layout(backend: Any) -> str:
    """The layout of a dsa backend's pool, from the two fields that describe its bytes."""
    fp8, dim = bool(backend.dsa_kv_cache_store_fp8), backend.kv_cache_dim
    if (fp8, dim) in _LAYOUTS:
        return _LAYOUTS[fp8, dim]
    wanted = "656 or 528 bytes, or 576 or 512 bfloat16 a token"
    raise lathe.LatheError("unsupported", "kv_cache", wanted, f"{dim} {'bytes' if fp8 else 'numbers'}")


def forward_flashmla_kv(tally: Tally) -> Callable[..., Any]:
    """Attention of each row to its listed slots: decode, verify, and extend on Hopper with fp8.

    q_all [tokens, heads * d] or [tokens, heads, d], d 576 or 512; page_table_1 int32 [tokens, topk], -1 for none.
    The result is [tokens, 1, heads, 512], like the original's. bfloat16 pools are read in place.
    """

    def hook(original, backend, q_all, kv_cache, v_head_dim, sm_scale, layer, metadata, page_table_1):  # fmt: skip
        def serve():
            layout = lathe.Layout(_layout(backend))
            q = q_all.view(-1, layer.tp_q_head_num, layer.head_dim)
            pool, page_size = pages(kv_cache.view(-1, backend.kv_cache_dim))
            out = q.new_empty((q.shape[0], q.shape[1], v_head_dim))
            lathe.attend(
                q, pool, layout, page_size, attention="dsa", indices=page_table_1, scale=sm_scale, out=out
            )
            return out.unsqueeze(1)

        def theirs():
            return original(
                backend, q_all=q_all, kv_cache=kv_cache, v_head_dim=v_head_dim, sm_scale=sm_scale,
                layer=layer, metadata=metadata, page_table_1=page_table_1,
            )  # fmt: skip

        return _or_original(tally, "_forward_flashmla_kv", serve, theirs, q_all)

    return hook


def forward_flashmla_sparse(tally: Tally) -> Callable[..., Any]:
    """Attention to listed bfloat16 rows: a pool, a prefix that SGLang has dequantised, or fresh keys.

    q_all [tokens, heads, d], kv_cache [n, 1, d], d 576 or 512. The result is [tokens, heads, 512].
    """

    def hook(original, backend, q_all, kv_cache, v_head_dim, page_table_1, sm_scale, topk_length=None, attn_sink=None):  # fmt: skip
        def serve():
            # Like SGLang, ignore lengths that are not those of the rows.
            lengths = topk_length
            if lengths is not None and lengths.shape[0] != q_all.shape[0]:
                lengths = None
            return flash_mla.flash_mla_sparse_fwd(
                q_all, kv_cache, page_table_1.unsqueeze(1), sm_scale, v_head_dim, attn_sink, lengths,
                return_log2_lse=False,
            )[0]  # fmt: skip

        def theirs():
            return original(
                backend, q_all=q_all, kv_cache=kv_cache, v_head_dim=v_head_dim, page_table_1=page_table_1,
                sm_scale=sm_scale, topk_length=topk_length, attn_sink=attn_sink,
            )  # fmt: skip

        return _or_original(tally, "_forward_flashmla_sparse", serve, theirs, q_all)

    return hook


def flash_mla_with_kvcache(tally: Tally) -> Callable[..., Any]:
    """SGLang's facade of FlashMLA's decode: dense pages, and V4's two caches by list.

    get_mla_metadata is not replaced: it costs one launch per step, and calls that fall back to the original need its result.
    """
    flash_mla.scale_policy = "raw_f32"

    def hook(original, *args, **kwargs):
        call = dict(zip(_FACADE_NAMES, args), **kwargs)

        def serve():
            schedule = {}
            if call.get("num_splits") is None:  # SGLang's own object, or none; a pair is not read
                schedule = {"tile_scheduler_metadata": flash_mla.FlashMLASchedMeta(), "num_splits": None}
            return flash_mla.sglang_flash_mla_with_kvcache(**{**call, **schedule})

        name = "flash_mla_with_kvcache"
        return _or_original(tally, name, serve, lambda: original(*args, **kwargs), call["q"])

    return hook


_FACADE_NAMES = (
    "q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata", "num_splits",
    "softmax_scale", "causal", "descale_q", "descale_k", "is_fp8_kvcache", "indices", "attn_sink",
    "extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length", "kv_format",
)  # fmt: skip


def flash_mla_sparse_fwd(tally: Tally) -> Callable[..., Any]:
    """SGLang's facade of FlashMLA's sparse prefill; max_logits is None, which SGLang does not read.

    The LSE is in base 2 like the legacy kernel's, or a natural log with use_legacy=False.
    """

    def hook(original, q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, *, use_legacy=True):  # fmt: skip
        def serve():
            return flash_mla.flash_mla_sparse_fwd(
                q, kv, indices, sm_scale, d_v, attn_sink, topk_length,
                return_log2_lse=True if use_legacy else None,
            )  # fmt: skip

        def theirs():
            return original(
                q, kv, indices, sm_scale, d_v, attn_sink, topk_length, use_legacy=use_legacy
            )

        return _or_original(tally, "flash_mla_sparse_fwd", serve, theirs, q)

    return hook
