#!/usr/bin/env python3
"""Counts words that make comments hard to read, per 1,000 comment lines of src/ and include/.

check_words.py [FOLDER...]: prints each folder's rate, and exits with 1 if all together exceed the bound. --list prints the lines.
The bound leaves room for plain uses ("takes a lock"); gemma.cpp, highway and duckdb have 3.
"""

import pathlib
import re
import sys

MOST = 15
WORDS = re.compile(r"\b(lies?|lying|whose|those of|takes|so many|likewise|behind|beside)\b", re.I)
COMMENT = re.compile(r"(?:^|[\s;{}(),])//+(.*)$")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    folders = [a for a in sys.argv[1:] if not a.startswith("-")] or ["src", "include"]
    lines, found = {}, {}
    for folder in folders:
        for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in SUFFIXES):
            name = path.relative_to(root)
            key = "/".join(name.parts[:3] if name.parts[:2] == ("src", "kernels") else name.parts[:2])
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = COMMENT.search(line)
                if not match:
                    continue
                lines[key] = lines.get(key, 0) + 1
                hits = WORDS.findall(match[1])
                found[key] = found.get(key, 0) + len(hits)
                if hits and "--list" in sys.argv:
                    print(f"{name}:{number}: {match[1].strip()}")
    for key in sorted(lines):
        print(f"{key}: {1000 * found[key] / lines[key]:.1f} in 1,000 of {lines[key]} comment lines")
    rate = 1000 * sum(found.values()) / max(1, sum(lines.values()))
    print(f"all: {rate:.1f}, at most {MOST}")
    return 1 if rate > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
