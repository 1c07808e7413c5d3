import numpy as np
import pytest
import reference as ref

import lathe

PATHS = ("fast", "reference")


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bf16", (False, True), ids=("f32", "bf16"))
@pytest.mark.parametrize("text", ref.ALL)
def test_encode_writes_what_the_rules_say(text, bf16, path):
    layout = lathe.Layout(text)
    rows = ref.random_rows(layout, 7, seed=1, wild=True)
    if bf16:
        rows = ref.to_bf16(rows)
    # Page 5 tokens long, a hole, a slot written twice, the last slot; other bytes after each page.
    slots = [3, 0, -1, 14, 7, 3, 9]
    expected = ref.poisoned(layout, 3, 5, slack=24)
    pool = expected.copy()
    ref.encode(layout, rows, slots, expected, 5, key_scale=0.37, value_scale=3.0)
    pages = pool[:, : layout.page_stride(5)]
    lathe.encode(rows, slots, pages, layout, 5, key_scale=0.37, value_scale=3.0, path=path)
    assert same_bits(pool, expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", ref.ALL)
def test_decode_reads_what_the_rules_say(text, path):
    layout = lathe.Layout(text)
    pool = ref.poisoned(layout, 3, 5)
    ref.encode(layout, ref.random_rows(layout, 15, 2, True), range(15), pool, 5, 0.5, 3.0)
    scales = {"key_scale": 0.5, "value_scale": 3.0, "path": path}
    expected = ref.decode(layout, pool, range(4, 13), 5, 0.5, 3.0)
    f32 = lathe.decode(pool, layout, 4, 9, 5, dtype="f32", **scales)
    # NaN payloads are the formats' own test; here NaN is NaN.
    np.testing.assert_array_equal(f32, expected)
    bits = lathe.decode(pool, text, 4, 9, 5, **scales)
    assert bits.dtype == np.uint16
    np.testing.assert_array_equal(ref.from_bf16(bits), ref.from_bf16(ref.to_bf16(expected)))
    # The same pages one after another.
    flat = lathe.decode(pool.reshape(-1), layout, page_size=5, dtype="f32", **scales)
    np.testing.assert_array_equal(flat[4:13], expected)
    assert len(flat) == 15


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", ref.ALL)
def test_gather_with_duplicates_and_holes(text, path):
    layout = lathe.Layout(text)
    pool = ref.poisoned(layout, 2, 4, slack=8)[:, : layout.page_stride(4)]
    lathe.encode(ref.random_rows(layout, 3), [1, 6, 7], pool, layout, 4)
    slots = [6, -1, 6, 1, 7, -1, 6, 6, 1, 1, 7]
    got = lathe.gather_decode(pool, slots, layout, 4, "f32", path=path)
    np.testing.assert_array_equal(got, ref.decode(layout, pool, slots, 4))
    assert np.isfinite(got).all() and not got[1].any()


@pytest.mark.parametrize("dtype", (np.int32, np.int64))
def test_slots_of_either_width_and_any_stride(dtype):
    layout = lathe.Layout(ref.SMALL[0])
    rows = ref.random_rows(layout, 3)
    pool = ref.poisoned(layout, 1, 8)
    lathe.encode(rows, np.array([5, 99, 2, 99, 7, 99], dtype)[::2], pool, layout, 8)
    got = lathe.gather_decode(pool, np.array([7, 2, 5], dtype)[::-1], layout, 8, "f32")
    np.testing.assert_array_equal(got, ref.from_bf16(ref.to_bf16(rows)))


def test_rows_with_a_stride_and_no_rows():
    layout = lathe.Layout("mla_bf16(nope=32,rope=16)")
    wide = ref.random_rows(lathe.Layout("mla_bf16(nope=64,rope=16)"), 4)
    pool = ref.poisoned(layout, 1, 4)
    lathe.encode(wide[::2, 8:56], [0, 1], pool, layout, 4)
    expected = ref.to_bf16(wide[::2, 8:56])
    np.testing.assert_array_equal(lathe.decode(pool, layout, 0, 2, 4), expected)
    before = pool.copy()
    lathe.encode(np.empty((0, 48), np.float32), [], pool, layout, 4)
    assert same_bits(pool, before)
    assert lathe.gather_decode(pool, [], layout, 4).shape == (0, 48)
    assert lathe.decode(pool, layout, 4, 0, 4).shape == (0, 48)
    assert lathe.decode(pool[:0], layout, page_size=4).shape == (0, 48)


@pytest.mark.parametrize("path", PATHS)
def test_requantize_to_block_is_exact_at_scale_one(path):
    fp8 = lathe.Layout("mla_fp8(nope=256,rope=16)")
    block = lathe.Layout("mla_fp8_block(nope=256,rope=16)")
    src = ref.poisoned(fp8, 2, 4)
    dst = ref.poisoned(block, 2, 8)
    lathe.encode(ref.random_rows(fp8, 8, 3), range(8), src, fp8, 4)
    src_slots, dst_slots = [7, 0, -1, 3, 5], [2, 15, 4, -1, 9]
    report = lathe.requantize(src, src_slots, fp8, dst, dst_slots, block, 4, 8, path=path)
    assert report == lathe.RequantReport(0.0, -1, 0)
    expected = ref.decode(fp8, src, [7, 0, 5], 4)
    np.testing.assert_array_equal(ref.decode(block, dst, [2, 15, 9], 8), expected)
    untouched = ref.poisoned(block, 2, 8)
    for part in block.parts:
        at = block.offset(part.role, 8, 4)
        assert same_bits(
            dst[0, at : at + ref.part_bytes(part)], untouched[0, at : at + ref.part_bytes(part)]
        )


@pytest.mark.parametrize("path", PATHS)
def test_requantize_to_fp8_reports_the_loss(path):
    fp8 = lathe.Layout("mla_fp8(nope=256,rope=16)")
    block = lathe.Layout("mla_fp8_block(nope=256,rope=16)")
    rows = ref.random_rows(block, 3, 4)
    rows[1, 7] = 5000
    src = ref.poisoned(block, 1, 4)
    dst = ref.poisoned(fp8, 1, 4)
    ref.encode(block, rows, range(3), src, 4)
    report = lathe.requantize(
        src, [0, 1, 2], block, dst, [3, 2, 1], fp8, 4, dst_key_scale=2.0, path=path
    )
    before = ref.decode(block, src, [0, 1, 2], 4)
    after = ref.decode(fp8, dst, [3, 2, 1], 4, key_scale=2.0)
    assert report.worst_abs_error == np.abs(before - after).max()
    assert report.worst_slot == 1 and report.saturated == 1
    expected = ref.poisoned(fp8, 1, 4)
    ref.encode(fp8, before, [3, 2, 1], expected, 4, key_scale=2.0)
    assert same_bits(dst, expected)


def noise(layout, pages, page_size, seed, slack=0):
    width = layout.page_stride(page_size) + slack
    return np.random.default_rng(seed).integers(0, 256, (pages, width), np.uint8)


def token_bytes(layout, page_size, slot):
    """(page, first byte, last byte + 1) of each of a token's runs of bytes."""
    page, index = divmod(slot, page_size)
    for plane in {part.plane for part in layout.parts}:
        at = (page_size * ref.plane_bytes(layout, 0) if plane else 0) + index * ref.plane_bytes(layout, plane)
        yield page, at, at + ref.plane_bytes(layout, plane)


@pytest.mark.parametrize("text", ref.ALL)
def test_copies_of_pages_within_a_pool_and_between_pools(text):
    layout = lathe.Layout(text)
    pool = noise(layout, 5, 4, 1, slack=8)
    src, dst = [3, 0, 1, 3], [0, 1, 3, 4]  # a cycle, and a source twice
    want = pool.copy()
    want[dst, : layout.page_stride(4)] = pool[src, : layout.page_stride(4)]
    pages = pool[:, : layout.page_stride(4)]
    lathe.copy_pages(pages, src, pages, dst, layout, 4)
    assert same_bits(pool, want)
    other = noise(layout, 3, 4, 2)
    want = other.copy()
    want[[2, 0]] = pages[[4, 4]]
    lathe.copy_pages(pages, np.array([4, 4], np.int32), other, [2, 0], text, 4)
    assert same_bits(other, want)


@pytest.mark.parametrize("text", ref.ALL)
def test_copies_of_tokens_within_a_pool_and_between_pools(text):
    layout = lathe.Layout(text)
    pool, other = noise(layout, 3, 4, 3), noise(layout, 2, 8, 4)
    for to, size, src, dst in ((pool, 4, [1, 6, 11, 6], [6, 1, 0, 11]), (other, 8, [6, 6, 0], [15, 3, 9])):
        want, before = to.copy(), pool.copy()
        for a, b in zip(src, dst):
            for (page, at, end), (to_page, to_at, to_end) in zip(
                token_bytes(layout, 4, a), token_bytes(layout, size, b)
            ):
                want[to_page, to_at:to_end] = before[page, at:end]
        lathe.copy_slots(pool, src, to, dst, layout, 4, size)
        assert same_bits(to, want)


def test_copies_that_cannot_be_write_nothing():
    layout = lathe.Layout("mla_fp8_block(nope=256,rope=16)")
    pool, other = noise(layout, 3, 4, 5), noise(layout, 2, 4, 6)
    before = pool.copy(), other.copy()
    for field, src_pages, dst_pages in (
        ("src_pages[1]", [0, 3], [0, 1]),
        ("src_pages[0]", [-1, 0], [0, 1]),
        ("dst_pages[1]", [0, 1], [0, 2]),
        ("dst_pages[1]", [0, 1], [1, 1]),
        ("dst_pages", [0, 1], [1]),
    ):
        with pytest.raises(lathe.LatheError) as caught:
            lathe.copy_pages(pool, src_pages, other, dst_pages, layout, 4)
        assert caught.value.field == field
    with pytest.raises(lathe.LatheError) as caught:
        lathe.copy_slots(pool, [0, 12], other, [0, 1], layout, 4)
    assert caught.value.field == "src_slots[1]"
    with pytest.raises(lathe.LatheError, match="memory apart from src"):
        lathe.copy_pages(pool[:2], [0], pool[1:], [0], layout, 4)
    # A pool of another layout has pages of another length.
    raw = lathe.Layout("mla_bf16(nope=256,rope=16)")
    with pytest.raises(lathe.LatheError) as caught:
        lathe.copy_pages(noise(raw, 3, 4, 7), [0], other, [0], layout, 4)
    assert caught.value.field == "src"
    with pytest.raises(TypeError):
        lathe.copy_pages(pool, [0], None, [0], layout, 4)
    assert same_bits(pool, before[0]) and same_bits(other, before[1])
