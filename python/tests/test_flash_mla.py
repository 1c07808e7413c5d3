"""lathe.compat.flash_mla on the CPU, against float64 written here over bytes that reference.py writes.

Arrays are numpy's with ml_dtypes, and torch's where it is installed.
"""

import inspect
import math
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import lathe
import reference as ref
from lathe.compat import _max_logits, flash_mla

BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
UNUSED = 2147483647
HEADS = 6


def bf16(rng, *shape):
    return rng.standard_normal(shape).astype(BF16)


def attend(q, keys, values, scale, sink=-math.inf):
    """One row and head in float64: out, lse."""
    if len(keys) == 0:
        return np.zeros(values.shape[1]), math.inf
    s = keys @ q * scale
    top = s.max()
    lse = top + math.log(np.exp(s - top).sum())
    out = np.exp(s - lse) @ values
    return out * (1 / (1 + np.exp(sink - lse))), lse


def expected(q, keys_of, scale, sinks=None):
    """q [b, s_q, h, d], keys_of(request, row) -> [n, d]: out [b, s_q, h, 512], lse [b, h, s_q]."""
    b, s_q, h, _ = q.shape
    out, lse = np.zeros((b, s_q, h, 512)), np.zeros((b, h, s_q))
    for r in range(b):
        for j in range(s_q):
            keys = keys_of(r, j).astype(np.float64)
            for i in range(h):
                sink = -math.inf if sinks is None else float(sinks[i])
                out[r, j, i], lse[r, i, j] = attend(
                    q[r, j, i].astype(np.float64), keys, keys[:, :512], scale, sink
                )
    return out, lse


def check(got, want):
    out, lse = (np.asarray(x, np.float64) for x in got)
    assert out.shape == want[0].shape and lse.shape == want[1].shape
    # bfloat16 has eight bits.
    np.testing.assert_allclose(out, want[0], rtol=2**-7, atol=1e-4)
    np.testing.assert_allclose(lse, want[1], rtol=1e-5, atol=1e-5)


def dense_case(d, s_q, dtype=BF16, seed=0):
    rng = np.random.default_rng(seed)
    lens = np.array([70, 0, 1, 129, 64], np.int32)
    q = rng.standard_normal((len(lens), s_q, HEADS, d)).astype(dtype)
    cache = np.full((9, 64, 1, d), np.nan, np.float32).astype(dtype)
    table = np.full((len(lens), 6), UNUSED, np.int32)
    free = iter(rng.permutation(9))
    for r, n in enumerate(lens):
        for at in range(n):
            if at % 64 == 0:
                table[r, at // 64] = next(free)
            cache[table[r, at // 64], at % 64, 0] = rng.standard_normal(d).astype(dtype)
    return q, cache, table, lens


def dense_keys(cache, table, lens, s_q, causal):
    def keys_of(r, j):
        n = max(0, lens[r] - s_q + j + 1) if causal else lens[r]
        at = np.arange(n)
        return cache[table[r, at // 64], at % 64, 0]

    return keys_of


@pytest.mark.parametrize("d", [576, 512])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("s_q", [1, 3])
def test_dense(s_q, causal, d):
    q, cache, table, lens = dense_case(d, s_q)
    meta, none = flash_mla.get_mla_metadata()
    assert none is None
    for _ in range(2):  # the schedule may be kept
        got = flash_mla.flash_mla_with_kvcache(
            q, cache, table, lens, 512, meta, None, 0.05, causal=causal
        )
        check(got, expected(q, dense_keys(cache, table, lens, s_q, causal), 0.05))
    assert got[0].dtype == BF16 and got[1].flags.c_contiguous


def test_dense_causal_rows_share_their_request_where_all_have_keys():
    q, cache, table, lens = dense_case(576, 3)
    keep = [0, 3, 4]
    q, table, lens = q[keep], table[keep], lens[keep]
    pair = flash_mla.get_mla_metadata(lens, 3 * HEADS, 1)
    assert pair[0].shape[1] == 8 and pair[1].shape == (4,)
    got = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, 512, *pair, causal=True)
    check(got, expected(q, dense_keys(cache, table, lens, 3, True), 576**-0.5))


def test_dense_float8():
    q, cache, table, lens = dense_case(576, 1, E4M3)
    pair = flash_mla.get_mla_metadata_dense_fp8(lens, HEADS, 1)
    scales = np.array([0.5], np.float32), np.array([2.0], np.float32)
    out, lse = flash_mla.flash_mla_with_kvcache_fp8(
        q, cache, table, lens, 512, *pair, 0.05, False, *scales
    )
    keys = dense_keys(cache.astype(np.float32) * 2, table, lens, 1, False)
    check((out, lse), expected(q.astype(np.float32) * 0.5, keys, 0.05))


def sparse_cache(layout, pages, page, pad, seed):
    """The cache [pages, page, 1, bytes] that FlashMLA gets, and all rows by slot."""
    rng = np.random.default_rng(seed)
    stride = layout.page_stride(page) + pad
    memory = np.full((pages, stride), 0xFF, np.uint8)
    rows = rng.standard_normal((pages * page, layout.row_elems)).astype(np.float32)
    slots = np.arange(pages * page)
    ref.encode(layout, rows, slots, memory, page)
    held = ref.decode(layout, memory, slots, page)
    width = layout.bytes_per_token
    view = np.lib.stride_tricks.as_strided(memory, (pages, page, 1, width), (stride, width, width, 1))
    return view, held, memory


def lists(rng, slots, b, s_q, topk):
    out = rng.integers(0, slots, (b, s_q, topk)).astype(np.int32)
    out[rng.random(out.shape) < 0.2] = -1
    out[rng.random(out.shape) < 0.1] = slots + 5
    out[1] = -1
    return out


def listed(held, index, length, r, j):
    mine = index[r, j] if length is None else index[r, j, : length[r]]
    return held[mine[(mine >= 0) & (mine < len(held))]]


@pytest.mark.parametrize("pad", [0, 656])
@pytest.mark.parametrize("s_q", [1, 2])
def test_sparse_v32(s_q, pad):
    layout = lathe.Layout("mla_fp8_block")
    cache, held, _ = sparse_cache(layout, 5, 64, pad, 1)
    rng = np.random.default_rng(2)
    q, index = bf16(rng, 4, s_q, HEADS, 576), lists(rng, 320, 4, s_q, 128)
    length = np.array([128, 5, 64, 0], np.int32)
    sinks = np.array([0, 1, -2, math.inf, -math.inf, 3], np.float32)
    for lengths in (None, length):
        meta, _ = flash_mla.get_mla_metadata()
        got = flash_mla.flash_mla_with_kvcache(
            q, cache.view(np.int8), None, None, 512, meta, None, 0.05, False, True, index, sinks,
            topk_length=lengths,
        )  # fmt: skip
        check(got, expected(q, lambda r, j: listed(held, index, lengths, r, j), 0.05, sinks))
        assert not np.asarray(got[0][:, :, 3], np.float32).any()


def test_sparse_without_rope_and_raw_scales():
    layout = lathe.Layout("mla_fp8_block(rope=0,scale=raw_f32)")
    cache, held, _ = sparse_cache(layout, 2, 64, 0, 3)
    rng = np.random.default_rng(4)
    q, index = bf16(rng, 3, 1, HEADS, 512), lists(rng, 128, 3, 1, 64)
    got = flash_mla.sglang_flash_mla_with_kvcache(
        q, cache, np.zeros((3, 0), np.int32), None, 512, flash_mla.FlashMLASchedMeta(), None, 0.05,
        False, None, None, True, index, kv_format="V32_NO_ROPE",
    )  # fmt: skip
    check(got, expected(q, lambda r, j: listed(held, index, None, r, j), 0.05))


@pytest.mark.parametrize("s_q", [1, 2])
def test_sparse_v4_with_an_extra_cache(s_q):
    layout = lathe.Layout("v4_fp8")
    cache, held, _ = sparse_cache(layout, 4, 64, 576, 5)
    extra, extra_held, _ = sparse_cache(layout, 70, 2, 0, 6)
    rng = np.random.default_rng(7)
    q = bf16(rng, 3, s_q, HEADS, 512)
    index, extra_index = lists(rng, 256, 3, s_q, 128), lists(rng, 140, 3, s_q, 64)
    length, extra_length = np.array([128, 9, 100], np.int32), np.array([64, 3, 20], np.int32)
    sinks = rng.standard_normal(HEADS).astype(np.float32)
    got = flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, 512, flash_mla.FlashMLASchedMeta(), None, 0.05, False, True, index,
        sinks, extra, extra_index, length, extra_length,
    )  # fmt: skip

    def keys_of(r, j):
        mine = listed(held, index, length, r, j), listed(extra_held, extra_index, extra_length, r, j)
        return np.concatenate(mine)

    check(got, expected(q, keys_of, 0.05, sinks))


@pytest.mark.parametrize("d", [576, 512])
@pytest.mark.parametrize("log2", [None, True, False])
def test_sparse_prefill(d, log2):
    rng = np.random.default_rng(8)
    q, kv = bf16(rng, 7, HEADS, d), bf16(rng, 50, 1, d)
    kv[49] = np.nan  # no list names it within its length
    index = lists(rng, 49, 7, 1, 128)
    index[2] = -1
    index[4, 0, 3:] = 49
    length = np.array([128, 128, 128, 64, 3, 0, 1], np.int32)
    out, max_logits, lse = flash_mla.flash_mla_sparse_fwd(
        q, kv, index, 0.05, topk_length=length, return_log2_lse=log2
    )
    want_out, want_lse = expected(
        q[:, None], lambda r, j: listed(kv[:49, 0], index, length, r, j), 0.05
    )
    assert max_logits is None
    if log2 is False:
        assert lse is None
        lse = want_lse[:, :, 0]
    elif log2:
        lse = lse * math.log(2)
    check((out[:, None], lse[:, :, None]), (want_out, want_lse))


def test_max_logits_of_sparse_prefill(monkeypatch):
    rng = np.random.default_rng(9)
    q, kv = bf16(rng, 5, HEADS, 576), bf16(rng, 50, 1, 576)
    kv[49] = np.nan
    index = lists(rng, 49, 5, 1, 24)
    index[2] = -1
    index[3, 0, 5:] = 49
    index[4, 0, ::2] = 1000
    length = np.array([24, 0, 24, 5, 24], np.int32)
    monkeypatch.setattr(flash_mla, "compute_max_logits", True)
    for numbers in (1 << 24, 2 * 24 * 576):  # all rows at once, and two at a time
        monkeypatch.setattr(_max_logits, "_NUMBERS", numbers)
        out, most, lse = flash_mla.flash_mla_sparse_fwd(q, kv, index, 0.05, topk_length=length)
        for row in range(5):
            keys = listed(kv[:49, 0], index, length, row, 0).astype(np.float64)
            logits = 0.05 * q[row].astype(np.float64) @ keys.T
            want = logits.max(1) if len(keys) else np.full(HEADS, -np.inf)
            np.testing.assert_allclose(most[row], want, rtol=1e-5, atol=1e-6)


def test_strided_q_and_a_callers_out():
    q, cache, table, lens = dense_case(576, 1)
    want = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, 512, *flash_mla.get_mla_metadata())
    wide = np.zeros((5, 1, HEADS, 700), BF16)
    wide[..., 100:676] = q
    memory = np.zeros((5, 1, HEADS + 2, 512), BF16)
    out = memory[:, :, 1:-1]
    got = flash_mla.flash_mla_with_kvcache(
        wide[..., 100:676], cache, table, lens, 512, *flash_mla.get_mla_metadata(), out=out
    )
    assert got[0] is out
    np.testing.assert_array_equal(out.view(np.uint16), want[0].view(np.uint16))
    assert not memory[:, :, [0, -1]].astype(np.float32).any()


def sparse_arguments():
    cache, _, _ = sparse_cache(lathe.Layout("mla_fp8_block"), 2, 64, 0, 1)
    rng = np.random.default_rng(2)
    return dict(
        q=bf16(rng, 2, 1, HEADS, 576), k_cache=cache, block_table=None, cache_seqlens=None,
        head_dim_v=512, tile_scheduler_metadata=flash_mla.FlashMLASchedMeta(),
        indices=np.zeros((2, 1, 64), np.int32), is_fp8_kvcache=True,
    )  # fmt: skip


def dense_arguments():
    q, cache, table, lens = dense_case(576, 1)
    return dict(
        q=q, k_cache=cache, block_table=table, cache_seqlens=lens, head_dim_v=512,
        tile_scheduler_metadata=flash_mla.FlashMLASchedMeta(),
    )  # fmt: skip


F16 = np.dtype(np.float16)
WRONG, UNSERVED = flash_mla.ArgumentError, flash_mla.FlashMlaError
REFUSED = [
    (dense_arguments, {"head_dim_v": 576}, WRONG, "head_dim_v"),
    (dense_arguments, {"q": np.zeros((5, HEADS, 576), BF16)}, WRONG, "q"),
    (dense_arguments, {"q": np.zeros((5, 1, HEADS, 576), F16)}, WRONG, "k_cache"),
    (dense_arguments, {"q": np.zeros((5, 1, HEADS, 576), F16), "k_cache": np.zeros((9, 64, 1, 576), F16)},
     UNSERVED, "q"),
    (dense_arguments, {"k_cache": np.zeros((9, 64, 2, 576), BF16)}, UNSERVED, "k_cache"),
    (dense_arguments, {"k_cache": np.zeros((9, 64, 1, 512), BF16)}, WRONG, "k_cache"),
    (dense_arguments, {"block_table": None}, WRONG, "block_table"),
    (dense_arguments, {"cache_seqlens": np.zeros(4, np.int32)}, WRONG, "block_table"),
    (dense_arguments, {"cache_seqlens": np.full(5, 1000, np.int32)}, WRONG, "page_table"),
    (dense_arguments, {"tile_scheduler_metadata": None}, WRONG, "tile_scheduler_metadata"),
    (dense_arguments, {"attn_sink": np.zeros(HEADS, np.float32)}, WRONG, "attn_sink"),
    (dense_arguments, {"out": np.zeros((5, 1, HEADS, 500), BF16)}, WRONG, "out"),
    (sparse_arguments, {"causal": True}, WRONG, "causal"),
    (sparse_arguments, {"is_fp8_kvcache": False}, WRONG, "is_fp8_kvcache"),
    (sparse_arguments, {"q": np.zeros((2, 1, HEADS, 512), BF16)}, WRONG, "q"),
    (sparse_arguments, {"indices": np.zeros((3, 1, 64), np.int32)}, WRONG, "indices"),
    (sparse_arguments, {"topk_length": np.zeros(3, np.int32)}, WRONG, "topk_length"),
    (sparse_arguments, {"topk_length": np.full(2, 65, np.int32)}, WRONG, "index_lengths[0]"),
    (sparse_arguments, {"attn_sink": np.zeros(5, np.float32)}, WRONG, "sink"),
    (sparse_arguments, {"k_cache": np.zeros((2, 64, 1, 528), np.uint8)}, UNSERVED, "k_cache"),
    (sparse_arguments, {"k_cache": np.zeros((2, 64, 1, 584), np.uint8)}, WRONG, "q"),
    (sparse_arguments, {"k_cache": np.zeros((2, 64, 1, 656), np.float32)}, WRONG, "k_cache"),
    (sparse_arguments, {"k_cache": np.zeros((2, 64, 2, 656), np.uint8)[:, :, :1]}, WRONG, "k_cache"),
    (sparse_arguments, {"kv_format": "V41"}, UNSERVED, "k_cache"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, change, kind, field", REFUSED)
def test_refusals(arguments, change, kind, field):
    with pytest.raises(kind) as caught:
        flash_mla.flash_mla_with_kvcache(**{**arguments(), **change})
    error = caught.value
    assert error.field == field and error.wanted and error.offered
    assert isinstance(error, (lathe.LatheError, RuntimeError))
    assert isinstance(error, AssertionError) == (kind is WRONG)


def test_a3_lists_are_not_cut_to_int32():
    wide, half = 2**32 + 1, 1.9
    narrow = {"cache_seqlens": (5,), "block_table": (5, 16)}
    sparse = {"topk_length": (2,), "indices": (2, 1, 64)}
    for arguments, lists in ((dense_arguments, narrow), (sparse_arguments, sparse)):
        for name, shape in lists.items():
            for number in (wide, -wide):
                call = {**arguments(), name: np.full(shape, number, np.int64)}
                with pytest.raises(WRONG, match=f"{name}: wanted numbers that int32 holds"):
                    flash_mla.flash_mla_with_kvcache(**call)
            for kind in (np.float32, np.float64, np.uint32, np.bool_):
                call = {**arguments(), name: np.full(shape, half, kind)}
                with pytest.raises(WRONG, match=f"{name}: wanted int32, got {np.dtype(kind).name}"):
                    flash_mla.flash_mla_with_kvcache(**call)
    q, kv = np.zeros((3, 8, 576), BF16), np.zeros((64, 1, 576), BF16)
    for name, given in (("indices", np.full((3, 1, 64), half)), ("topk_length", np.full(3, wide))):
        lists = {"indices": np.zeros((3, 1, 64), np.int32), name: given}
        with pytest.raises(WRONG, match=f"{name}: wanted"):
            flash_mla.flash_mla_sparse_fwd(q, kv, sm_scale=1.0, **lists)


def test_a3_int64_lists_that_fit_are_taken():
    call = {**sparse_arguments(), "topk_length": np.full(2, 64, np.int32)}
    want = flash_mla.flash_mla_with_kvcache(**call)
    wide = {name: call[name].astype(np.int64) for name in ("indices", "topk_length")}
    got = flash_mla.flash_mla_with_kvcache(**{**sparse_arguments(), **wide})
    np.testing.assert_array_equal(got[0].view(np.uint16), want[0].view(np.uint16))


def test_a_page_too_short_for_v4():
    cache = np.zeros((3, 64, 1, 584), np.uint8)  # pages of V4 begin at multiples of 576
    call = {**sparse_arguments(), "k_cache": cache, "q": np.zeros((2, 1, HEADS, 512), BF16)}
    with pytest.raises(AssertionError, match="37440 bytes apart, got 37376"):
        flash_mla.flash_mla_with_kvcache(**call)


def test_a_schedule_is_of_one_shape():
    call = sparse_arguments()
    flash_mla.flash_mla_with_kvcache(**call)
    with pytest.raises(AssertionError, match="topk: wanted 64, as in its first call, got 32"):
        flash_mla.flash_mla_with_kvcache(**{**call, "indices": call["indices"][..., :32]})


class CountedLengths:
    """Lengths as torch shows them: an address, a shape, a counter of writes."""

    def __init__(self, address, inference=False):
        self.address, self.shape, self._version, self.inference = address, (2,), 0, inference

    def data_ptr(self):
        return self.address

    def is_inference(self):
        return self.inference


def test_c2_a_schedule_is_made_again_where_lengths_are_seen_to_change(monkeypatch):
    from lathe.compat import _schedule, _tensors

    capturing = [False]
    monkeypatch.setattr(_tensors, "capturing", lambda q: capturing[0])
    monkeypatch.setattr(_tensors, "empty", lambda *args: object())
    monkeypatch.setattr(_tensors, "torch_of", lambda x: np)
    monkeypatch.setattr(_schedule._workspace, "attend_workspace", lambda *args, **more: 64)
    q, meta, lengths = np.zeros((2, 1, 8, 576)), flash_mla.FlashMLASchedMeta(), CountedLengths(4096)
    call = {"layout": None, "page_size": 64, "pool": q, "attention": "dsa", "indices": np.zeros((2, 4))}

    class Q:
        shape, device = q.shape, type("Device", (), {"index": 0})

    def reused(lengths, shapes="same"):
        return "part" in _schedule.share(meta, Q(), call, shapes, (lengths, None))

    assert not reused(lengths) and reused(lengths)
    lengths._version += 1  # lengths.copy_()
    assert not reused(lengths) and reused(lengths)
    lengths.address += 8
    assert not reused(lengths) and reused(lengths)
    lengths.shape = (3,)
    assert not reused(lengths) and reused(lengths)
    assert not reused(lengths, "other") and reused(lengths, "other")
    # A captured graph launches its own schedule, which replays compute from the current lengths.
    capturing[0] = True
    assert not reused(lengths, "other") and reused(lengths, "other")
    capturing[0] = False
    assert not reused(lengths, "other")


def test_c2_a_repeated_call_sees_each_of_its_lengths_change(monkeypatch):
    from lathe.compat import _schedule, _tensors

    monkeypatch.setattr(_tensors, "capturing", lambda q: False)
    array = type("Array", (), {"data_ptr": lambda self: 64, "contiguous": lambda self: self})
    torch = type("Torch", (), {"uint8": 0, "bfloat16": 1, "float32": 2, "empty": lambda self, *a, **k: array(),
                               "empty_strided": lambda self, *a, **k: array()})()  # fmt: skip
    monkeypatch.setattr(_tensors, "torch_of", lambda x: torch)
    meta, q = flash_mla.FlashMLASchedMeta(), type("Q", (), {"device": None})()
    scheduled = []

    class Call:
        kept = _schedule.Kept("config", "shapes", 64, (2, 1, 8, 512), False)

        def run(self, out, lse, workspace, reused):
            assert workspace
            scheduled.append(reused)

    def reused(*lengths):
        assert _schedule.again(Call(), meta, q, None, lengths) is not None
        return scheduled[-1]

    first, extra = CountedLengths(4096), CountedLengths(8192)  # cache_seqlens, extra_topk_length
    assert not reused(first, extra) and reused(first, extra)
    for changed in (first, extra):
        changed._version += 1
        assert not reused(first, extra) and reused(first, extra)
    assert not reused(first, None) and reused(first, None)
    assert not reused(extra, first)


def test_c2_what_a_schedule_cannot_see_is_said():
    said = " ".join(flash_mla.FlashMLASchedMeta.__doc__.split())
    for words in ("``.data``", "replayed graph", "inference mode", "use a new FlashMLASchedMeta"):
        assert words in said


def test_blackwells_functions_say_so():
    with pytest.raises(RuntimeError, match="SM100"):
        flash_mla.flash_attn_varlen_func(1, 2, causal=True)


def test_install_gives_the_package_to_importers():
    code = """
import sys
from lathe.compat import install
install("flash_mla", scale_policy="raw_f32")
import flash_mla, flash_mla.flash_mla_interface
from flash_mla import (flash_attn_varlen_func, flash_mla_sparse_fwd, flash_mla_with_kvcache,
                       get_mla_decoding_metadata, get_mla_metadata, has_legacy)
from flash_mla.flash_mla_interface import FlashMLASchedMeta
from flash_mla.fused_norm_rope_attn_rope_cast import decode, permute_q_b_proj, permute_wv_proj, prefill
assert has_legacy() and isinstance(get_mla_metadata()[0], FlashMLASchedMeta)
assert flash_mla.scale_policy == "raw_f32" and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    from lathe.compat import install

    for bad in ({"name": "flashinfer"}, {"scale_policy": "ue8m0"}):
        with pytest.raises(lathe.LatheError):
            install(**bad)


def test_orders_of_arguments():
    """What callers pass by position."""
    first = ["q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata",
             "num_splits", "softmax_scale", "causal"]  # fmt: skip
    order = list(inspect.signature(flash_mla.flash_mla_with_kvcache).parameters)
    assert order[:16] == first + [
        "is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache",
        "topk_length", "extra_topk_length",
    ]  # fmt: skip
    order = list(inspect.signature(flash_mla.sglang_flash_mla_with_kvcache).parameters)
    assert order[:19] == first + [
        "descale_q", "descale_k", "is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache",
        "extra_indices_in_kvcache", "topk_length", "extra_topk_length", "kv_format",
    ]  # fmt: skip
    order = list(inspect.signature(flash_mla.flash_mla_sparse_fwd).parameters)
    assert order[:7] == ["q", "kv", "indices", "sm_scale", "d_v", "attn_sink", "topk_length"]


def test_torchs_tensors_in_host_memory():
    torch = pytest.importorskip("torch")
    q, cache, table, lens = dense_case(576, 3)
    want = expected(q, dense_keys(cache, table, lens, 3, True), 0.05)
    to = lambda x: torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)  # noqa: E731
    out, lse = flash_mla.flash_mla_with_kvcache(
        to(q), to(cache), torch.from_numpy(table), torch.from_numpy(lens), 512,
        flash_mla.FlashMLASchedMeta(), None, 0.05, causal=True,
    )  # fmt: skip
    check((out.float().numpy(), lse.numpy()), want)


def test_the_scale_policy_that_kernels_are_told(monkeypatch):
    """Kernels that truncate scales refuse raw ones, so a cache must be called what it is."""
    told = []
    checked = lathe._attend.checked

    def listen(*args, **call):
        told.append(call["layout"].scale_policy)
        return checked(*args, **call)

    monkeypatch.setattr(lathe._attend, "checked", listen)
    fresh = lambda: {**sparse_arguments(), "tile_scheduler_metadata": flash_mla.FlashMLASchedMeta()}  # noqa: E731
    flash_mla.flash_mla_with_kvcache(**fresh())
    flash_mla.flash_mla_with_kvcache(**fresh(), kv_format="V32")  # SGLang names formats
    monkeypatch.setattr(flash_mla, "scale_policy", "raw_f32")
    flash_mla.flash_mla_with_kvcache(**fresh())
    assert told == ["pow2_ceil", "raw_f32", "raw_f32"]


def test_a_cache_of_one_page():
    layout = lathe.Layout("v4_fp8")
    cache, held, _ = sparse_cache(layout, 1, 69, 576, 9)  # 69 * 584 is no multiple of 576
    strides = (0, *cache.strides[1:])  # what a library gives an axis of one entry
    cache = np.lib.stride_tricks.as_strided(cache, cache.shape, strides)
    rng = np.random.default_rng(10)
    q, index = bf16(rng, 2, 1, HEADS, 512), lists(rng, 69, 2, 1, 64)
    meta, _ = flash_mla.get_mla_metadata()
    got = flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, 512, meta, None, 0.05, False, True, index
    )
    check(got, expected(q, lambda r, j: listed(held, index, None, r, j), 0.05))
