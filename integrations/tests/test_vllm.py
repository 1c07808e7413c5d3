"""vLLM's own registry and classes from PyPI with lathe-vllm, on a machine without a GPU.

The backend's method runs on tensors in host memory, through Lathe's CPU kernels, against float64 (oracle.py), called by vLLM's base
class with lists of positions; Triton's conversion of lists, which needs a GPU, is replaced by a plain one here.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

os.environ.pop("LATHE_VLLM", None)
os.environ.pop("LATHE_VLLM_STRICT", None)
import lathe_vllm  # noqa: E402
import oracle  # noqa: E402
import torch  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

SCALE = 0.07
TOPK = 128
VERSION = importlib.metadata.version("vllm")
MEMBER = "CUSTOM" if VERSION.startswith("0.31.") else "LATHE_MLA_SPARSE"


@pytest.fixture(scope="module")
def backend():
    load_general_plugins()
    return AttentionBackendEnum[MEMBER].get_class()


def request(backend, **changes):
    from vllm.platforms.interface import DeviceCapability

    fields = dict(
        head_size=576, dtype=torch.bfloat16, kv_cache_dtype="fp8_ds_mla", block_size=64, use_mla=True,
        has_sink=False, use_sparse=True, use_mm_prefix=False, use_per_head_quant_scales=False,
        device_capability=DeviceCapability(9, 0), attn_type="decoder",
    )  # fmt: skip
    return backend.validate_configuration(**{**fields, **changes})


def test_registered_by_vllms_loader(backend):
    assert backend.__name__ == "LatheMLASparseBackend"
    assert not backend.__abstractmethods__ and not backend.get_impl_cls().__abstractmethods__
    lathe_vllm.activate()  # a second time is harmless
    assert VERSION in lathe_vllm.TESTED


def test_what_is_taken_and_refused(backend):
    from vllm.platforms.interface import DeviceCapability

    for dtype in ("auto", "bfloat16", "fp8_ds_mla", None):
        assert request(backend, kv_cache_dtype=dtype) == []
    assert any("fp8_ds_mla is the fp8 format" in r for r in request(backend, kv_cache_dtype="fp8"))
    for changes in (
        {"device_capability": DeviceCapability(10, 0)},
        {"head_size": 512},
        {"has_sink": True},
        {"use_sparse": False},
        {"dtype": torch.float16},
        {"block_size": 48},
    ):
        assert request(backend, **changes)


def implementation(backend, kv_cache_dtype, lse=False):
    """An object of the class without vLLM's configuration, with the fields that its methods read."""
    made = object.__new__(backend.get_impl_cls())
    made.kv_cache_dtype = kv_cache_dtype
    made.scale = SCALE
    made.kv_lora_rank = 512
    made.need_to_return_lse_for_decode = lse
    made.dcp_world_size = 1
    made.index_group = None
    return made


def convert(req, block_table, chosen, *, BLOCK_SIZE, BLOCK_STRIDE_ROWS, return_valid_counts, **_):  # noqa: N803
    """Positions as rows of the cache, valid ones first, and their number."""
    made = torch.full_like(chosen, -1)
    counts = torch.zeros(len(chosen), dtype=torch.int32)
    for i, positions in enumerate(chosen.tolist()):
        rows = [
            int(block_table[req[i], p // BLOCK_SIZE]) * BLOCK_STRIDE_ROWS + p % BLOCK_SIZE
            for p in positions
            if p >= 0
        ]
        made[i, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
        counts[i] = len(rows)
    assert return_valid_counts
    return made, counts


@pytest.mark.parametrize("between", [0, 3])  # blocks of other layers between this one's
@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "fp8_ds_mla"])
def test_attends_by_vllms_forward(backend, monkeypatch, kv_cache_dtype, between):
    rng = torch.Generator().manual_seed(11)
    blocks, heads, fp8 = 6, 16, kv_cache_dtype == "fp8_ds_mla"
    if fp8:
        memory = oracle.pages_of_656(rng, blocks * (1 + between) * 64, pow2=True)
        keys = oracle.rows_of_fp8(memory)
    else:
        memory = torch.randn(blocks * (1 + between) * 64, 576, generator=rng).bfloat16()
        keys = memory.double()
    cache = memory.view(blocks, (1 + between), 64, -1)[:, 0]
    table = torch.tensor([[4, 1], [2, 5]], dtype=torch.int32)
    chosen = torch.full((3, TOPK), -1, dtype=torch.int32)
    chosen[0, :100] = torch.randperm(128, generator=rng)[:100].int()
    chosen[1, 5] = 127  # a hole before it
    q = torch.randn(3, heads, 576, generator=rng).bfloat16()
    made = implementation(backend, kv_cache_dtype)
    made.topk_indices_buffer = chosen
    metadata = SimpleNamespace(
        num_decode_tokens=3, block_size=64, block_table=table,
        req_id_per_token=torch.tensor([0, 1, 1], dtype=torch.int32),
    )  # fmt: skip
    # Before 0.33 each backend has a forward_mqa of its own.
    own = "forward_mqa" in vars(backend.get_impl_cls())
    base = "vllm.model_executor.layers.attention.sparse_mla_attention"
    module = sys.modules["lathe_vllm.sparse" if own else base]
    monkeypatch.setattr(module, "triton_convert_req_index_to_global_index", convert)
    rows, _ = convert(
        metadata.req_id_per_token, table, chosen, BLOCK_SIZE=64, BLOCK_STRIDE_ROWS=64 * (1 + between),
        return_valid_counts=True,
    )  # fmt: skip
    want = oracle.attend(q, keys, rows, SCALE)
    for given in (q, (q[..., :512], q[..., 512:])):
        out, lse = made.forward_mqa(given, cache, metadata, None)
        assert lse is None and out.dtype == torch.bfloat16
        oracle.check(out, want[0])
    made.need_to_return_lse_for_decode = True
    out, lse = made.forward_mqa(q, cache, metadata, None)
    # vLLM's merge of context-parallel ranks: natural logs, -inf where a rank has none.
    torch.testing.assert_close(lse.double(), want[1], rtol=1e-4, atol=1e-4)
    assert (lse[2] == float("-inf")).all() and (out[2] == 0).all()


@pytest.mark.skipif(MEMBER == "CUSTOM", reason="vLLM 0.31 has one name for all, which the sparse one takes")
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "fp8"])
def test_dense_decode(backend, kv_cache_dtype, rows):
    dense = AttentionBackendEnum["LATHE_MLA"].get_class()
    assert not dense.__abstractmethods__ and not dense.get_impl_cls().__abstractmethods__
    assert request(dense, kv_cache_dtype=kv_cache_dtype, use_sparse=False) == []
    assert request(dense, kv_cache_dtype=kv_cache_dtype)
    rng = torch.Generator().manual_seed(5)
    kind = torch.float8_e4m3fn if kv_cache_dtype == "fp8" else torch.bfloat16
    # Blocks of another layer lie between this one's.
    memory = torch.randn(12, 64, 576, generator=rng).to(kind)
    cache = memory[::2]
    q = torch.randn(3 * rows, 16, 576, generator=rng).to(kind)
    table = torch.tensor([[4, 1, 0], [2, 5, 0], [3, 0, 0]], dtype=torch.int32)
    lens = torch.tensor([130, 64, rows], dtype=torch.int32)
    made = object.__new__(dense.get_impl_cls())
    made.kv_cache_dtype, made.scale, made.kv_lora_rank = kv_cache_dtype, SCALE, 512
    metadata = SimpleNamespace(num_decodes=3, decode=SimpleNamespace(block_table=table, seq_lens=lens))
    q_scale, k_scale = (0.5, 2.0) if kv_cache_dtype == "fp8" else (1.0, 1.0)
    layer = SimpleNamespace(_q_scale_float=q_scale, _k_scale_float=k_scale)
    lists = torch.full((3 * rows, 192), -1)
    for row in range(3 * rows):
        at = torch.arange(int(lens[row // rows]) - rows + 1 + row % rows)
        lists[row, : len(at)] = table[row // rows, at // 64] * 64 + at % 64
    keys = cache.reshape(-1, 576).double() * k_scale
    want = oracle.attend(q.double() * q_scale, keys, lists, SCALE)[0]
    # vLLM makes one tensor of fp8 queries.
    pair = (q[..., :512], q[..., 512:])
    for given in (q,) if kv_cache_dtype == "fp8" else (q, pair):
        out, lse = made.forward_mqa(given, cache, metadata, layer)
        assert lse is None and out.dtype == torch.bfloat16
        oracle.check(out, want)


ACTIVATE = """
import logging; logging.basicConfig(format="%(message)s")
import lathe_vllm
{change}
lathe_vllm.activate()
from vllm.v1.attention.backends.registry import AttentionBackendEnum as backends
taken = backends.FLASHMLA_SPARSE.get_class()
print(taken.__module__, taken.get_name(), "fp8" in taken.supported_kv_cache_dtypes)
"""


def run(change: str = "", **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", ACTIVATE.format(change=change)],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


def test_override_reaches_vllms_own_choice():
    done = run(LATHE_VLLM="override")
    assert "lathe_vllm.sparse FLASHMLA_SPARSE True" in done.stdout, done.stderr
    assert "also in place of FLASHMLA_SPARSE" in done.stderr


def test_another_release_is_left_alone_or_stops_a_strict_engine():
    other = "lathe_vllm._misfit = lambda module: 'its method differs'"
    lax = run(other, LATHE_VLLM="override")
    assert "lathe_vllm" not in lax.stdout
    assert "registered nothing; left LATHE_MLA_SPARSE (its method differs)" in lax.stderr
    strict = run(other, LATHE_VLLM_STRICT="1")
    assert strict.returncode == 1 and "does not allow that" in strict.stderr
    assert strict.stdout == "" and "Traceback" not in strict.stderr


def test_off_and_wrong_switches():
    off = run(LATHE_VLLM="off")
    assert "vllm.v1" in off.stdout and "lathe" not in off.stderr
    wrong = run(LATHE_VLLM="on")
    assert "LATHE_VLLM: wanted one of off, name, override, got on" in wrong.stderr
