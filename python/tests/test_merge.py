"""merge() beside one softmax over all keys in numpy."""

import ml_dtypes
import numpy as np
import pytest

import lathe

ROWS, HEADS, V_DIM = 5, 3, 7


def softmax(scores, values):
    """scores [keys, rows, heads], values [keys, v_dim], float64; returns out and the natural LSE."""
    if len(scores) == 0:
        return np.zeros((ROWS, HEADS, V_DIM)), np.full((ROWS, HEADS), -np.inf)
    top = scores.max(0)
    weights = np.exp(scores - top)
    out = np.einsum("krh,kv->rhv", weights, values) / weights.sum(0)[..., None]
    return out, top + np.log(weights.sum(0))


def parts(keys, split, dtype, seed=3):
    random = np.random.default_rng(seed)
    scores = random.standard_normal((keys, ROWS, HEADS)) * 30
    values = random.standard_normal((keys, V_DIM))
    a, b = softmax(scores[:split], values[:split]), softmax(scores[split:], values[split:])
    made = [x.astype(t) for part in (a, b) for x, t in zip(part, (dtype, np.float32))]
    return made, softmax(scores, values)


@pytest.mark.parametrize(
    "dtype, atol", [(np.float32, 1e-5), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("split", [4, 11, 0, 12])
def test_two_parts_are_the_whole(dtype, atol, split):
    (out_a, lse_a, out_b, lse_b), (out, lse) = parts(12, split, dtype)
    # A part without keys is not read.
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        part[np.isneginf(part_lse)] = np.nan
    got, got_lse = lathe.merge(out_a, lse_a, out_b, lse_b)
    if dtype is ml_dtypes.bfloat16:
        assert got.dtype == np.uint16
        got = got.view(dtype)
    assert got.dtype == dtype and got_lse.dtype == np.float32
    np.testing.assert_allclose(got.astype(np.float64), out, atol=atol)
    np.testing.assert_allclose(got_lse, lse, rtol=1e-6, atol=1e-5)


def test_two_parts_without_keys_stay_empty():
    (out_a, lse_a, out_b, lse_b), _ = parts(0, 0, np.float32)
    out_a[:], out_b[:] = np.nan, np.inf
    got, lse = lathe.merge(out_a, lse_a, out_b, lse_b)
    assert not got.any() and np.isneginf(lse).all()


def test_in_place_and_by_strides():
    (out_a, lse_a, out_b, lse_b), (out, lse) = parts(9, 5, np.float32)
    wide = np.full((ROWS, HEADS, V_DIM + 2), -1, np.float32)
    wide[..., :V_DIM] = out_b
    by_head = np.ascontiguousarray(lse_b.T).T  # [rows, heads] in the memory of [heads, rows]
    got = lathe.merge(out_a, lse_a, wide[..., :V_DIM], by_head, wide[..., :V_DIM], by_head)
    assert got[1] is by_head
    np.testing.assert_allclose(wide[..., :V_DIM], out, atol=1e-5)
    np.testing.assert_allclose(by_head, lse, rtol=1e-6)
    assert (wide[..., V_DIM:] == -1).all()


def test_bad_arguments_write_nothing():
    (out_a, lse_a, out_b, lse_b), _ = parts(9, 5, np.float32)
    out, lse = np.full_like(out_a, 7), np.full_like(lse_a, 7)
    memory = np.zeros(out.size + 1, np.float32)
    for field, wrong in (
        ("out_a", (out_a.astype(np.float64), lse_a, out_b, lse_b)),
        ("out_b", (out_a, lse_a, out_b[:, :2], lse_b)),
        ("lse_a", (out_a, lse_a.astype(np.float64), out_b, lse_b)),
        ("lse_b", (out_a, lse_a, out_b, lse_b[:4])),
        ("out_a", (out_a[..., ::2], lse_a, out_b, lse_b)),
        ("out", (out_a, lse_a, out_b, lse_b, out[:4])),
        ("out", (memory[:-1].reshape(out.shape), lse_a, out_b, lse_b, memory[1:].reshape(out.shape))),
    ):
        with pytest.raises(lathe.LatheError) as error:
            lathe.merge(*wrong, *(out, lse)[len(wrong) - 4 :])
        assert error.value.field == field, error.value
    for wrong in ((None, lse_a, out_b, lse_b), (out_a, lse_a, out_b, 3)):
        with pytest.raises(TypeError):
            lathe.merge(*wrong, out, lse)
    assert (out == 7).all() and (lse == 7).all() and not memory.any()
