"""The cache formats in numpy, written from a layout's parts and the rules at the head of
src/layout/codec/codec.h, so that the codecs are compared with what shares no code with them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import lathe

SIZES = {"bf16": 2, "f32": 4, "e4m3": 1, "e2m1": 0.5, "ue8m0": 1, "u8": 1}
BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)

# One of each kind at small dims, so that a test over all of them is fast; the last has the other
# scale policy of its kind.
SMALL = [
    "mla_bf16(nope=32,rope=16)",
    "mla_fp8(nope=32,rope=16)",
    "mla_fp8_block(nope=256,rope=16)",
    "mla_fp4(nope=64,rope=16)",
    "v4_fp8(nope=192,rope=16)",
    "index_fp8(dim=64)",
    "gqa_bf16(kv_heads=2,head_dim=32,v_head_dim=16)",
    "gqa_fp8(kv_heads=2,head_dim=32,v_head_dim=16)",
    "mla_fp8_block(nope=256,rope=16,scale=raw_f32)",
]
ALL = SMALL + [str(layout) for layout in lathe.layouts()]


def part_bytes(part: lathe.Part) -> int:
    return int(part.elems * SIZES[part.dtype])


def plane_bytes(layout: lathe.Layout, plane: int) -> int:
    return sum(part_bytes(p) for p in layout.parts if p.plane == plane)


def place(layout: lathe.Layout, part: lathe.Part, page_size: int, index: int) -> int:
    """Byte of a part from the start of its page."""
    start = page_size * plane_bytes(layout, 0) if part.plane == 1 else 0
    return start + index * plane_bytes(layout, part.plane) + part.offset


def stride(layout: lathe.Layout, page_size: int) -> int:
    raw = page_size * (plane_bytes(layout, 0) + plane_bytes(layout, 1))
    align = plane_bytes(layout, 0) if layout.name == "v4_fp8" else 1
    return -(-raw // align) * align


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(BF16).view(np.uint16)
    nan = np.where(np.signbit(x), 0xFFC0, 0x7FC0)
    return np.where(np.isnan(x), nan, bits).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_e4m3(x: np.ndarray) -> np.ndarray:
    codes = np.clip(x, -448, 448).astype(E4M3).view(np.uint8)
    nan = np.where(np.signbit(x), 0xFF, 0x7F)
    return np.where(np.isnan(x), nan, codes).astype(np.uint8)


def to_e2m1(x: np.ndarray) -> np.ndarray:
    x = np.where(np.isnan(x), np.float32(6), np.clip(x, -6, 6))
    return x.astype(E2M1).view(np.uint8) & 15


def pow2_ceil(x: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.float32(1), np.where(mantissa == 0.5, exponent - 1, exponent))


def tile_scales(layout: lathe.Layout, tiles: np.ndarray) -> np.ndarray:
    amax = np.max(np.where(np.isfinite(tiles), np.abs(tiles), 0), axis=-1).astype(np.float32)
    if layout.name == "mla_fp4":
        return pow2_ceil(np.maximum(amax / np.float32(6), np.float32(1e-10)))
    raw = np.maximum(amax, np.float32(1e-4)) / np.float32(448)
    return raw if layout.scale_policy == "raw_f32" else pow2_ceil(raw)


def value_parts(layout: lathe.Layout):
    """(part, first element of the row, first tile) of the parts that hold numbers."""
    first = tile = 0
    for part in layout.parts:
        if part.role in ("scale", "pad"):
            continue
        yield part, first, tile
        first += part.elems
        if layout.scale_tile and part.dtype != "bf16":
            tile += part.elems // layout.scale_tile


def encode_row(layout: lathe.Layout, row: np.ndarray, key_scale=1.0, value_scale=1.0) -> dict:
    """role -> bytes of one token. row: float32, or uint16 as bits of bfloat16."""
    x = row if row.dtype == np.float32 else from_bf16(row)
    out = {p.role: np.zeros(part_bytes(p), np.uint8) for p in layout.parts}
    scales = []
    for part, first, _ in value_parts(layout):
        values = x[first : first + part.elems]
        if part.dtype == "bf16":
            # bf16 input keeps its bits, also those of a NaN.
            bits = to_bf16(values) if row.dtype == np.float32 else row[first : first + part.elems]
            out[part.role] = np.ascontiguousarray(bits).view(np.uint8)
            continue
        if layout.scale_policy == "per_tensor":
            s = np.float32(value_scale if part.role == "value" else key_scale)
            inverse = np.float32(1) / s
        else:
            tiles = values.reshape(-1, layout.scale_tile)
            s = tile_scales(layout, tiles)
            scales.append(s)
            inverse = np.repeat(np.float32(1) / s, layout.scale_tile)
        scaled = values * inverse
        if part.dtype == "e4m3":
            out[part.role] = to_e4m3(scaled)
        else:
            codes = to_e2m1(scaled)
            out[part.role] = (codes[0::2] | codes[1::2] << 4).astype(np.uint8)
    if scales:
        s = np.concatenate(scales).astype(np.float32)
        one_byte = layout.scale_policy == "ue8m0"
        out["scale"] = (np.frexp(s)[1] + 126).astype(np.uint8) if one_byte else s.view(np.uint8)
    return out


def encode(layout, rows, slots, pool, page_size, key_scale=1.0, value_scale=1.0) -> None:
    """pool: [pages, stride] uint8."""
    with np.errstate(all="ignore"):
        for row, slot in zip(rows, slots):
            if slot == -1:
                continue
            token = encode_row(layout, row, key_scale, value_scale)
            for part in layout.parts:
                at = place(layout, part, page_size, slot % page_size)
                pool[slot // page_size, at : at + part_bytes(part)] = token[part.role]


def decode(layout, pool, slots, page_size, key_scale=1.0, value_scale=1.0) -> np.ndarray:
    """[N, row_elems] float32; a slot of -1 gives zeros."""
    out = np.zeros((len(slots), layout.row_elems), np.float32)
    with np.errstate(all="ignore"):
        for i, slot in enumerate(slots):
            if slot == -1:
                continue
            page = pool[slot // page_size]
            raw = {}
            for part in layout.parts:
                at = place(layout, part, page_size, slot % page_size)
                raw[part.role] = page[at : at + part_bytes(part)].copy()
            for part, first, tile in value_parts(layout):
                to = out[i, first : first + part.elems]
                if part.dtype == "bf16":
                    to[:] = from_bf16(raw[part.role].view(np.uint16))
                    continue
                if part.dtype == "e4m3":
                    values = raw[part.role].view(E4M3).astype(np.float32)
                else:
                    pairs = raw[part.role]
                    codes = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1)
                    values = codes.view(E2M1).astype(np.float32)
                if layout.scale_policy == "per_tensor":
                    s = np.float32(value_scale if part.role == "value" else key_scale)
                else:
                    b = raw["scale"]
                    s = np.ldexp(np.float32(1), b.astype(np.int32) - 127)
                    s = s if layout.scale_policy == "ue8m0" else b.view(np.float32)
                    s = s[tile : tile + part.elems // layout.scale_tile]
                    s = np.repeat(s, layout.scale_tile)
                to[:] = values * s
    return out


def random_rows(layout, count: int, seed: int = 0, wild: bool = False) -> np.ndarray:
    """float32 rows; `wild` ones hold zeros, ties, NaN, infinities, huge and tiny numbers."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, layout.row_elems)).astype(np.float32)
    if wild:
        odd = np.array(
            [0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 3e38, -1e-45, 1e-30, 0.5, 448, 464, -465],
            np.float32,
        )
        at = rng.random(rows.shape) < 0.1
        rows[at] = rng.choice(odd, int(at.sum()))
        rows[0] *= np.float32(1e-6)
        with np.errstate(over="ignore"):
            rows[1] *= np.float32(1e4)
        rows[-1] = 0
    return rows


def poisoned(layout, pages: int, page_size: int, slack: int = 0) -> np.ndarray:
    """[pages, stride + slack] bytes of 0xff: NaN in every format that has one."""
    return np.full((pages, stride(layout, page_size) + slack), 0xFF, np.uint8)
