#!/usr/bin/env python3
"""Writes src/base/float_tables.inc: expected results for float_formats_test.cc.

Two methods, neither of which shares code with float_formats.h:
  A. numpy and ml_dtypes casts.
  B. the format definitions taken literally: every representable value is listed exactly, and the
     nearest one is found by comparing exact fractions, ties to the even code.
The stored tables come from A where A can express the rule, and the hard inputs from B. Each is
checked against the other, and the script stops at the first disagreement.

Needs numpy and ml_dtypes:  pip install numpy ml_dtypes
Usage:  make_float_tables.py          write the file
        make_float_tables.py --check  compare it with the file in place; exit 1 if they differ
"""

import bisect
import dataclasses
import fractions
import math
import pathlib
import sys

import ml_dtypes
import numpy as np

OUTPUT = pathlib.Path(__file__).resolve().parents[1] / "src" / "base" / "float_tables.inc"

F32_INF = 0x7F800000


@dataclasses.dataclass(frozen=True)
class Format:
    """One signed format. Magnitude codes 0..max_code are finite and ascend in value."""

    name: str
    bits: int
    mantissa: int
    bias: int
    max_code: int
    overflow_code: int  # code of a magnitude beyond the largest finite one
    nan_code: int  # magnitude of the canonical NaN
    nan_keeps_sign: bool
    dtype: type  # numpy or ml_dtypes type

    @property
    def sign_bit(self):
        return 1 << (self.bits - 1)

    @property
    def storage(self):
        return np.uint16 if self.bits == 16 else np.uint8


BF16 = Format("bf16", 16, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, True, ml_dtypes.bfloat16)
F16 = Format("f16", 16, 10, 15, 0x7BFF, 0x7C00, 0x7E00, True, np.float16)
E4M3 = Format("e4m3", 8, 3, 7, 0x7E, 0x7E, 0x7F, True, ml_dtypes.float8_e4m3fn)
E5M2 = Format("e5m2", 8, 2, 15, 0x7B, 0x7B, 0x7F, True, ml_dtypes.float8_e5m2)
E2M1 = Format("e2m1", 4, 1, 1, 0x7, 0x7, 0x7, False, ml_dtypes.float4_e2m1fn)
FORMATS = (BF16, F16, E4M3, E5M2, E2M1)


def f32_from_bits(bits):
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


def bits_from_f32(values):
    return np.asarray(values, dtype=np.float32).view(np.uint32)


def require(condition, message):
    if not condition:
        sys.exit(f"make_float_tables.py: {message}")


# ---------------------------------------------------------------------------------------------
# Method A: numpy and ml_dtypes.


def cast_decode(fmt, codes):
    """f32 values of the codes, by the library's cast."""
    return np.asarray(codes, dtype=fmt.storage).view(fmt.dtype).astype(np.float32)


def cast_encode(fmt, values):
    """Codes of f32 values by the library's cast, with the project's overflow and NaN rules."""
    values = np.asarray(values, dtype=np.float32)
    nan = np.isnan(values)
    clean = np.where(nan, np.float32(0), values)
    if fmt.overflow_code == fmt.max_code:
        # The casts overflow to NaN or infinity; clipping first is what saturation means, since a
        # value beyond the maximum can round to nothing larger than it.
        limit = cast_decode(fmt, [fmt.max_code])[0]
        clean = np.clip(clean, -limit, limit)
    with np.errstate(over="ignore"):
        codes = clean.astype(fmt.dtype).view(fmt.storage).astype(np.uint32)
    sign = np.where(np.signbit(values) & fmt.nan_keeps_sign, fmt.sign_bit, 0)
    return np.where(nan, sign | fmt.nan_code, codes).astype(np.uint32)


# ---------------------------------------------------------------------------------------------
# Method B: exact values and exact distances.


def exact_value(fmt, code):
    """Value of a magnitude code as if every exponent were finite, so one past the maximum too."""
    exponent, mantissa = code >> fmt.mantissa, code & ((1 << fmt.mantissa) - 1)
    if exponent == 0:
        return fractions.Fraction(mantissa) * fractions.Fraction(2) ** (1 - fmt.bias - fmt.mantissa)
    significand = (1 << fmt.mantissa) + mantissa
    return fractions.Fraction(significand) * fractions.Fraction(2) ** (
        exponent - fmt.bias - fmt.mantissa
    )


def value_list(fmt):
    """All finite magnitudes and the one that would follow; each is exact in float64."""
    values = [float(exact_value(fmt, code)) for code in range(fmt.max_code + 2)]
    require(all(a < b for a, b in zip(values, values[1:])), f"{fmt.name} does not ascend")
    return values


VALUES = {fmt.name: value_list(fmt) for fmt in FORMATS}


def exact_encode(fmt, bits):
    """Code of one f32 bit pattern."""
    sign = fmt.sign_bit if bits >> 31 else 0
    magnitude = bits & 0x7FFFFFFF
    if magnitude > F32_INF:
        return (sign if fmt.nan_keeps_sign else 0) | fmt.nan_code
    if magnitude == F32_INF:
        return sign | fmt.overflow_code
    values = VALUES[fmt.name]
    x = float(f32_from_bits(magnitude))  # float64 holds every f32
    if x >= values[-1]:
        return sign | fmt.overflow_code
    above = bisect.bisect_right(values, x)
    below = above - 1
    exact = fractions.Fraction(x)
    down = exact - fractions.Fraction(values[below])
    up = fractions.Fraction(values[above]) - exact
    if down != up:
        code = below if down < up else above
    else:
        code = below if below % 2 == 0 else above  # the code's last bit is the mantissa's
    return sign | (fmt.overflow_code if code > fmt.max_code else code)


def exact_ue8m0_ceil(bits):
    """Exponent byte of the smallest power of two >= x; see to_ue8m0_ceil for the edges."""
    if (bits & 0x7FFFFFFF) > F32_INF:
        return 255
    if bits >> 31:
        return 0
    if bits == F32_INF:
        return 254
    x = fractions.Fraction(float(f32_from_bits(bits)))
    byte = 0
    while byte < 254 and fractions.Fraction(2) ** (byte - 127) < x:
        byte += 1
    return byte


# ---------------------------------------------------------------------------------------------
# Tables.


def decode_table(fmt):
    codes = np.arange(1 << fmt.bits)
    values = cast_decode(fmt, codes)
    for code in codes:
        magnitude = int(code) & (fmt.sign_bit - 1)
        if magnitude <= fmt.max_code:
            sign = -1.0 if code & fmt.sign_bit else 1.0
            wanted = bits_from_f32([math.copysign(VALUES[fmt.name][magnitude], sign)])[0]
            require(bits_from_f32(values)[code] == wanted, f"{fmt.name} decode of {code:#x}")
    bits = bits_from_f32(values)
    nan = np.isnan(values)
    # Casts disagree among themselves on NaN payloads, so the project's rule is applied.
    return np.where(nan, (bits & 0x80000000) | 0x7FC00000, bits)


def ue8m0_decode_table():
    values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    for code in range(255):
        require(float(values[code]) == math.ldexp(1.0, code - 127), f"ue8m0 decode of {code}")
    require(np.isnan(values[255]), "ue8m0 255 is not NaN")
    return np.where(np.isnan(values), 0x7FC00000, bits_from_f32(values))


def f16_segments():
    """Per exponent: value of mantissa 0 and step per mantissa unit, both exact."""
    rows = []
    for exponent in range(31):
        codes = np.arange(exponent << 10, (exponent + 1) << 10)
        values = cast_decode(F16, codes).astype(np.float64)
        base, step = values[0], values[1] - values[0]
        require(
            np.array_equal(values, base + np.arange(1024) * step),
            f"f16 exponent {exponent} is not linear",
        )
        rows.append(tuple(int(b) for b in bits_from_f32([base, step])))
    return rows


def bf16_encode_codes(fmt):
    """Code of each of the 65536 bf16 patterns."""
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    codes = cast_encode(fmt, f32_from_bits(patterns))
    for pattern in range(1 << 16):
        wanted = exact_encode(fmt, pattern << 16)
        require(codes[pattern] == wanted, f"bf16 {pattern:#06x} to {fmt.name}: A and B disagree")
    return [int(c) for c in codes]


def linear_runs(codes, steps_allowed):
    """(first, code, step) rows that cover `codes`; a run is code + step * (x - first)."""
    rows = []
    first = 0
    while first < len(codes):
        step = 0
        if steps_allowed and first + 1 < len(codes):
            step = codes[first + 1] - codes[first]
            step = max(step, 0)
        end = first + 1
        while end < len(codes) and codes[end] == codes[end - 1] + step:
            end += 1
        rows.append((first, codes[first], step))
        first = end
    expanded = []
    for index, (first, code, step) in enumerate(rows):
        end = rows[index + 1][0] if index + 1 < len(rows) else len(codes)
        expanded += [code + step * i for i in range(end - first)]
    require(expanded == codes, "runs do not expand to the codes")
    return rows


def midpoint_bits(fmt, code):
    """f32 pattern halfway between a magnitude code and the next, or None if f32 can't hold it."""
    low, high = exact_value(fmt, code), exact_value(fmt, code + 1)
    middle = float((low + high) / 2)
    if middle > float(np.finfo(np.float32).max):
        return None
    bits = int(bits_from_f32([np.float32(middle)])[0])
    require(float(f32_from_bits(bits)) == middle, f"{fmt.name} midpoint is not exact in f32")
    return bits


def hard_codes(fmt):
    """Codes whose upper midpoint is tried: all for the small formats, a sample for the large."""
    if fmt is E5M2:
        # Every second one in the middle, of either parity in turn: the bf16 table has the rest.
        edges = range(8, fmt.max_code - 7)
        return [c for c in range(fmt.max_code + 1) if c not in edges or (c + c // 4) % 2 == 0]
    if fmt.bits <= 8:
        return list(range(fmt.max_code + 1))
    per_exponent = 1 << fmt.mantissa
    exponents = (fmt.max_code >> fmt.mantissa) + 1
    stride = 1 if exponents <= 32 else 12
    codes = set()
    for exponent in range(0, exponents, stride):
        # Varies which mantissa, so even and odd lower neighbours and the carry into the next
        # exponent all occur.
        offset = (0, 1, per_exponent - 1, per_exponent // 2, per_exponent // 3)[exponent % 5]
        codes.add(exponent * per_exponent + offset)
    codes.update([0, 1, per_exponent - 1, per_exponent, fmt.max_code - 1, fmt.max_code])
    return sorted(codes)


def hard_inputs():
    """Ascending non-negative f32 patterns; the test applies both signs."""
    centres = set()
    for fmt in FORMATS:
        for code in hard_codes(fmt):
            bits = midpoint_bits(fmt, code)
            if bits is not None:
                centres.add(bits)
        centres.add(int(bits_from_f32([VALUES[fmt.name][fmt.max_code]])[0]))
    # Powers of two, for the ceiling of ue8m0: subnormal ones, the first normal ones, a few others.
    centres.update([0x00200000, 0x00400000, 0x00800000, 0x01000000, 0x3F800000, 0x7F000000])
    # f32 subnormals: least, greatest and between.
    centres.update([0x00000001, 0x00001000, 0x00012345, 0x00555555, 0x007FFFFF])
    centres.add(0x7F7FFFFF)  # the largest f32; its upper neighbour is infinity
    inputs = {0}
    for bits in centres:
        inputs.update((bits - 1, bits, bits + 1))
    return sorted(inputs)


def hard_rows():
    rows = []
    inputs = hard_inputs()
    for bits in inputs:
        for signed in (bits, bits | 0x80000000):
            for fmt in FORMATS:
                by_cast = int(cast_encode(fmt, f32_from_bits([signed]))[0])
                by_search = exact_encode(fmt, signed)
                require(by_cast == by_search, f"f32 {signed:#010x} to {fmt.name}: A, B disagree")
                sign = fmt.sign_bit if signed >> 31 else 0
                require(
                    by_search == (exact_encode(fmt, bits) | sign),
                    f"f32 {signed:#010x} to {fmt.name} is not symmetric in the sign",
                )
        rows.append((bits, *(exact_encode(fmt, bits) for fmt in FORMATS), exact_ue8m0_ceil(bits)))
    return rows


# ---------------------------------------------------------------------------------------------
# Output.


def wrapped(items, indent="    ", width=100):
    lines, line = [], indent
    for item in items:
        text = item + ","
        if len(line) + len(text) > width:
            lines.append(line.rstrip())
            line = indent
        line += text
    lines.append(line.rstrip())
    return "\n".join(lines)


def array(comment, declaration, items):
    return f"// {comment}\nconstexpr {declaration} = {{\n{wrapped(items)}\n}};\n"


def render():
    parts = [
        "// Made by tools/make_float_tables.py; edit that instead.\n"
        "// Included inside a namespace by float_formats_test.cc; needs <cstdint>.\n"
        "// clang-format off\n"
    ]
    for fmt in (E4M3, E5M2, E2M1):
        parts.append(
            array(
                f"f32 bits of each {fmt.name} code.",
                f"std::uint32_t k{fmt.name.capitalize()}Decode[{1 << fmt.bits}]",
                [f"{int(v):#x}" for v in decode_table(fmt)],
            )
        )
    parts.append(
        array(
            "f32 bits of each ue8m0 code.",
            "std::uint32_t kUe8m0Decode[256]",
            [f"{int(v):#x}" for v in ue8m0_decode_table()],
        )
    )
    parts.append(
        "// f16 magnitudes by exponent: value = base + mantissa * step, both as f32 bits.\n"
        "struct F16Segment {\n  std::uint32_t base;\n  std::uint32_t step;\n};\n"
        + array(
            "Exponent 31 (infinity, NaN) is not listed.",
            "F16Segment kF16Segments[31]",
            [f"{{{base:#x},{step:#x}}}" for base, step in f16_segments()],
        )
    )
    parts.append(
        "// bf16 patterns to codes, ascending over all 65536, with NaN and infinity: pattern x in\n"
        "// the run that starts at `first` gives code + step * (x - first).\n"
        "struct EncodeRun {\n  std::uint16_t first;\n  std::uint16_t code;\n"
        "  std::uint16_t step = 0;\n};\n"
    )
    for fmt in (E4M3, E5M2, E2M1, F16):
        rows = linear_runs(bf16_encode_codes(fmt), steps_allowed=fmt.bits == 16)
        parts.append(
            array(
                f"bf16 to {fmt.name}.",
                f"EncodeRun kBf16To{fmt.name.capitalize()}[{len(rows)}]",
                [
                    f"{{{first:#x},{code},{step}}}" if step else f"{{{first:#x},{code}}}"
                    for first, code, step in rows
                ],
            )
        )
    rows = hard_rows()
    parts.append(
        "// f32 magnitudes around the points where rounding decides, with their code per format.\n"
        "// Codes of the negated input are the same with the sign bit, and 0 for ue8m0.\n"
        "struct HardInput {\n  std::uint32_t f32;\n  std::uint16_t bf16;\n  std::uint16_t f16;\n"
        "  std::uint8_t e4m3;\n  std::uint8_t e5m2;\n  std::uint8_t e2m1;\n"
        "  std::uint8_t ue8m0_ceil;\n};\n"
        + array(
            "Midpoints of neighbouring values, extremes, subnormals, each with both neighbours.",
            f"HardInput kHardInputs[{len(rows)}]",
            [f"{{{row[0]:#x}," + ",".join(map(str, row[1:])) + "}" for row in rows],
        )
    )
    parts.append("// clang-format on\n")
    return "\n".join(parts)


def main():
    text = render()
    if sys.argv[1:] == ["--check"]:
        same = OUTPUT.exists() and OUTPUT.read_text() == text
        print(f"{OUTPUT.name}: {'up to date' if same else 'differs'}")
        sys.exit(0 if same else 1)
    require(not sys.argv[1:], "the only option is --check")
    OUTPUT.write_text(text)
    print(f"{OUTPUT}: {len(text)} bytes")


if __name__ == "__main__":
    main()
