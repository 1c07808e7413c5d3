#!/usr/bin/env python3
"""Checks the direction of includes: a room may include itself and the rooms above it, never one below.

Rooms are the folders of src/ in the order of docs/decisions.md. Prints each violation as file:line and exits with 1.
"""

import pathlib
import re
import sys

ROOMS = ["base", "layout", "attn", "kernels", "ops", "io", "model", "engine", "capi", "server", "tools"]
EXTERNAL = {"hwy"}  # included with quotes, as Highway's per-target inclusion asks for
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def main() -> int:
    src = pathlib.Path(__file__).resolve().parent.parent / "src"
    breaches = []
    for path in sorted(p for p in src.rglob("*") if p.suffix in SUFFIXES):
        room = path.relative_to(src).parts[0]
        if room not in ROOMS:
            breaches.append(f"{path}: {room} is not a room; rooms are {', '.join(ROOMS)}")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1).split("/")[0]
            if target in EXTERNAL:
                continue
            if target not in ROOMS:
                breaches.append(f"{path}:{number}: \"{match.group(1)}\" is not a path from src/")
            elif ROOMS.index(target) > ROOMS.index(room):
                breaches.append(f"{path}:{number}: {room} includes {target}, which is below it")
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
