"""Stubs of the classes of vLLM that lathe_vllm imports, to run its methods without vLLM. None of them is called."""

from __future__ import annotations

import enum
import sys
import types
from typing import Generic, TypeVar

T = TypeVar("T")


class SparseMLACommonImpl(Generic[T]):
    def _forward_mqa_kernel(
        self, q, kv_cache, topk_indices, valid_counts, *, layer, block_size, is_decode
    ):
        raise NotImplementedError


class SparseMLACommonMetadataBuilder(Generic[T]):
    pass


class SparseMLACommonMetadata:
    pass


class MLACommonImpl(Generic[T]):
    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        raise NotImplementedError


class MLACommonMetadataBuilder(Generic[T]):
    pass


class MLACommonMetadata:
    pass


class MLACommonBackend:
    pass


class HiSparseMLAIndexGroup:
    pass


class AttentionBackend:
    pass


class MultipleOf:
    def __init__(self, base):
        self.base = base


QueryLenSupport = enum.Enum("QueryLenSupport", ["UNIFORM"])
AttentionCGSupport = enum.Enum("AttentionCGSupport", ["UNIFORM_BATCH"])


def flat_kv_row_view(kv_cache, block_size):
    """[blocks, block_size, width] as rows, including other layers' rows between its blocks."""
    blocks, _, width = kv_cache.shape
    stride = kv_cache.stride(0) // width
    return kv_cache.as_strided(((blocks - 1) * stride + block_size, width), (width, 1)), stride


def triton_convert_req_index_to_global_index(*args, **kwargs):
    raise NotImplementedError


def install() -> None:
    here = sys.modules[__name__]
    for name in (
        "vllm",
        "vllm.model_executor",
        "vllm.model_executor.layers",
        "vllm.model_executor.layers.attention",
        "vllm.model_executor.layers.attention.mla_attention",
        "vllm.model_executor.layers.attention.sparse_mla_attention",
        "vllm.v1",
        "vllm.v1.attention",
        "vllm.v1.attention.backend",
        "vllm.v1.attention.backends",
        "vllm.v1.attention.backends.mla",
        "vllm.v1.attention.backends.mla.index_group",
        "vllm.v1.attention.backends.mla.sparse_utils",
    ):
        module = types.ModuleType(name)
        module.__dict__.update(vars(here))
        sys.modules[name] = module
