"""SGLang's own loader, registry and classes from PyPI with lathe-sglang, on a machine without a GPU.

The hooked methods run on tensors in host memory, through Lathe's CPU kernels, against float64 (oracle.py). The fp8 pages are written by
SGLang's writer in Triton's interpreter.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

# Before SGLang is imported.
os.environ["TRITON_INTERPRET"] = "1"
os.environ["LATHE_SGLANG"] = "all"
os.environ.pop("LATHE_SGLANG_STRICT", None)
from lathe.compat import flash_mla, install  # noqa: E402

install("flash_mla")  # a dependency of SGLang's facade that needs a GPU

import lathe_sglang  # noqa: E402
import oracle  # noqa: E402
import torch  # noqa: E402
from lathe.compat.plugin import Tally, parameters  # noqa: E402
from lathe_sglang import hooks  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402

SCALE = 0.07
VERSION = importlib.metadata.version("sglang")
HAS_FACADE = (
    importlib.util.find_spec("sglang.kernels.ops.attention.flash_mla_interface") is not None
)


@pytest.fixture(scope="module")
def backend_class():
    load_plugins()
    from sglang.srt.layers.attention.dsa_backend import DeepseekSparseAttnBackend

    return DeepseekSparseAttnBackend


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(7)


def backend(fp8: bool, **kwargs) -> SimpleNamespace:
    dim = 656 if fp8 else 576
    fields = dict(dsa_kv_cache_store_fp8=fp8, kv_cache_dim=dim, device_sm_major=9, flashmla_kv_num_q_heads=64)
    return SimpleNamespace(**{**fields, **kwargs})


def call(rng, kv_cache, rows, heads=16, d=576):
    """The arguments of a call and its expected result, without the keys."""
    q = torch.randn(5, heads, d, generator=rng).bfloat16()
    lists = oracle.lists(rng, rows, [128, 0, 1, 77, 128], 128)
    layer = SimpleNamespace(tp_q_head_num=heads, head_dim=d, v_head_dim=512)
    return q, lists, dict(kv_cache=kv_cache, v_head_dim=512, sm_scale=SCALE, page_table_1=lists), layer


def test_hooks_hold(backend_class):
    for name in ("_forward_flashmla_kv", "_forward_flashmla_sparse"):
        function = getattr(backend_class, name)
        assert parameters(function.__wrapped__) == lathe_sglang.TARGETS["sparse"][
            f"sglang.srt.layers.attention.dsa_backend.DeepseekSparseAttnBackend.{name}"
        ][0]
    assert VERSION in lathe_sglang.TESTED


@pytest.mark.skipif(not HAS_FACADE, reason="SGLang's facade of FlashMLA is of 0.5.23")
def test_facade_is_hooked_where_it_was_imported_by_name(backend_class):
    from sglang.kernels.ops.attention import flash_mla_interface as facade
    from sglang.srt.layers.attention import flashmla_backend

    known = lathe_sglang.TARGETS["dense"]
    for name in ("flash_mla_with_kvcache", "flash_mla_sparse_fwd"):
        target = f"sglang.kernels.ops.attention.flash_mla_interface.{name}"
        assert parameters(getattr(facade, name).__wrapped__) == known[target][0]
    assert flashmla_backend.flash_mla_with_kvcache is facade.flash_mla_with_kvcache
    assert facade.get_mla_metadata.__name__ == "get_mla_metadata"
    assert not hasattr(facade.get_mla_metadata, "__wrapped__")


def test_pages_of_sglangs_writer(backend_class, rng):
    try:
        writer = importlib.import_module("sglang.kernels.ops.quantization.dsa_quant_k_cache")
    except ImportError:
        writer = importlib.import_module("sglang.kernels.ops.attention.dsa.quant_k_cache")
    keys = torch.randn(3, 64, 1, 576, generator=rng).bfloat16()
    cache = writer.quantize_k_cache(keys)
    stored = oracle.rows_of_fp8(cache)
    # The plug-in must know that they are not powers of two.
    scales = cache.view(torch.uint8).reshape(-1, 656)[:, 512:528].contiguous().view(torch.float32)
    assert (torch.frexp(scales)[0] != 0.5).any()
    q, lists, args, layer = call(rng, cache, 192)
    before = lathe_sglang.tally.served
    out = backend_class._forward_flashmla_kv(backend(True), q_all=q, layer=layer, metadata=None, **args)
    assert lathe_sglang.tally.served == before + 1
    assert out.shape == (5, 1, 16, 512) and out.dtype == torch.bfloat16
    oracle.check(out[:, 0], oracle.attend(q, stored, lists, SCALE)[0])


@pytest.mark.parametrize("heads", [1, 8, 128])
def test_pages_without_rope(backend_class, rng, heads):
    cache = oracle.pages_of_656(rng, 192, pow2=False)[:, :528].contiguous()
    q, lists, args, layer = call(rng, cache.view(192, 1, 528), 192, heads, d=512)
    out = backend_class._forward_flashmla_kv(
        backend(True, kv_cache_dim=528), q_all=q, layer=layer, metadata=None, **args
    )
    oracle.check(out[:, 0], oracle.attend(q, oracle.rows_of_fp8(cache), lists, SCALE)[0])


@pytest.mark.parametrize("heads", [1, 8, 128])
@pytest.mark.parametrize("d", [576, 512])
def test_bf16_pool_is_read_as_it_is(backend_class, rng, heads, d):
    pool = torch.randn(192, 1, d, generator=rng).bfloat16()
    q, lists, args, layer = call(rng, pool, 192, heads, d)
    flat = q.view(5, heads * d)
    theirs = backend(False, kv_cache_dim=d)
    out = backend_class._forward_flashmla_kv(theirs, q_all=flat, layer=layer, metadata=None, **args)
    oracle.check(out[:, 0], oracle.attend(q, pool[:, 0], lists, SCALE)[0])


@pytest.mark.parametrize("d", [576, 512])
def test_rows(backend_class, rng, d):
    rows = torch.randn(150, 1, d, generator=rng).bfloat16()
    q, lists, args, _ = call(rng, rows, 150, d=d)
    lengths = torch.tensor([100, 0, 1, 77, 128], dtype=torch.int32)
    for given in (lengths, lengths[:3], None):
        out = backend_class._forward_flashmla_sparse(backend(False), q_all=q, topk_length=given, **args)
        seen = lists.clone()
        if given is lengths:
            seen[0, 100:] = -1
        oracle.check(out, oracle.attend(q, rows[:, 0], seen, SCALE)[0])


@pytest.mark.skipif(not HAS_FACADE, reason="SGLang's facade of FlashMLA is of 0.5.23")
def test_dense_by_the_facade(backend_class, rng):
    from sglang.kernels.ops.attention.flash_mla_interface import flash_mla_with_kvcache

    cache = torch.randn(6, 64, 1, 576, generator=rng).bfloat16()
    q = torch.randn(2, 1, 16, 576, generator=rng).bfloat16()
    table = torch.tensor([[4, 1, 0], [3, 5, 2]], dtype=torch.int32)
    lens = torch.tensor([130, 64], dtype=torch.int32)
    before = lathe_sglang.tally.served
    out, lse = flash_mla_with_kvcache(
        q=q, k_cache=cache, block_table=table, cache_seqlens=lens, head_dim_v=512,
        tile_scheduler_metadata=torch.zeros(4, 8, dtype=torch.int32),
        num_splits=torch.zeros(3, dtype=torch.int32), softmax_scale=SCALE, causal=True,
    )  # fmt: skip
    assert lathe_sglang.tally.served == before + 1
    lists = torch.full((2, 192), -1)
    for r in range(2):
        at = torch.arange(int(lens[r]))
        lists[r, : len(at)] = table[r, at // 64] * 64 + at % 64
    want = oracle.attend(q[:, 0], cache.view(-1, 576), lists, SCALE)
    oracle.check(out[:, 0], want[0])
    torch.testing.assert_close(lse[:, :, 0].double(), want[1], rtol=1e-4, atol=1e-4)


def test_falls_back_counted_and_said_once(rng, caplog):
    tally = Tally("lathe_sglang", strict=False)
    hook = hooks.forward_flashmla_kv(tally)
    asked = []
    cache = torch.zeros(192, 1, 352, dtype=torch.uint8)
    q, _, args, layer = call(rng, cache, 192)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            got = hook(
                lambda *a, **kw: asked.append((a, kw)) or "theirs",
                backend(True, kv_cache_dim=352), q_all=q, layer=layer, metadata=None, **args,
            )  # fmt: skip
    assert got == "theirs" and len(asked) == 3
    assert asked[0][1]["q_all"] is q and asked[0][1]["page_table_1"] is args["page_table_1"]
    assert sum(tally.fallen_back.values()) == 3 and tally.served == 0
    assert len(caplog.records) == 1
    assert "656 or 528 bytes, or 576 or 512 bfloat16 a token, got 352 bytes" in caplog.records[0].getMessage()


def test_strict_refuses(rng):
    hook = hooks.forward_flashmla_kv(Tally("lathe_sglang", strict=True))
    cache = torch.zeros(192, 1, 352, dtype=torch.uint8)
    q, _, args, layer = call(rng, cache, 192)
    with pytest.raises(ValueError, match="unset LATHE_SGLANG_STRICT"):
        hook(None, backend(True, kv_cache_dim=352), q_all=q, layer=layer, metadata=None, **args)


def test_missing_memory_is_not_a_reason():
    def serve():
        raise flash_mla.FlashMlaError("exhausted", "scratch", "1 GiB", "none")

    tally = Tally("lathe_sglang", strict=False)
    with pytest.raises(flash_mla.FlashMlaError):
        hooks._or_original(tally, "f", serve, lambda: "theirs", torch.zeros(1))
    assert not tally.fallen_back


ACTIVATE = """
import logging; logging.basicConfig(format="%(message)s")
import lathe_sglang
{change}
lathe_sglang.activate()
print("went on")
"""


def run(change: str = "", **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", ACTIVATE.format(change=change)],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


def test_another_release_is_left_alone_or_stops_a_strict_engine():
    other = (
        "lathe_sglang.TARGETS = {'sparse': {k: (v[0] + ('more',), v[1]) "
        "for k, v in lathe_sglang.TARGETS['sparse'].items()}}"
    )
    lax = run(other, LATHE_SGLANG="sparse")
    assert "went on" in lax.stdout
    assert "replaced nothing; left _forward_flashmla_kv (wanted (self, q_all" in lax.stderr
    strict = run(other, LATHE_SGLANG="sparse", LATHE_SGLANG_STRICT="1")
    assert strict.returncode == 1 and "went on" not in strict.stdout
    assert "does not allow that" in strict.stderr and "Traceback" not in strict.stderr


def test_off_and_wrong_switches():
    assert "went on" in run(LATHE_SGLANG="off").stdout
    wrong = run(LATHE_SGLANG="on")
    assert "LATHE_SGLANG: wanted one of off, sparse, dense, all, got on" in wrong.stderr
