#!/usr/bin/env python3
"""Writes src/io/text/unicode_tables.inc: Python's case mappings and the characters that repr() escapes, for the template engine.

    python3 tools/make_unicode_tables.py > src/io/text/unicode_tables.inc
"""

import sys
import unicodedata

ALL = [c for c in range(0x80, sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF]


def case_table(name, mapping):
    single, several = [], []
    for c in ALL:
        mapped = mapping(chr(c))
        if mapped == chr(c):
            continue
        (single if len(mapped) == 1 else several).append((c, mapped))
    runs = []  # first, last, step, delta
    for c, mapped in single:
        delta = ord(mapped) - c
        if runs and runs[-1][3] == delta and c - runs[-1][1] in (1, 2):
            step = c - runs[-1][1]
            if runs[-1][0] == runs[-1][1] or runs[-1][2] == step:
                runs[-1][1:3] = [c, step]
                continue
        runs.append([c, c, 1, delta])
    print(f"constexpr CaseRun k{name}Runs[] = {{")
    lines([f"{{{a}, {b}, {s}, {d}}}" for a, b, s, d in runs])
    print("};")
    print(f"constexpr CaseSeveral k{name}Several[] = {{")
    lines([f'{{{c}, "{"".join(chr(b) if b < 128 else "%s%03o" % (chr(92), b) for b in m.encode())}"}}' for c, m in several])
    print("};")


def lines(items):
    line = "   "
    for i in items:
        if len(line) + len(i) > 110:
            print(line)
            line = "   "
        line += f" {i},"
    print(line)


def main():
    print(f"// Made by tools/make_unicode_tables.py (Unicode {unicodedata.unidata_version}); do not edit.")
    case_table("Upper", str.upper)
    case_table("Lower", str.lower)
    case_table("Title", str.title)
    runs = []
    for c in range(0x80, sys.maxunicode + 1):
        if chr(c).isprintable():
            continue
        if runs and runs[-1][1] == c - 1:
            runs[-1][1] = c
        else:
            runs.append([c, c])
    print("constexpr CodeRange kNotPrintable[] = {")
    lines([f"{{{a}, {b}}}" for a, b in runs])
    print("};")
    print("constexpr CodeRange kCased[] = {")
    cased = []
    for c in ALL:
        if unicodedata.category(chr(c)) in ("Lu", "Ll", "Lt") or chr(c).upper() != chr(c) or chr(c).lower() != chr(c):
            if cased and cased[-1][1] == c - 1:
                cased[-1][1] = c
            else:
                cased.append([c, c])
    lines([f"{{{a}, {b}}}" for a, b in cased])
    print("};")


if __name__ == "__main__":
    main()
