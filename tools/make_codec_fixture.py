#!/usr/bin/env python3
"""Writes src/layout/codec/test/codec_fixture.inc: pool bytes of every layout and rope frequencies, computed without Lathe.

Needs numpy and ml_dtypes. Number formats come from ml_dtypes, scales from frexp, page structure from the byte tables of
the formats' own documents; nothing here is derived from the C++ code.

    python3 tools/make_codec_fixture.py > src/layout/codec/test/codec_fixture.inc
"""

import numpy as np
import ml_dtypes

F32, BF16, E4M3, E2M1 = np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
PAGE = 3  # tokens; rows 0, 1, 2 go to slots 2, 0, 1
SLOTS = [2, 0, 1]
POISON = 0xA5
DIMS = {"nope": 512, "rope": 64}


def pow2_ceil(x):
    """Smallest power of two >= x > 0 (f32 in, f32 out)."""
    m, e = np.frexp(F32(x))
    return F32(np.ldexp(1.0, int(e) - 1 if m == 0.5 else int(e)))


def amax(tile):
    a = np.abs(tile[np.isfinite(tile)])
    return F32(a.max()) if a.size else F32(0)


def fp8_scale(tile, raw):
    s = F32(max(amax(tile), F32(1e-4)) / F32(448))
    return s if raw else pow2_ceil(s)


def fp4_scale(tile):
    return pow2_ceil(max(F32(amax(tile) / F32(6)), F32(1e-10)))


def e4m3(x, s):
    y = (x * F32(F32(1) / s)).astype(F32)
    nan = np.isnan(y)
    code = np.clip(np.where(nan, 0, y), -448, 448).astype(E4M3).view(np.uint8)
    return np.where(nan, 0x7F | (np.signbit(x).astype(np.uint8) << 7), code).astype(np.uint8)


def e2m1_pairs(x, s):
    y = (x * F32(F32(1) / s)).astype(F32)
    nan = np.isnan(y)
    code = np.clip(np.where(nan, 0, y), -6, 6).astype(E2M1).view(np.uint8) & 15
    code = np.where(nan, 7, code).astype(np.uint8)
    return (code[0::2] | code[1::2] << 4).astype(np.uint8)


def bf16_bytes(row):
    nan = np.isnan(row)
    bits = np.where(nan, F32(0), row).astype(BF16).view(np.uint16)
    canonical = 0x7FC0 | (np.signbit(row).astype(np.uint16) << 15)
    return np.where(nan, canonical, bits).astype("<u2").view(np.uint8)


def exponent_byte(s):
    return int(np.frexp(s)[1]) - 1 + 127


def tiles(x, n):
    return x.reshape(-1, n)


def mla_bf16(row):
    return bf16_bytes(row), b""


def mla_fp8(row, scale=F32(1)):
    return e4m3(row, scale), b""


def mla_fp8_block(row, raw=False):
    nope = tiles(row[:512], 128)
    scales = np.array([fp8_scale(t, raw) for t in nope], dtype="<f4")
    codes = np.concatenate([e4m3(t, s) for t, s in zip(nope, scales)])
    return np.concatenate([codes, scales.view(np.uint8), bf16_bytes(row[512:])]), b""


def mla_fp4(row):
    parts = tiles(row, 16)
    scales = [fp4_scale(t) for t in parts]
    return np.concatenate([e2m1_pairs(t, s) for t, s in zip(parts, scales)]), bytes(map(exponent_byte, scales))


def v4_fp8(row):
    nope = tiles(row[:448], 64)
    scales = [fp8_scale(t, False) for t in nope]
    codes = np.concatenate([e4m3(t, s) for t, s in zip(nope, scales)])
    return np.concatenate([codes, bf16_bytes(row[448:512])]), bytes(map(exponent_byte, scales)) + b"\0"


def index_fp8(row, raw=False):
    s = fp8_scale(row[:128], raw)
    return e4m3(row[:128], s), np.array([s], dtype="<f4").tobytes()


def gqa_bf16(row):  # 2 heads of 64, values of 48
    return bf16_bytes(row[:128]), bf16_bytes(row[128:224]).tobytes()


def gqa_fp8(row):
    return e4m3(row[:128], F32(0.75)), e4m3(row[128:224], F32(2.5)).tobytes()


def value(code, scale):
    """f32 code * scale; NaN as 0x7fc00000 with the code's sign."""
    with np.errstate(over="ignore", invalid="ignore"):
        v = (code.astype(F32) * scale).astype(F32)
    bits = 0x7FC00000 | (np.signbit(code).astype(np.uint32) << 31)
    return np.where(np.isnan(v), bits.astype(np.uint32).view(F32), v)


def decoded_row(name, first, second):
    """The f32 values of a stored row, decoded from its bytes."""
    first, second = np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8)
    wide = lambda b: b.view("<u2").astype(np.uint32).__lshift__(16).view(F32)
    codes = lambda b: b.view(E4M3)
    if name.startswith("mla_bf16"):
        return wide(first)
    if name.startswith("mla_fp8_block"):
        scales = np.repeat(first[512:528].view("<f4"), 128)
        return np.concatenate([value(codes(first[:512]), scales), wide(first[528:])])
    if name.startswith("mla_fp8"):
        return value(codes(first), F32(1))
    if name.startswith("mla_fp4"):
        nibbles = np.stack([first & 15, first >> 4], axis=1).reshape(-1)
        return value(nibbles.astype(np.uint8).view(E2M1), np.exp2(np.repeat(second, 16).astype(F32) - 127))
    if name.startswith("v4_fp8"):
        scales = np.exp2(np.repeat(second[:7], 64).astype(F32) - 127)
        return np.concatenate([value(codes(first[:448]), scales), wide(first[448:])])
    if name.startswith("index_fp8"):
        return value(codes(first), second.view("<f4")[0])
    if name.startswith("gqa_bf16"):
        return np.concatenate([wide(first), wide(second)])
    return np.concatenate([value(codes(first), F32(0.75)), value(codes(second), F32(2.5))])


def fnv1a(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h


def decoded_hashes(name, encode, rows):
    """FNV-1a of the decoded rows 0, 1, 2: as f32, and as bf16 (plain bf16 parts keep their bits)."""
    with np.errstate(invalid="ignore", over="ignore"):
        out = np.concatenate([decoded_row(name, *map(bytes, encode(r))) for r in rows]).astype(F32)
    return fnv1a(out.astype("<f4").tobytes()), fnv1a(bf16_bytes(out).tobytes())


def page(encode, rows, align=1):
    """Token-major first plane, then token-major second plane, then poison to the page stride."""
    records = [None] * PAGE
    for slot, row in zip(SLOTS, rows):
        with np.errstate(invalid="ignore", over="ignore"):
            first, second = encode(row)
        records[slot] = (bytes(first), bytes(second))
    out = b"".join(r[0] for r in records) + b"".join(r[1] for r in records)
    return out + bytes([POISON]) * (-len(out) % align)


def inputs():
    """Three rows of 576 f32: ordinary numbers of several magnitudes, then tiles of edge cases."""
    rng = np.random.default_rng(20250101)
    rows = rng.standard_normal((3, 576)).astype(F32)
    rows[0] *= np.exp2(np.repeat(rng.integers(-20, 12, 36), 16)).astype(F32)
    hard = rows[1].reshape(36, 16)
    hard[0] = 0
    hard[1] = 1e-5 * hard[1]
    hard[2, 3], hard[2, 7] = np.inf, -np.inf
    hard[3, 5], hard[9, 0] = np.nan, -np.nan
    hard[4] = np.linspace(-448, 448, 16)
    hard[5] = np.linspace(0, 2**-6, 16)  # e4m3 subnormals at scale 1
    hard[6] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]
    hard[16:24] = 0  # a zero tile of every width
    hard[34:36] = hard[4:6]  # in the rope part
    rows[2] = np.ldexp(rng.integers(-31, 32, 576).astype(F32), rng.integers(-12, 6, 576))  # ties
    return rows


def rope_values(dim, theta, factor, context):
    """Frequencies as in DeepSeek-V3's modelling code (linear ramp between correction dims)."""
    i = np.arange(0, dim, 2, dtype=np.float64)
    own = 1.0 / theta ** (i / dim)

    def correction(turns):
        return dim * np.log(context / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low, high = max(np.floor(correction(32)), 0), min(np.ceil(correction(1)), dim - 1)
    keep = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return low, high, own / factor * (1 - keep) + own * keep


def hex_lines(data):
    text = data.hex()
    return "\n".join(f'    "{text[i:i + 92]}"' for i in range(0, len(text), 92))


def main():
    rows32 = inputs()
    nan = np.isnan(rows32)
    rows16 = np.where(nan, 0, rows32).astype(BF16).astype(F32)
    rows16[nan] = rows32[nan]
    cases = [
        ("mla_bf16", mla_bf16, 1),
        ("mla_fp8", mla_fp8, 1),
        ("mla_fp8_block", mla_fp8_block, 1),
        ("mla_fp8_block(scale=raw_f32)", lambda r: mla_fp8_block(r, True), 1),
        ("mla_fp4", mla_fp4, 1),
        ("v4_fp8", v4_fp8, 576),
        ("index_fp8", index_fp8, 1),
        ("index_fp8(scale=raw_f32)", lambda r: index_fp8(r, True), 1),
        ("gqa_bf16(kv_heads=2,head_dim=64,v_head_dim=48)", gqa_bf16, 1),
        ("gqa_fp8(kv_heads=2,head_dim=64,v_head_dim=48)", gqa_fp8, 1),
    ]
    print("// Made by tools/make_codec_fixture.py; do not edit. Hex of little-endian bytes.")
    print("#pragma once")
    print("// Rows: f32 [3, 576], each layout takes the first row_elems() of a row. A bf16 input is the f32 row")
    print("// rounded to bf16. Pages: 3 tokens, rows 0, 1, 2 in slots 2, 0, 1; gqa_fp8 scales 0.75 and 2.5.")
    print(f"inline constexpr const char* kFixtureRows =\n{hex_lines(rows32.astype('<f4').tobytes())};")
    print("// decoded_*: FNV-1a 64 of rows 0, 1, 2 decoded from the from_f32 page to f32 and to bf16.")
    print("struct FixturePage {\n  const char* layout;\n  const char* from_f32;\n  const char* from_bf16;")
    print("  unsigned long long decoded_f32;\n  unsigned long long decoded_bf16;\n};")
    print("inline constexpr FixturePage kFixturePages[] = {")
    for name, encode, align in cases:
        a, b = page(encode, rows32, align), page(encode, rows16, align)
        f, h = decoded_hashes(name, encode, rows32)
        same = "    nullptr" if a == b else hex_lines(b)
        print(f'    {{"{name}",\n{hex_lines(a)},\n{same},\n     0x{f:016x}ull, 0x{h:016x}ull}},')
    print("};")
    for label, args in (("V3", (64, 10000.0, 40.0, 4096)), ("V4", (64, 160000.0, 16.0, 65536))):
        low, high, f = rope_values(*args)
        print(f"inline constexpr double kYarn{label}Low = {low:.0f};")
        print(f"inline constexpr double kYarn{label}High = {high:.0f};")
        print(f"inline constexpr double kYarn{label}Frequencies[] = {{")
        print("\n".join(f"    {x!r}," for x in f.tolist()))
        print("};")


if __name__ == "__main__":
    main()
