"""Types that numpy has not, brought by DLPack capsules made by hand, as torch would bring them."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
import reference as ref

import lathe


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

BFLOAT, E4M3, E5M2 = 4, 10, 12


class Tensor:
    """The memory of a numpy array under another DLPack type, device or stride."""

    def __init__(self, array, code, bits, device=1, skip=0):
        self.array = array
        self.args = (code, bits, device, skip)
        self.alive = []

    def __dlpack_device__(self):
        return (self.args[2], 0)

    def __dlpack__(self, stream=None):
        code, bits, device, skip = self.args
        a = self.array
        shape = list(a.shape)
        shape[-1] -= skip
        n = len(shape)
        managed = DLManagedTensor()
        managed.tensor = DLTensor(
            a.ctypes.data,
            device,
            0,
            n,
            code,
            bits,
            1,
            (ctypes.c_int64 * n)(*shape),
            (ctypes.c_int64 * n)(*(s // a.itemsize for s in a.strides)),
            skip * bits // 8,
        )
        managed.deleter = DELETER(lambda _: self.alive.pop())
        self.alive.append(managed)
        return new_capsule(ctypes.addressof(managed), b"dltensor", None)


LAYOUT = lathe.Layout("mla_fp8(nope=32,rope=16)")
ROWS = ref.to_bf16(ref.random_rows(LAYOUT, 4))


def expected_pool():
    pool = ref.poisoned(LAYOUT, 1, 4)
    ref.encode(LAYOUT, ROWS, range(4), pool, 4)
    return pool


def test_bfloat_rows_and_float8_pools():
    pool = ref.poisoned(LAYOUT, 1, 4)
    rows, pages = Tensor(ROWS, BFLOAT, 16), Tensor(pool, E4M3, 8)
    lathe.encode(rows, range(4), pages, LAYOUT, 4)
    assert (pool == expected_pool()).all()
    np.testing.assert_array_equal(
        lathe.decode(pages, LAYOUT, page_size=4), lathe.decode(pool, LAYOUT, page_size=4)
    )
    assert not rows.alive and not pages.alive  # every capsule was given back


def refusal(call, *args, **more):
    with pytest.raises(lathe.LatheError) as caught:
        call(*args, **more)
    return str(caught.value)


def test_a2_a_dtype_of_one_byte_is_not_another():
    pool = expected_pool()
    lists = [[0, 1], [2, 3]]
    q = np.ones((2, 1, 48), ml_dtypes.float8_e5m2)
    pages = pool.view(ml_dtypes.float8_e5m2)
    rows = np.ones((4, 48), ml_dtypes.float8_e5m2)
    # From ml_dtypes, and through DLPack as torch brings it.
    for given in (q, Tensor(q.view(np.uint8), E5M2, 8)):
        for attend in (lathe.attend, lathe.attend_reference):
            says = refusal(attend, given, pool, LAYOUT, 4, indices=lists)
            assert says.startswith("q: wanted float32, bfloat16") and says.endswith("got float8_e5m2")
    for given in (pages, Tensor(pool, E5M2, 8)):
        says = refusal(lathe.decode, given, LAYOUT, page_size=4)
        assert says == "pool: wanted uint8 or float8_e4m3fn, the bytes of pages, got float8_e5m2"
        says = refusal(lathe.gather_decode, given, range(4), LAYOUT, 4)
        assert says.endswith("got float8_e5m2")
    for given, name in ((rows, "float8_e5m2"), (rows.view(ref.E4M3), "float8_e4m3fn")):
        assert refusal(lathe.encode, given, range(4), pool, LAYOUT, 4).endswith(f"got {name}")
    assert (pool == expected_pool()).all()
    # The message names the caller's type, not the type that carries its bits.
    sink = np.ones(1, ml_dtypes.bfloat16)
    says = refusal(lathe.attend, np.ones((2, 1, 48), np.float32), pool, LAYOUT, 4, indices=lists, sink=sink)
    assert says == "sink: wanted float32, got bfloat16"
    out = np.ones((2, 1, 32), ml_dtypes.float8_e5m2)
    says = refusal(lathe.attend, np.ones((2, 1, 48), np.float32), pool, LAYOUT, 4, indices=lists, out=out)
    assert says.endswith("got float8_e5m2")


def test_a2_an_e4m3_q_has_its_numbers():
    # Score 1 with each key: out is the mean of the values, whichever type carries q's codes.
    pool = expected_pool()
    q = np.ones((1, 1, 48), np.float32)
    want = lathe.attend_reference(q, pool, LAYOUT, 4, indices=[[0, 1]], scale=1.0)
    got = lathe.attend_reference(q.astype(ref.E4M3), pool, LAYOUT, 4, indices=[[0, 1]], scale=1.0)
    np.testing.assert_array_equal(got[1], want[1])


def test_a4_pages_of_another_layout_or_size():
    bf16, block = lathe.Layout("mla_bf16"), lathe.Layout("mla_fp8_block")
    pool = np.zeros((2, bf16.page_stride(64)), np.uint8)
    for layout, page_size in ((block, 64), (bf16, 32), (lathe.Layout("mla_fp8"), 64)):
        says = refusal(lathe.decode, pool, layout, page_size=page_size)
        assert says.startswith(f"pool: wanted rows of {layout.page_stride(page_size)} bytes")
        assert f"pool[:, :{layout.page_stride(page_size)}]" in says
        slots = [0, 1]
        assert "wanted rows of" in refusal(lathe.gather_decode, pool, slots, layout, page_size)
        q = np.zeros((1, 1, layout.row_elems), np.float32)
        says = refusal(lathe.attend, q, pool, layout, page_size, indices=[[0]])
        assert "wanted rows of" in says
    # One page has no stride that tells it apart.
    assert "wanted rows of" in refusal(lathe.decode, pool[:1], bf16, page_size=32)
    # Their owner cuts longer rows.
    view = pool[:, : bf16.page_stride(32)]
    assert len(lathe.decode(view, bf16, page_size=32)) == 64


def test_byte_offset_and_stride_count():
    wide = np.zeros((4, 50), np.uint16)
    wide[:, 2:] = ROWS
    pool = ref.poisoned(LAYOUT, 1, 4)
    lathe.encode(Tensor(wide, BFLOAT, 16, skip=2), range(4), pool, LAYOUT, 4)
    assert (pool == expected_pool()).all()


def test_a_bare_capsule():
    pool = ref.poisoned(LAYOUT, 1, 4)
    tensor = Tensor(ROWS, BFLOAT, 16)
    lathe.encode(tensor.__dlpack__(), range(4), pool, LAYOUT, 4)
    assert (pool == expected_pool()).all() and not tensor.alive
    # A capsule can be taken once, so nothing may import an argument twice.
    pages = Tensor(pool, E4M3, 8)
    bits = lathe.decode(pages.__dlpack__(), LAYOUT, page_size=4)
    slots = Tensor(np.arange(4), 0, 64)
    again = lathe.gather_decode(pages.__dlpack__(), slots.__dlpack__(), LAYOUT, 4)
    assert (bits == again).all() and not pages.alive and not slots.alive


def test_ml_dtypes_arrays_share_their_memory():
    pool = ref.poisoned(LAYOUT, 1, 4)
    lathe.encode(ROWS.view(ml_dtypes.bfloat16), range(4), pool.view(ref.E4M3), LAYOUT, 4)
    assert (pool == expected_pool()).all()
    bits = lathe.decode(pool.view(ref.E4M3), LAYOUT, page_size=4)
    values = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(values, ref.decode(LAYOUT, pool, range(4), 4))


def test_a_q_of_bfloat_and_of_float8():
    pool = expected_pool()
    q = ref.random_rows(LAYOUT, 4, 9).reshape(2, 2, 48)
    bits, codes = ref.to_bf16(q), ref.to_e4m3(q)
    lists = [[0, 1], [2, 3]]
    for given, code, width, plain, scale in (
        (bits, BFLOAT, 16, ref.from_bf16(bits), 1.0),
        (codes, E4M3, 8, codes.view(ref.E4M3).astype(np.float32) * np.float32(0.5), 0.5),
    ):
        expected = lathe.attend_reference(plain, pool, LAYOUT, 4, indices=lists)
        for q_in in (Tensor(given, code, width), given):
            out, lse = lathe.attend_reference(
                q_in, pool, LAYOUT, 4, indices=lists, q_scale=scale, q_indptr=[0, 2], kv_lens=[4]
            )
            np.testing.assert_array_equal(out, expected[0])
            np.testing.assert_array_equal(lse, expected[1])


@pytest.mark.parametrize(
    "rows, says",
    [
        (Tensor(ROWS, BFLOAT, 16, device=2), "rows: wanted an array in host memory, got one of"),
        (Tensor(ROWS, 2, 16), "rows: wanted float32, bfloat16 or uint16 (bits of bfloat16), got "),
        (Tensor(ROWS.view(np.uint8), E4M3, 8), "got float8_e4m3fn"),
        (Tensor(ROWS, 77, 16), "got DLPack type 77 of 16 bits"),
    ],
)
def test_other_devices_and_types_are_refused(rows, says):
    pool = ref.poisoned(LAYOUT, 1, 4)
    with pytest.raises(lathe.LatheError) as caught:
        lathe.encode(rows, range(4), pool, LAYOUT, 4)
    assert says in str(caught.value)
    assert (pool == 0xFF).all()
