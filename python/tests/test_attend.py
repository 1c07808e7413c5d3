"""attend and attend_reference beside a plain softmax in numpy, over rows that numpy decodes."""

import math

import numpy as np
import pytest
import reference as ref

import lathe

MLA = "mla_fp8_block(nope=128,rope=16)"
LATENT = [MLA, "mla_bf16(nope=32,rope=16)", "mla_fp8(nope=32,rope=16)", "mla_fp4(nope=32,rope=16)"]
V4 = "v4_fp8(nope=64,rope=16)"
GQA = [
    "gqa_bf16(kv_heads=2,head_dim=32,v_head_dim=16)",
    "gqa_fp8(kv_heads=2,head_dim=32,v_head_dim=16)",
]
PAGE = 4


def attend(q, keys, values, scale, sink=None):
    """One head: q [dim], keys [n, dim], values [n, v]. Returns out, LSE."""
    scores = np.float64(np.float32(scale)) * (keys.astype(np.float64) @ q.astype(np.float64))
    if scores.size == 0:
        return np.zeros(values.shape[1]), -np.inf
    top = scores.max()
    lse = top + np.log(np.exp(scores - top).sum())
    weights = np.exp(scores - lse)
    if sink is not None:
        weights = weights / (1 + np.exp(np.float64(sink) - lse))
    return weights @ values.astype(np.float64), lse


def latent(q, rows_of, scale, v_dim, sink=None):
    """q [rows, heads, dim]; rows_of(row) -> the key rows that it sees."""
    out = np.zeros((*q.shape[:2], v_dim))
    lse = np.zeros(q.shape[:2])
    for r in range(q.shape[0]):
        keys = rows_of(r)
        for h in range(q.shape[1]):
            logit = None if sink is None else sink[h]
            out[r, h], lse[r, h] = attend(q[r, h], keys, keys[:, :v_dim], scale, logit)
    return out, lse


def check(got, expected):
    assert [a.dtype for a in got] == [np.float64, np.float64]
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def check_cpu(got, expected):
    assert [a.dtype for a in got] == [np.float32, np.float32]
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


class Batch:
    """Requests of 6, 1 and 11 keys with 2, 1 and 3 rows, on shuffled pages; all else is NaN."""

    indptr, lens = [0, 2, 3, 6], [6, 1, 11]

    def __init__(self, text, key_scale=1.0, value_scale=1.0):
        self.layout = lathe.Layout(text)
        self.scales = (key_scale, value_scale)
        self.pool = ref.poisoned(self.layout, 8, PAGE)
        self.table = np.full((3, 4), -1, np.int32)
        pages = iter(np.random.default_rng(5).permutation(8))
        self.slots = []  # per request, by position
        for r, length in enumerate(self.lens):
            for page in range(-(-length // PAGE)):
                self.table[r, page] = next(pages)
            at = np.arange(length)
            self.slots.append(self.table[r, at // PAGE] * PAGE + at % PAGE)
        used = np.concatenate(self.slots)
        rows = ref.random_rows(self.layout, len(used), 6)
        ref.encode(self.layout, rows, used, self.pool, PAGE, *self.scales)

    def visible(self, row, window=0):
        r = np.searchsorted(self.indptr, row, "right") - 1
        end = self.lens[r] - (self.indptr[r + 1] - row) + 1
        return self.slots[r][max(0, end - window) if window else 0 : end]

    def rows(self, slots):
        return ref.decode(self.layout, self.pool, slots, PAGE, *self.scales)

    @property
    def paged(self):
        return {"page_table": self.table, "q_indptr": self.indptr, "kv_lens": self.lens}


def random_q(heads, dim, seed=7):
    return np.random.default_rng(seed).standard_normal((6, heads, dim)).astype(np.float32)


@pytest.mark.parametrize("text", LATENT)
def test_mla_over_pages(text):
    scale = 0.5 if "mla_fp8(" in text else 1.0
    b = Batch(text, scale)
    dims = b.layout.dims
    q = random_q(3, dims["nope"] + dims["rope"])
    got = lathe.attend_reference(
        q, b.pool, text, PAGE, attention="mla", scale=0.2, key_scale=scale, **b.paged
    )
    expected = latent(q, lambda r: b.rows(b.visible(r)), 0.2, dims["nope"])
    check(got, expected)
    for threads, invariant in ((0, False), (1, True), (3, True)):
        fast = lathe.attend(q, b.pool, text, PAGE, attention="mla", scale=0.2, key_scale=scale,
                            threads=threads, batch_invariant=invariant, **b.paged)
        check_cpu(fast, expected)


def test_default_scales():
    yarn = (0.1 * math.log(40) + 1) ** 2 / math.sqrt(192)
    b = Batch(MLA)
    q = random_q(1, 144)
    for attention in ("mla", "dsa"):
        got = lathe.attend_reference(q, b.pool, MLA, PAGE, attention=attention, **b.paged)
        check(got, latent(q, lambda r: b.rows(b.visible(r)), yarn, 128))


def test_dsa_over_index_lists():
    b = Batch(MLA)
    rng = np.random.default_rng(8)
    used = np.concatenate(b.slots)
    lists = rng.choice(used, (6, 9)).astype(np.int32)  # duplicates count twice
    lists[1, 3] = -1
    lists[2, :4] = [-1, 32, 2**30, -7]
    lists[4] = -1
    lengths = [9, 9, 9, 5, 9, 0]
    q = random_q(2, 144)

    def rows_of(r):
        mine = lists[r, : lengths[r]]
        return b.rows(mine[(mine >= 0) & (mine < 32)])

    expected = latent(q, rows_of, 0.3, 128)
    for index in (lists, lists.astype(np.int64), lists.tolist()):
        got = lathe.attend_reference(
            q, b.pool, MLA, PAGE, indices=index, index_lengths=lengths, scale=0.3
        )
        check(got, expected)
    check_cpu(lathe.attend(q, b.pool, MLA, PAGE, indices=lists, index_lengths=lengths, scale=0.3),
              expected)
    out, lse = got
    assert not out[4:].any() and np.isneginf(lse[4:]).all()
    # No entries at all are no keys either.
    out, lse = lathe.attend_reference(q, b.pool, MLA, PAGE, indices=np.empty((6, 0), np.int32))
    assert not out.any() and np.isneginf(lse).all()


def test_compact_rows():
    b = Batch(MLA)
    compact = b.rows(b.slots[2])
    lists = np.random.default_rng(2).integers(-1, 12, (6, 5))
    q = random_q(2, 144)
    expected = latent(q, lambda r: compact[[i for i in lists[r] if 0 <= i < 11]], 0.3, 128)
    got = lathe.attend_reference(q, compact=compact, layout=MLA, indices=lists, scale=0.3)
    check(got, expected)
    bits = ref.to_bf16(compact)
    expected = latent(
        q, lambda r: ref.from_bf16(bits)[[i for i in lists[r] if 0 <= i < 11]], 0.3, 128
    )
    check(lathe.attend_reference(q, compact=bits, layout=MLA, indices=lists, scale=0.3), expected)
    # Without a layout the family's dims.
    wide = np.ones((2, 576), np.float32)
    out, _ = lathe.attend_reference(np.ones((1, 1, 576), np.float32), compact=wide, indices=[[0]])
    assert out.shape == (1, 1, 512) and (out == 1).all()


@pytest.mark.parametrize("by_page", (True, False))
def test_v4_two_sources_and_a_sink(by_page):
    b, extra = Batch(V4), Batch("mla_bf16(nope=64,rope=16)")
    q = random_q(2, 80)
    sink = np.array([0.7, -3], np.float32)
    lists = np.random.default_rng(3).choice(np.concatenate(extra.slots), (6, 4))
    lists[2] = -1
    window = [[-1] * 3 for _ in range(6)]
    for r in range(6):
        window[r][: len(b.visible(r, 3))] = b.visible(r, 3)
    main = {**b.paged, "window": 3} if by_page else {"indices": window}
    second = {"pool": extra.pool, "layout": extra.layout, "page_size": PAGE, "indices": lists}

    def rows_of(r):
        chosen = lists[r][lists[r] >= 0]
        return np.concatenate([b.rows(b.visible(r, 3)), extra.rows(chosen)])

    got = lathe.attend_reference(
        q, b.pool, V4, PAGE, attention="v4", sink=sink, extra=second, **main
    )
    expected = latent(q, rows_of, 1 / math.sqrt(512), 80, sink)
    check(got, expected)
    fast = lathe.attend(q, b.pool, V4, PAGE, attention="v4", sink=sink, extra=second, **main)
    check_cpu(fast, expected)
    # The window alone, of 128 tokens by default.
    got = lathe.attend_reference(q, b.pool, V4, PAGE, attention="v4", **b.paged)
    check(got, latent(q, lambda r: b.rows(b.visible(r)), 1 / math.sqrt(512), 80))


@pytest.mark.parametrize("text", GQA)
@pytest.mark.parametrize("window", (None, 3))
@pytest.mark.parametrize("with_sink", (False, True))
def test_gqa_groups_window_and_sink(text, window, with_sink):
    scales = (0.5, 3.0) if "fp8" in text else (1.0, 1.0)
    b = Batch(text, *scales)
    q = random_q(6, 32)
    sink = np.linspace(-1, 1, 6).astype(np.float32) if with_sink else None
    out = np.zeros((6, 6, 16))
    lse = np.zeros((6, 6))
    for r in range(6):
        rows = b.rows(b.visible(r, window or 0))
        for h in range(6):
            g = h // 3
            keys = rows[:, g * 32 : (g + 1) * 32]
            values = rows[:, 64 + g * 16 : 64 + (g + 1) * 16]
            logit = None if sink is None else sink[h]
            out[r, h], lse[r, h] = attend(q[r, h], keys, values, 1 / math.sqrt(32), logit)
    problem = {
        "attention": "gqa",
        "window": window,
        "sink": sink,
        "key_scale": scales[0],
        "value_scale": scales[1],
        **b.paged,
    }
    check(lathe.attend_reference(q, b.pool, text, PAGE, **problem), (out, lse))
    for kind in ("inplace", "native"):
        check_cpu(lathe.attend(q, b.pool, text, PAGE, kind=kind, **problem), (out, lse))


@pytest.mark.parametrize("attention", ("mla", "dsa"))
def test_ragged_equals_absorbed(attention):
    b = Batch(MLA)
    rng = np.random.default_rng(4)
    w_uk = rng.standard_normal((3, 24, 128)).astype(np.float32)
    w_uv = rng.standard_normal((3, 40, 128)).astype(np.float32)
    q = random_q(3, 24 + 16)
    got = lathe.attend_reference(
        q,
        b.pool,
        MLA,
        PAGE,
        attention=attention,
        kind="ragged",
        w_uk=w_uk,
        w_uv=w_uv,
        scale=0.02,
        **b.paged,
    )
    assert got[0].shape == (6, 3, 40)
    absorbed = np.einsum("rhk,hkn->rhn", q[..., :24].astype(np.float64), w_uk.astype(np.float64))
    q_abs = np.concatenate([absorbed, q[..., 24:]], axis=-1)
    latents, lse = latent(q_abs, lambda r: b.rows(b.visible(r)), 0.02, 128)
    out = np.einsum("hvn,rhn->rhv", w_uv.astype(np.float64), latents)
    np.testing.assert_allclose(got[0], out, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got[1], lse, rtol=1e-9)
    fast = lathe.attend(q, b.pool, MLA, PAGE, attention=attention, kind="ragged", w_uk=w_uk,
                        w_uv=w_uv, scale=0.02, **b.paged)
    np.testing.assert_allclose(fast[0], out, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(fast[1], lse, rtol=1e-4, atol=1e-4)


def test_batch_defaults():
    b = Batch(MLA)
    q = random_q(2, 144)[:3]
    one_each = lathe.attend_reference(q, b.pool, MLA, PAGE, page_table=b.table, kv_lens=b.lens)
    given = lathe.attend_reference(
        q, b.pool, MLA, PAGE, page_table=b.table, kv_lens=b.lens, q_indptr=[0, 1, 2, 3]
    )
    check(one_each, given)
    check(
        one_each,
        latent(
            q, lambda r: b.rows(b.slots[r]), (0.1 * math.log(40) + 1) ** 2 / math.sqrt(192), 128
        ),
    )


def test_no_rows():
    b = Batch(MLA)
    out, lse = lathe.attend_reference(
        np.empty((0, 2, 144), np.float32),
        b.pool,
        MLA,
        PAGE,
        page_table=np.empty((0, 4), np.int32),
        q_indptr=[0],
        kv_lens=[],
    )
    assert out.shape == (0, 2, 128) and lse.shape == (0, 2)


def empty_row_call():
    """One row without keys among six, and what the oracle gives."""
    b = Batch(MLA)
    lists = np.stack([b.slots[2][:4]] * 6).astype(np.int32)
    lists[3] = -1
    q = random_q(2, 144)
    expected = latent(q, lambda r: b.rows([s for s in lists[r] if s >= 0]), 0.3, 128)
    return (q, b.pool, MLA, PAGE), {"indices": lists, "scale": 0.3}, expected


@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_a_callers_arrays_are_written_in_place(device):
    call, more, (want_out, want_lse) = empty_row_call()
    wide = np.full((6, 400), 7, np.float32)
    out, lse = wide[:, 8:264].reshape(6, 2, 128), np.full((6, 2), 7, np.float32)
    assert np.shares_memory(out, wide)
    got = lathe.attend(*call, **more, device=device, out=out, lse=lse)
    assert got[0] is out and got[1] is lse
    np.testing.assert_allclose(out, want_out, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-4, atol=1e-5)
    assert (wide[:, :8] == 7).all() and (wide[:, 264:] == 7).all()

    narrow = np.zeros((6, 2, 128), ref.BF16)
    lathe.attend(*call, **more, device=device, out=narrow)
    assert (narrow.view(np.uint16) == ref.to_bf16(out)).mean() > 0.999  # of f32, rounded


def test_float16_queries_are_their_numbers():
    (q, *call), more, _ = empty_row_call()
    half = q.astype(np.float16)
    got = lathe.attend_reference(half, *call, **more)
    want = lathe.attend_reference(half.astype(np.float32), *call, **more)
    for a, b in zip(got, want):
        np.testing.assert_array_equal(a, b)
    other = lathe.attend_reference(q, *call, **more)
    assert np.abs(got[0] - other[0]).max() > 0  # rounded


def test_conventions_of_the_lse():
    call, more, (_, natural) = empty_row_call()
    assert np.isneginf(natural[3]).all() and np.isfinite(natural[2]).all()
    for base_2 in (False, True):
        for plus in (False, True):
            _, lse = lathe.attend(*call, **more, lse_base_2=base_2, empty_lse_plus_inf=plus)
            want = natural / math.log(2) if base_2 else natural.copy()
            want[3] = math.inf if plus else -math.inf
            np.testing.assert_allclose(lse, want, rtol=1e-5)


def test_other_arrays_are_not_written_to():
    call, more, _ = empty_row_call()
    bad = {
        "the shape (6, 2, 128), got a float32 array of shape (6, 2, 127)": np.zeros((6, 2, 127), np.float32),
        "bits of bfloat16), got float64": np.zeros((6, 2, 128)),
        "a stride of 1 elements on axis 2": np.zeros((6, 2, 256), np.float32)[:, :, ::2],
    }
    for says, out in bad.items():
        with pytest.raises(lathe.LatheError) as caught:
            lathe.attend(*call, **more, out=out)
        assert caught.value.field == "out" and says in str(caught.value)
        assert not out.any()
    frozen = np.zeros((6, 2), np.float32)
    frozen.setflags(write=False)
    with pytest.raises(lathe.LatheError, match="lse: wanted an array to write to"):
        lathe.attend(*call, **more, lse=frozen)
