#!/usr/bin/env python3
"""Counts words that make comments hard to read, per 1,000 comment lines of src/ and include/.

check_words.py [--list] [FOLDER or FILE...]: prints each folder's rate, and exits with 1 if all together exceed the bound. --list prints
the lines.
The bound leaves room for plain uses ("takes a lock"); gemma.cpp, highway and duckdb have 3.
"""

import argparse
import pathlib
import re
import sys

MOST = 15
WORDS = re.compile(r"\b(lies?|lying|whose|those of|takes|so many|likewise|behind|beside)\b", re.I)
COMMENT = re.compile(r"(?:^|[\s;{}(),])//+(.*)$")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("paths", nargs="*", default=["src", "include"])
    options = parser.parse_args()
    lines, found = {}, {}
    for given in options.paths:
        folder = (root / given).resolve()
        if not folder.exists() or not folder.is_relative_to(root):
            parser.error(f"no {given} in {root}")
        for path in sorted(p for p in [folder, *folder.rglob("*")] if p.suffix in SUFFIXES):
            name = path.relative_to(root)
            key = "/".join(name.parts[:3] if name.parts[:2] == ("src", "kernels") else name.parts[:2])
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = COMMENT.search(line)
                if not match:
                    continue
                lines[key] = lines.get(key, 0) + 1
                hits = WORDS.findall(match[1])
                found[key] = found.get(key, 0) + len(hits)
                if hits and options.list:
                    print(f"{name}:{number}: {match[1].strip()}")
    for key in sorted(lines):
        print(f"{key}: {1000 * found[key] / lines[key]:.1f} in 1,000 of {lines[key]} comment lines")
    rate = 1000 * sum(found.values()) / max(1, sum(lines.values()))
    print(f"all: {rate:.1f}, at most {MOST}")
    return 1 if rate > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
