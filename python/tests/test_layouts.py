import pickle

import pytest
import reference as ref

import lathe

BYTES = {
    "mla_bf16": 1152,
    "mla_fp8": 576,
    "mla_fp8_block": 656,
    "mla_fp4": 324,
    "v4_fp8": 584,
    "index_fp8": 132,
    "gqa_bf16": 4096,
    "gqa_fp8": 2048,
}


def test_every_kind_at_its_default_dims():
    assert {layout.name: layout.bytes_per_token for layout in lathe.layouts()} == BYTES


@pytest.mark.parametrize("text", ref.ALL)
def test_parts_add_up(text):
    layout = lathe.Layout(text)
    total = ref.plane_bytes(layout, 0) + ref.plane_bytes(layout, 1)
    assert layout.bytes_per_token == total
    for page_size in (1, 2, 64, 100):
        assert layout.page_stride(page_size) == ref.stride(layout, page_size)
        for part in layout.parts:
            for index in (0, page_size - 1):
                at = ref.place(layout, part, page_size, index)
                assert layout.offset(part.role, page_size, index) == at


@pytest.mark.parametrize("text", ref.ALL)
def test_text_equality_hash_and_pickle(text):
    layout = lathe.Layout(text)
    again = lathe.Layout(str(layout))
    assert again == layout and hash(again) == hash(layout) and again.hash == layout.hash
    assert repr(layout) == str(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert layout != text and layout != lathe.Layout("mla_fp8(nope=48)")
    assert len({layout, again}) == 1


def test_properties():
    layout = lathe.Layout("mla_fp8_block(nope=256,rope=0)")
    assert layout.dims == {"nope": 256, "rope": 0}
    assert layout.scale_policy == "pow2_ceil" and layout.scale_tile == 128
    assert layout.row_elems == 256
    assert [p.role for p in layout.parts] == ["nope", "scale"]
    assert layout.parts[1] == ("scale", "f32", 2, 0, 256)
    assert lathe.Layout("mla_fp8").homogeneous and not lathe.Layout("v4_fp8").homogeneous
    assert lathe.Layout("gqa_fp8").dims == {"kv_heads": 8, "head_dim": 128, "v_head_dim": 128}
    # Values are as wide as keys unless they say otherwise.
    assert lathe.Layout("gqa_bf16(head_dim=64)").dims["v_head_dim"] == 64
    assert lathe.Layout("gqa_bf16(v_head_dim=32,head_dim=64)").dims["v_head_dim"] == 32
    assert 0 <= layout.hash < 2**64


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: lathe.Layout("mla_fp9"), "layout: wanted one of mla_bf16, mla_fp8"),
        (lambda: lathe.Layout("mla_fp8(nope=7)"), "nope of mla_fp8: wanted a multiple of 16"),
        (lambda: lathe.Layout("mla_fp8(nope=512"), "wanted a closing )"),
        (lambda: lathe.Layout("mla_fp8").page_stride(0), "page_size: wanted 1 to 65536, got 0"),
        (lambda: lathe.Layout("mla_fp8").page_stride(2**40), "page_size: wanted 1 to 65536"),
        (lambda: lathe.Layout("mla_fp8").offset("key", 64, 0), "wanted one of mla_fp8's: nope, "),
        (lambda: lathe.Layout("mla_fp8").offset("keys", 64, 0), "role: wanted one of nope, rope"),
        (lambda: lathe.Layout("mla_fp8").offset("nope", 64, 64), "index: wanted 0 to 63, got 64"),
        (lambda: lathe.Layout("mla_fp8").offset("nope", 64, -1), "index: wanted 0 to 63, got -1"),
    ],
)
def test_errors(call, says):
    with pytest.raises(lathe.LatheError) as caught:
        call()
    assert says in str(caught.value)


def test_layout_of_no_text_is_a_type_error():
    with pytest.raises(TypeError, match="layout: wanted a string, got int"):
        lathe.Layout(3)
