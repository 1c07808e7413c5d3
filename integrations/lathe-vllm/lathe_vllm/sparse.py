"""A vLLM attention backend over Lathe's kernels: sparse latent attention of DeepSeek V3.2, GLM-5 and similar models, on Hopper.

vLLM's base class keeps the metadata and converts the indexer's choice to rows of the cache; one method attends. Heads are not padded,
and there is no workspace for a dequantised prefix.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, MultipleOf
from vllm.v1.attention.backends.mla.index_group import HiSparseMLAIndexGroup
from vllm.v1.attention.backends.mla.sparse_utils import (
    flat_kv_row_view,
    triton_convert_req_index_to_global_index,
)

import lathe
from lathe.compat.plugin import differing, need_place, pages

# vLLM's writer of 656 B pages rounds scales to powers of two since vllm#49435 (2026-09); before, it stored amax / 448. The GPU reads
# both alike. Formats with other names, "fp8" among them, have 576 B and one scale.
_LAYOUTS = {
    "auto": "mla_bf16",
    "bfloat16": "mla_bf16",
    "fp8_ds_mla": "mla_fp8_block",
}

_KERNEL_METHOD = ("self", "q", "kv_cache", "topk_indices", "valid_counts", "layer", "block_size", "is_decode")
_HAS_KERNEL_METHOD = hasattr(SparseMLACommonImpl, "_forward_mqa_kernel")


def misfit() -> str | None:
    """How this vLLM's classes differ from those that the backend is based on; None if they do not."""
    if _HAS_KERNEL_METHOD:
        known, name = _KERNEL_METHOD, "_forward_mqa_kernel"
    else:  # 0.32 and before: each backend converts the lists itself
        known, name = ("self", "q", "kv_c_and_k_pe_cache", "attn_metadata", "layer"), "forward_mqa"
    reason = differing(getattr(SparseMLACommonImpl, name), known)
    if reason is None:
        return None
    return f"SparseMLACommonImpl.{name} differs: {reason}"


class LatheMLASparseBuilder(SparseMLACommonMetadataBuilder[SparseMLACommonMetadata]):
    metadata_cls = SparseMLACommonMetadata
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Requests with at most this many tokens count as decode; all rows are treated alike.
        self._init_reorder_batch_threshold(128, supports_spec_as_decode=True)


class LatheMLASparseImpl(SparseMLACommonImpl[SparseMLACommonMetadata]):
    # Like vLLM's own backend for Hopper: layers share lists only if all rows are decode.
    group_conversion_decode_only = True
    # Decode context parallelism merges by these; the base class splits the lists.
    can_return_lse_for_decode = supports_dcp = _HAS_KERNEL_METHOD
    lse_base_on_e = True

    def __init__(
        self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
        logits_soft_cap, attn_type, kv_sharing_target_layer_name, topk_indices_buffer=None, indexer=None,
        **mla_args,
    ):  # fmt: skip
        for name, given in (
            ("alibi_slopes", alibi_slopes),
            ("sliding_window", sliding_window),
            ("logits_soft_cap", logits_soft_cap),
        ):
            if given:
                raise NotImplementedError(f"{name}: wanted none for LATHE_MLA_SPARSE, got {given}")
        if kv_cache_dtype not in _LAYOUTS:
            raise NotImplementedError(_wrong_cache(kv_cache_dtype))
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
            logits_soft_cap, attn_type, kv_sharing_target_layer_name, indexer=indexer,
            topk_indices_buffer=topk_indices_buffer, **mla_args,
        )  # fmt: skip
        self.supports_quant_query_input = False
        if not _HAS_KERNEL_METHOD and isinstance(self.index_group, HiSparseMLAIndexGroup):
            raise NotImplementedError("hisparse_config: wanted none for LATHE_MLA_SPARSE before vLLM 0.33")

    def _forward_mqa_kernel(
        self, q, kv_cache, topk_indices, valid_counts, *, layer, block_size, is_decode
    ):
        """Attention of each row to its listed rows of the cache, decode and prefill alike.

        q: [tokens, heads, 576], or the pair (nope [.., 512], rope [.., 64]). kv_cache: [blocks, block_size, 576 or 656].
        topk_indices: int32 [tokens, topk], the first valid_counts int32 [tokens] of each row. Returns (out [tokens, heads, 512] in q's
        dtype, natural-log LSE float32 [tokens, heads], -inf for a row without keys, or None if not needed).
        """
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        need_place("LATHE_MLA_SPARSE", q)
        rows, _ = flat_kv_row_view(kv_cache, block_size)
        pool, page_size = pages(rows)
        out = q.new_empty((q.shape[0], q.shape[1], self.kv_lora_rank))
        lse = q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32)
        lathe.attend(
            q, pool, _LAYOUTS[self.kv_cache_dtype], page_size, attention="dsa", indices=topk_indices,
            index_lengths=valid_counts, scale=self.scale, out=out, lse=lse,
        )  # fmt: skip
        return out, lse if self.need_to_return_lse_for_decode else None

    if not _HAS_KERNEL_METHOD:

        def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
            tokens = (q[0] if isinstance(q, tuple) else q).shape[0]
            block_size = attn_metadata.block_size
            _, stride = flat_kv_row_view(kv_c_and_k_pe_cache, block_size)
            chosen = self.topk_indices_buffer[:tokens]
            rows, counts = triton_convert_req_index_to_global_index(
                attn_metadata.req_id_per_token[:tokens],
                attn_metadata.block_table,
                chosen,
                BLOCK_SIZE=block_size,
                BLOCK_STRIDE_ROWS=stride,
                NUM_TOPK_TOKENS=chosen.shape[1],
                return_valid_counts=True,
            )
            return self._forward_mqa_kernel(
                q, kv_c_and_k_pe_cache, rows, counts, layer=layer, block_size=block_size,
                is_decode=attn_metadata.num_decode_tokens >= tokens,
            )  # fmt: skip


def _wrong_cache(kv_cache_dtype):
    return (
        f"--kv-cache-dtype: wanted {', '.join(_LAYOUTS)} for LATHE_MLA_SPARSE, got {kv_cache_dtype}"
        "; fp8_ds_mla is the fp8 format that it reads"
    )


class LatheMLASparseBackend(AttentionBackend):
    supported_dtypes = [torch.bfloat16]
    supported_kv_cache_dtypes = list(_LAYOUTS)

    @staticmethod
    def get_name():
        return "LATHE_MLA_SPARSE"

    @staticmethod
    def get_builder_cls():
        return LatheMLASparseBuilder

    @staticmethod
    def get_impl_cls():
        return LatheMLASparseImpl

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(64)]  # as the indexer's cache; the kernels take any

    @classmethod
    def customize_spec(cls, spec):
        try:
            from vllm.v1.attention.backends.mla.sparse_utils import align_blocks_to_rows
        except ImportError:  # 0.31: blocks are already whole rows apart
            return spec
        return align_blocks_to_rows(spec)

    @classmethod
    def get_supported_head_sizes(cls):
        return [576]

    @classmethod
    def is_mla(cls):
        return True

    @classmethod
    def is_sparse(cls):
        return True

    @classmethod
    def supports_compute_capability(cls, capability):
        return capability.major == 9

    @classmethod
    def supports_combination(
        cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix,
        device_capability,
    ):  # fmt: skip
        if kv_cache_dtype is not None and kv_cache_dtype not in cls.supported_kv_cache_dtypes:
            return _wrong_cache(kv_cache_dtype)
        return None


class LatheFlashMLASparseBackend(LatheMLASparseBackend):
    """The same under the name for which vLLM reads "fp8" as fp8_ds_mla, for LATHE_VLLM=override."""

    supported_kv_cache_dtypes = [*_LAYOUTS, "fp8"]

    @staticmethod
    def get_name():
        return "FLASHMLA_SPARSE"
