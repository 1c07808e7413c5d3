"""A vLLM attention backend over Lathe's kernels: decode of dense latent attention (DeepSeek V3, Kimi K2 and similar), on Hopper.

Heads are not padded. Prefill stays with vLLM's own kernels.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport

import lathe
from lathe.compat.plugin import differing, need_place

# The layout of a cache and the kind of kernel. fp8 has one scale, and vLLM's queries are fp8, too.
_CACHES = {
    "auto": ("mla_bf16", "inplace"),
    "bfloat16": ("mla_bf16", "inplace"),
    "fp8": ("mla_fp8", "native"),
    "fp8_e4m3": ("mla_fp8", "native"),
}


def misfit() -> str | None:
    """How this vLLM's classes differ from those that the backend is based on; None if they do not."""
    known = ("self", "q", "kv_c_and_k_pe_cache", "attn_metadata", "layer")
    reason = differing(MLACommonImpl.forward_mqa, known)
    return None if reason is None else f"MLACommonImpl.forward_mqa differs: {reason}"


class LatheMLABuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    query_len_support = QueryLenSupport.UNIFORM
    # Requests with at most this many tokens count as decode.
    reorder_batch_threshold = 128


class LatheMLAImpl(MLACommonImpl[MLACommonMetadata]):
    def __init__(
        self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
        logits_soft_cap, attn_type, kv_sharing_target_layer_name, **mla_args,
    ):  # fmt: skip
        for name, given in (
            ("alibi_slopes", alibi_slopes),
            ("sliding_window", sliding_window),
            ("logits_soft_cap", logits_soft_cap),
        ):
            if given:
                raise NotImplementedError(f"{name}: wanted none for LATHE_MLA, got {given}")
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
            logits_soft_cap, attn_type, kv_sharing_target_layer_name, **mla_args,
        )  # fmt: skip

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        """Attention of decode rows, equally many per request, to the keys up to their positions.

        q: [tokens, heads, 576], or the pair (nope [.., 512], rope [.., 64]); with an fp8 cache float8_e4m3fn.
        kv_c_and_k_pe_cache: [blocks, block_size, 576]. Returns (out bfloat16 [tokens, heads, 512], None).
        """
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        need_place("LATHE_MLA", q)
        layout, kind = _CACHES[self.kv_cache_dtype]
        decode = attn_metadata.decode
        tokens, requests = q.shape[0], attn_metadata.num_decodes
        rows = tokens // requests
        call = {}
        if rows > 1:
            call["q_indptr"] = torch.arange(
                0, tokens + 1, rows, dtype=torch.int32, device=q.device
            )
            if q.is_cuda:
                call["max_request_rows"] = rows
        if kind == "native":
            # DLPack may have no float8; the kernels take codes.
            q = q.view(torch.uint8)
            call |= {"q_scale": layer._q_scale_float, "key_scale": layer._k_scale_float}
        blocks, block_size, width = kv_c_and_k_pe_cache.shape
        data = kv_c_and_k_pe_cache.view(torch.uint8)
        pool = data.as_strided((blocks, block_size * data.shape[2]), (data.stride(0), 1))
        out = torch.empty(
            (tokens, q.shape[1], self.kv_lora_rank), dtype=torch.bfloat16, device=q.device
        )
        lathe.attend(
            q, pool, layout, block_size, attention="mla", kind=kind,
            page_table=decode.block_table[:requests].contiguous(), kv_lens=decode.seq_lens[:requests],
            scale=self.scale, out=out, **call,
        )  # fmt: skip
        return out, None


class LatheMLABackend(MLACommonBackend):
    supported_dtypes = [torch.bfloat16]
    supported_kv_cache_dtypes = list(_CACHES)

    @staticmethod
    def get_name():
        return "LATHE_MLA"

    @staticmethod
    def get_builder_cls():
        return LatheMLABuilder

    @staticmethod
    def get_impl_cls():
        return LatheMLAImpl

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [64]

    @classmethod
    def get_supported_head_sizes(cls):
        return [576]

    @classmethod
    def supports_compute_capability(cls, capability):
        return capability.major == 9
