#!/usr/bin/env python3
"""Keeps the program output in documents up to date.

usage: docs_blocks.py (--check | --write) LATHE [DOCUMENT...]

A fenced block that begins with ```console holds commands, each on a line "$ build/lathe ...", followed by their output. --check
reports blocks that differ and exits with 1; --write rewrites them. Default documents: README.md and docs/*.md.
"""

import difflib
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


def run_block(body: str, lathe: str) -> str:
    out = []
    for line in body.splitlines():
        if not line.startswith("$ "):
            continue
        words = shlex.split(line[2:])
        if words[0] != "build/lathe":
            sys.exit(f"docs_blocks: a console block may only run build/lathe, not: {line}")
        result = subprocess.run([lathe, *words[1:]], capture_output=True, text=True, cwd=ROOT)
        out.append(line + "\n" + result.stdout + result.stderr)
    return "".join(out)


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] not in ("--check", "--write"):
        print(__doc__, file=sys.stderr)
        return 2
    mode, lathe = sys.argv[1], str(pathlib.Path(sys.argv[2]).resolve())
    documents = [pathlib.Path(d) for d in sys.argv[3:]]
    documents = documents or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    differ = False
    for document in documents:
        text = document.read_text()
        fresh = BLOCK.sub(lambda m: f"```console\n{run_block(m.group(1), lathe)}```", text)
        if fresh == text:
            continue
        if mode == "--write":
            document.write_text(fresh)
            print(f"rewrote {document}")
        else:
            differ = True
            lines = difflib.unified_diff(text.splitlines(), fresh.splitlines(), str(document),
                                         "the program", lineterm="")
            print("\n".join(lines))
    if differ:
        print("docs_blocks: make docs rewrites them", file=sys.stderr)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
