"""Every bad argument is named in one line, and nothing was written."""

import pickle

import numpy as np
import pytest
import reference as ref

import lathe

L = lathe.Layout("mla_fp8(nope=32,rope=16)")
B = lathe.Layout("mla_fp8_block(nope=128,rope=16)")
ROWS = ref.random_rows(L, 2)
SIZE = L.page_stride(4)
Error = lathe.LatheError


def pool_of(pages=2, layout=L):
    return ref.poisoned(layout, pages, 4)


def read_only(array):
    array.flags.writeable = False
    return array


ENCODE = {"rows": ROWS, "slots": [0, 1], "layout": L, "page_size": 4}
ENCODE_CASES = [
    ({"rows": "x"}, TypeError, "rows: wanted an array of numbers with DLPack"),
    ({"rows": None}, TypeError, "rows: wanted an array of numbers with DLPack or the buffer "),
    ({"rows": ROWS.tolist()}, TypeError, "rows: wanted an array of numbers"),
    ({"rows": ROWS.astype(">f4")}, TypeError, "got ndarray of dtype >f4"),
    ({"rows": ROWS.astype(np.float64)}, Error, "rows: wanted float32, bfloat16 or uint16"),
    ({"rows": ROWS.astype(np.float16)}, Error, "got float16"),
    ({"rows": ROWS[0]}, Error, "rows: wanted the shape [rows, row_elems], got a float32 array of"),
    ({"rows": ROWS[:, :47]}, Error, "rows.cols: wanted 48, got 47"),
    ({"rows": ROWS[:1]}, Error, "rows.rows: wanted 2, got 1; one row for each index"),
    ({"rows": ROWS[::-1]}, Error, "rows.row_stride: wanted at least 48 elements, got -48"),
    ({"rows": ROWS[[0, 0, 0]][:2].repeat(2, 1)[:, ::2]}, Error, "rows: wanted a stride of 1 elem"),
    ({"rows": np.asfortranarray(ROWS)}, Error, "rows: wanted a stride of 1 elements on axis 1"),
    ({"slots": [0, 8]}, Error, "slots[1]: wanted -1 or 0 to 7, got 8; the pool has 2 pages of 4"),
    ({"slots": [0, -2]}, Error, "slots[1]: wanted -1 or 0 to 7, got -2"),
    ({"slots": [2**32, 1]}, Error, "slots[0]: wanted a number that int32 holds, got 4294967296"),
    ({"slots": [0.0, 1.0]}, Error, "slots: wanted int32 or int64, got float64"),
    ({"slots": np.array([0, 1], np.uint32)}, Error, "slots: wanted int32 or int64, got uint32"),
    ({"slots": [[0, 1]]}, Error, "slots: wanted the shape [rows], got a int64 array of shape"),
    ({"slots": None}, TypeError, "slots: wanted an array of numbers"),
    ({"layout": "mla"}, Error, "layout: wanted one of mla_bf16, "),
    ({"layout": 3}, TypeError, "layout: wanted a Layout or its text, got int"),
    ({"page_size": 0}, Error, "page_size: wanted 1 to 65536, got 0"),
    ({"page_size": 65537}, Error, "page_size: wanted 1 to 65536, got 65537"),
    ({"page_size": 4.0}, TypeError, "page_size: wanted an integer, got float"),
    ({"page_size": 5}, Error, "pool: wanted rows of at least 240 bytes, a page of 5 tokens"),
    ({"key_scale": 0.0}, Error, "key_scale: wanted a finite scale from 2^-126 to 2^126, got 0"),
    ({"key_scale": float("nan")}, Error, "key_scale: wanted a finite scale"),
    ({"value_scale": 1e39}, Error, "value_scale: wanted a finite scale"),
    ({"key_scale": "1"}, TypeError, "key_scale: wanted a number, got str"),
    ({"path": "slow"}, Error, 'path: wanted one of fast, reference, got "slow"'),
    ({"path": 1}, TypeError, "path: wanted a string, got int"),
]
POOL_CASES = [
    (lambda: None, TypeError, "pool: wanted an array of numbers"),
    (lambda: bytes(2 * SIZE), Error, "pool: wanted an array to write to, got a read-only"),
    (lambda: read_only(pool_of()), Error, "pool: wanted an array to write to, got a read-only"),
    (lambda: pool_of().view(np.int8), Error, "pool: wanted uint8 or float8_e4m3fn, the bytes"),
    (lambda: pool_of().view(np.float32), Error, "got float32"),
    (lambda: pool_of().reshape(2, 1, -1), Error, "pool: wanted the shape [bytes] or [pages, "),
    (lambda: pool_of()[:, :-1], Error, "pool: wanted rows of at least 192 bytes, a page of 4"),
    (lambda: pool_of().reshape(-1)[:-1], Error, "pool: wanted a multiple of 192 bytes, a page of"),
    (lambda: pool_of(4).reshape(-1)[::2], Error, "pool: wanted a stride of 1 elements on axis 0"),
    (lambda: np.asfortranarray(pool_of()), Error, "pool: wanted a stride of 1 elements on axis 1"),
    (lambda: np.broadcast_to(pool_of(1), (2, SIZE)), Error, "read-only"),
]


def check(call, error, says, *pools):
    before = [p.tobytes() for p in pools]
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert says in message and "\n" not in message
    for pool, old in zip(pools, before):
        assert pool.tobytes() == old
    if error is Error:
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


@pytest.mark.parametrize("change, error, says", ENCODE_CASES, ids=[c[2] for c in ENCODE_CASES])
def test_encode(change, error, says):
    pool = pool_of()
    check(lambda: lathe.encode(pool=pool, **{**ENCODE, **change}), error, says, pool)


@pytest.mark.parametrize("make, error, says", POOL_CASES, ids=[c[2] for c in POOL_CASES])
def test_pools(make, error, says):
    pool = make()
    kept = [pool] if isinstance(pool, np.ndarray) else []
    check(lambda: lathe.encode(pool=pool, **ENCODE), error, says, *kept)


def test_a_later_bad_slot_leaves_earlier_rows_unwritten():
    pool = pool_of()
    check(lambda: lathe.encode(ROWS, [3, 99], pool, L, 4), Error, "slots[1]", pool)


def test_memory_that_input_and_output_share():
    pool = pool_of(4)
    rows = pool[2:].reshape(-1)[: 2 * 192].view(np.float32).reshape(2, 48)
    check(
        lambda: lathe.encode(rows, [0, 1], pool, L, 4),
        Error,
        "pool: wanted memory apart from rows, got memory that they share",
        pool,
    )
    lathe.encode(rows, [0, 1], pool[:2], L, 4)  # apart within one buffer is fine
    both = np.zeros(4 * B.page_stride(4), np.uint8)
    src = both[: 4 * SIZE].reshape(4, SIZE)
    big = lathe.Layout("mla_fp8(nope=128,rope=16)")
    check(
        lambda: lathe.requantize(both[: big.page_stride(4)], [0], big, both, [0], B, 4),
        Error,
        "dst: wanted memory apart from src",
        src,
    )


@pytest.mark.parametrize(
    "call, error, says",
    [
        (lambda p: lathe.decode(p, L, 3, 6, 4), Error, "first: wanted 6 slots within 0 to 7, "),
        (lambda p: lathe.decode(p, L, -1, 2, 4), Error, "first: wanted 2 slots within 0 to 7"),
        (lambda p: lathe.decode(p, L, 9, None, 4), Error, "first: wanted 0 to 8, got 9"),
        (lambda p: lathe.decode(p, L, 0, -1, 4), Error, "count: wanted 0 to 2147483647, got -1"),
        (lambda p: lathe.decode(p, L, 0, 2**31 - 1, 4), Error, "first: wanted 2147483647 slots"),
        (lambda p: lathe.decode(p, L, page_size=4, dtype="f"), Error, "dtype: wanted bf16 or f32"),
        (lambda p: lathe.decode(p, L, page_size=4, path=""), Error, "path: wanted one of fast"),
        (lambda p: lathe.decode([1], L, page_size=4), TypeError, "pool: wanted an array"),
        (lambda p: lathe.gather_decode(p, [8], L, 4), Error, "slots[0]: wanted -1 or 0 to 7"),
        (lambda p: lathe.gather_decode(p, "ab", L, 4), TypeError, "slots: wanted an array"),
        (lambda p: lathe.gather_decode(p, 3, L, 4), TypeError, "slots: wanted an array"),
        (lambda p: lathe.gather_decode(p, [0], L, 4, key_scale=-1), Error, "key_scale: wanted"),
    ],
)  # fmt: skip
def test_decode(call, error, says):
    pool = pool_of()
    check(lambda: call(pool), error, says, pool)


REQUANT = {"src_slots": [0, 1], "dst_slots": [2, 3], "dst_layout": B, "page_size": 4}


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"dst_slots": [2]}, Error, "dst_slots"),
        ({"dst_slots": [2, 8]}, Error, "dst_slots[1]: wanted -1 or 0 to 7, got 8"),
        ({"src_slots": [-3, 2]}, Error, "src_slots[0]: wanted -1 or 0 to 7"),
        ({"src_layout": L}, Error, "src: wanted"),
        ({"src_layout": "mla_fp8_block(nope=128,rope=0)"}, Error, "mla_fp8 to mla_fp8_block"),
        ({"src_key_scale": 3.0}, Error, "src_key_scale: wanted a power of two"),
        ({"src_key_scale": 0.0}, Error, "src_key_scale: wanted a finite scale"),
        ({"dst_key_scale": 0.0}, Error, "dst_key_scale: wanted a finite scale"),
        ({"dst_page_size": 0}, Error, "dst_page_size: wanted 1 to 65536, got 0"),
        ({"dst_page_size": 8}, Error, "dst: wanted rows of at least"),
        ({"dst_layout": "gqa_fp8"}, Error, "dst: wanted rows of at least"),
        ({"dst_layout": None}, TypeError, "dst_layout: wanted a Layout or its text"),
    ],
)
def test_requantize(change, error, says):
    fp8 = lathe.Layout("mla_fp8(nope=128,rope=16)")
    src, dst = np.zeros((2, fp8.page_stride(4)), np.uint8), pool_of(2, B)
    if change.get("src_layout") is L:
        src = src[:, :100]
    elif "src_layout" in change:
        src = src[:, : lathe.Layout(change["src_layout"]).page_stride(4)]
    args = {"src_layout": fp8, **REQUANT, **change}
    check(lambda: lathe.requantize(src, dst=dst, **args), error, says, src, dst)


Q = np.zeros((2, 3, 48), np.float32)
TABLE = {"page_table": [[0, 1], [1, -1]], "kv_lens": [5, 2]}
LISTS = {"indices": [[0], [1]], "page_table": None, "kv_lens": None}
W = np.zeros((3, 8, 32), np.float32)
RAGGED = {"q": np.zeros((2, 3, 24), np.float32), "kind": "ragged", "w_uk": W, "w_uv": W}
BLOCKS = {"layout": "mla_fp8_block(nope=128,rope=16)",
          "pool": np.zeros((2, lathe.Layout("mla_fp8_block(nope=128,rope=16)").page_stride(4)), np.uint8)}  # fmt: skip
NARROW = {"layout": "mla_fp8(nope=16,rope=16)",
          "pool": np.zeros((2, lathe.Layout("mla_fp8(nope=16,rope=16)").page_stride(4)), np.uint8)}  # fmt: skip
V4 = {"attention": "v4", "layout": "v4_fp8(nope=64,rope=16)",
      "pool": np.zeros((2, lathe.Layout("v4_fp8(nope=64,rope=16)").page_stride(4)), np.uint8),
      "q": np.zeros((2, 3, 80), np.float32)}  # fmt: skip
ATTEND_CASES = [
    ({"q": "x"}, TypeError, "q: wanted an array of numbers"),
    ({"q": Q[0]}, Error, "q: wanted the shape [rows, heads, dim], got a float32 array of shape"),
    ({"q": Q[:, :0]}, Error, "q: wanted at least 1 head"),
    ({"q": Q[..., :47]}, Error, "q: wanted a stride of 47 elements on axis 1, got 48"),
    ({"q": Q[..., :47].copy()}, Error, "q.cols: wanted 144, got 141"),
    ({"q": Q.astype(np.float64)}, Error, "q: wanted float32, bfloat16, uint16"),
    ({"q_scale": 2.0}, Error, "q_scale: wanted 1 (only an e4m3 q has a scale), got 2"),
    ({"q_scale": np.ones(2, np.float32)}, Error, "q_scale: wanted a number, or an array of shape [1], got shape [2]"),
    ({"pool": None}, Error, "pool: wanted a pool or compact rows, got neither"),
    ({"compact": ROWS}, Error, "pool: wanted a pool or compact rows, got both"),
    ({"layout": None}, Error, "layout: wanted the pool's layout, got None"),
    ({"layout": "gqa_bf16(kv_heads=1,head_dim=16,v_head_dim=16)"}, Error, "pool: wanted rows of"),
    ({"attention": "gqa"}, Error, "layout: wanted a gqa layout for gqa, got mla_fp8"),
    ({"attention": "mla", **NARROW}, Error, "q.cols: wanted 96, got"),
    ({"attention": "mha"}, Error, "attention: wanted one of mla, dsa, v4, gqa"),
    ({"attention": 3}, TypeError, "attention: wanted a string"),
    ({"kind": "gather"}, Error, "got mla_fp8; kind="),
    ({"kind": "native", **BLOCKS}, Error, "got mla_fp8_block; kind="),
    ({"page_table": None}, Error, "page_table: wanted a page_table or indices, got neither"),
    ({"indices": [[0], [1]]}, Error, "page_table: wanted a page_table or indices, got both"),
    ({"page_table": [[0], [1]]}, Error, "page_table: wanted at least 2 pages for the 5 keys of r"),
    ({"page_table": [0, 1]}, Error, "page_table: wanted the shape [requests, pages]"),
    ({"page_table": [[0, 1]]}, Error, "page_table: wanted 4 entries for 2 requests of width 2"),
    ({"page_table": [[0, 1], [2**40, 1]]}, Error, "page_table[1, 0]: wanted a number that int32"),
    ({"kv_lens": None}, Error, "kv_lens: wanted the number of keys of each request, got nothing"),
    ({"kv_lens": [5]}, Error, "q_indptr: wanted the first row of each request"),
    ({"kv_lens": [5, -1]}, Error, "kv_lens[1]: wanted 0, or at least the 1 rows"),
    ({"q_indptr": [0, 2, 1]}, Error, "q_indptr[2]: wanted at least 2, the entry before"),
    ({"q_indptr": [1, 1, 2]}, Error, "q_indptr[0]: wanted 0, got 1"),
    ({"q_indptr": [0, 2]}, Error, "q_indptr: wanted 3 entries for 2 requests, got 2"),
    ({"scale": -1.0}, Error, "scale: wanted a finite positive scale, got -1"),
    ({"scale": "a"}, TypeError, "scale: wanted a number"),
    ({"window": 3}, Error, "window: wanted 0 for sparse_latent, got 3"),
    ({"window": 2.0}, TypeError, "window: wanted an integer"),
    ({"sink": np.zeros(2, np.float32)}, Error, "sink: wanted 3 logits, one per head, got 2"),
    ({"sink": np.zeros(3)}, Error, "sink: wanted float32, got float64"),
    ({"key_scale": 0.0}, Error, "key_scale: wanted a finite positive scale"),
    ({"kind": "best"}, Error, "kind: wanted for sparse_latent: "),
    ({"kind": "native", "device": "sm100"}, Error, "got native on sm100"),
    ({"kind": "native", "device": "sm90"}, Error, "q: wanted an array on a GPU, got one in host"),
    ({"device": "cpu", "threads": -1}, Error, "threads: wanted 0 to 1024, got -1"),
    ({**LISTS, "indices": [0, 1]}, Error, "indices: wanted the shape [rows, width]"),
    ({**LISTS, "indices": [[0]]}, Error, "indices: wanted 2 entries for 2 rows of width 1, got 1"),
    ({**LISTS, "indices": [[0], [0.5]]}, Error, "indices: wanted int32 or int64, got float64"),
    ({**LISTS, "index_lengths": [1, 2]}, Error, "index_lengths[1]: wanted 0 to the index width 1"),
    ({**LISTS, "index_lengths": [1]}, Error, "index_lengths: wanted 2 entries, or none, got 1"),
    ({**LISTS, "pool": None, "compact": ROWS[0]}, Error, "compact: wanted the shape [rows, row_e"),
    ({**LISTS, "pool": None, "compact": ROWS[:, :9].copy()}, Error, "compact.cols: wanted 48"),
    ({"extra": {"pool": pool_of(), "layout": L, "page_size": 4, "indices": [[0], [1]]}}, Error,
     "extra: wanted no second source"),
    ({"extra": 3}, TypeError, "extra: wanted a dict, got int"),
    ({"extra": {"table": 1}}, TypeError, "extra: knows no table; known: pool, layout"),
    ({"extra": {"compact": ROWS}}, Error, "extra.indices: wanted indices, got neither"),
    ({**V4, "extra": {"compact": np.zeros((1, 80), np.float32), "indices": [[0]]}}, Error,
     "extra.indices: wanted 2 entries for 2 rows"),
    ({**RAGGED, "w_uk": None}, TypeError, "w_uk: wanted an array"),
    ({**RAGGED, "w_uv": W[0]}, Error, "w_uv: wanted the shape [heads, width, nope]"),
    ({**RAGGED, "w_uv": W.astype(np.float64)}, Error, "w_uv: wanted float32, got float64"),
    ({**RAGGED, "w_uk": W[:2]}, Error, "w_uk: wanted 3 x 8 x 32 elements, got 512"),
    ({**RAGGED, **LISTS}, Error, "indices: wanted no index list"),
    ({**RAGGED, "top_k": 4}, Error, "kv_lens[0]: wanted a context of at most top_k = 4 keys"),
    ({**RAGGED, **V4}, Error, "kind: wanted for window_compressed: "),
]  # fmt: skip


@pytest.mark.parametrize(
    "change, error, says", ATTEND_CASES, ids=[f"{i}-{c[2]}" for i, c in enumerate(ATTEND_CASES)]
)
def test_attend(change, error, says):
    pool = pool_of()
    args = {"q": Q, "pool": pool, "layout": L, "page_size": 4, **TABLE, **change}
    check(lambda: lathe.attend_reference(**args), error, says, pool)
