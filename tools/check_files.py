#!/usr/bin/env python3
"""Compiles files of src/ one by one, without writing objects: each must stand on its own includes.

check_files.py [--since COMMIT] [--jobs N] [FILE or FOLDER...]
All sources and headers of src/, or those given, or those that changed since COMMIT, new ones that git does not know included, and files
that include, through others too, a header that has lost an #include since. Flags are those of preset `debug`, which it configures in build-debug. A kernel (.cu, .cuh) is compiled
as C++ for the emulator. A header that one of the sources includes first is compiled with that one alone. Prints each file that does not compile with its first error, and exits with 1.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-debug"
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def configure():
    done = subprocess.run(["cmake", "--preset", "debug"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"check_files: cmake --preset debug: {done.stderr.strip()}")
    return json.loads((BUILD / "compile_commands.json").read_text())


def flags_of(entry):
    """A command's flags without compiler cache, precompiled headers, input and output."""
    words = shlex.split(entry["command"])
    compiler = next(i for i, w in enumerate(words) if re.search(r"(g\+\+|c\+\+|clang\+\+)[-\d.]*$", w))
    words = words[compiler:]
    out, skip = [], 0
    for i, word in enumerate(words):
        if skip:
            skip -= 1
        elif word in ("-o", "-c", "-MF", "-MT"):
            skip = 1
        elif word == "-include" and "cmake_pch" in words[i + 1]:
            skip = 1
        elif word not in ("-MD", "-Winvalid-pch"):
            out.append(word)
    return out


class Flags:
    """Which flags a file of src/ is compiled with."""

    def __init__(self, commands):
        self.own, self.folders, self.emulated = {}, {}, None
        for entry in commands:
            path = pathlib.Path(entry["file"])
            if "/emulated/" in str(path):
                self.emulated = self.emulated or flags_of(entry)
            if path.is_relative_to(ROOT / "tests") and path.suffix == ".cc":
                self.own[path] = flags_of(entry)
            if not path.is_relative_to(ROOT / "src"):
                continue
            emulated = "lathe_kernels_cuda_emulated" in entry["output"] if "output" in entry else "fake/rename.h" in entry["command"]
            if path not in self.own or not emulated:
                self.own[path] = flags_of(entry)
        for path, flags in self.own.items():
            if not path.is_relative_to(ROOT / "src"):
                continue
            for folder in (path.parent, *path.parent.parents):
                self.folders.setdefault((folder, "test" in path.parts), flags)

    def of(self, path):
        if path in self.own:
            return self.own[path]
        if path.suffix in (".cu", ".cuh"):
            return None if "test" in path.parts else self.emulated  # tests on a GPU are nvcc's alone
        for folder in (path.parent, *path.parent.parents) if path.is_relative_to(ROOT / "src") else ():
            flags = self.folders.get((folder, "test" in path.parts)) or self.folders.get((folder, False))
            if flags:
                return flags
        return None


def compile_alone(path, flags):
    """The first error, or nothing."""
    extra = ["-x", "c++"]
    if path.suffix in (".h", ".cuh"):
        extra += ["-Wno-pragma-once-outside-header", "-Wno-unused-function", "-Wno-unused-const-variable"]
        if "clang" not in flags[0]:
            extra.remove("-Wno-pragma-once-outside-header")
            extra += ["-Wno-error"]  # GCC has no flag for `#pragma once in main file`
    done = subprocess.run([*flags, "-fsyntax-only", *extra, str(path)], cwd=BUILD, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    found = re.search(r"^.*error: .*$", done.stderr, re.M)
    return found[0] if found else done.stderr.strip().split("\n")[-1]


def includers_of(headers, src):
    """The files of `src` that include one of `headers`, themselves or through others."""
    including = {}
    for path in src.rglob("*"):
        if path.suffix in SUFFIXES:
            for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
                including.setdefault(src / name, set()).add(path)
    found, new = set(), set(headers)
    while new:
        new = set().union(*(including.get(header, ()) for header in new)) - found
        found |= new
    return found


def changed_since(commit, root=ROOT):
    """Files of src/ that differ from the commit's, and those that may have lost an include: their header was all that had it."""

    def git(*command):
        said = subprocess.run(["git", *command, "--", "src"], cwd=root, capture_output=True, text=True)
        if said.returncode != 0:
            sys.exit(f"check_files: --since {commit}: {said.stderr.strip()}")
        return said.stdout

    changed = git("diff", "--name-only", "--diff-filter=d", commit).split() + git("ls-files", "--others", "--exclude-standard").split()
    shorter = [part.split("\n", 1)[0] for part in git("diff", "--no-renames", "--diff-filter=d", "-U0", commit).split("\n+++ b/")[1:]
               if re.search(r"^-#include ", part, re.M)]
    headers = [root / name for name in shorter if name.endswith((".h", ".cuh"))]
    return sorted({root / name for name in changed} | includers_of(headers, root / "src"))


def named(path):
    """A file that was named, or the sources of a folder."""
    path = path.resolve()
    if not path.exists():
        sys.exit(f"check_files: no file or folder {path}")
    if not path.is_relative_to(ROOT) or (path.is_file() and path.suffix not in SUFFIXES):
        sys.exit(f"check_files: {path}: wanted a source or header of {ROOT}/src")
    return sorted(path.rglob("*")) if path.is_dir() else [path]


def included_first(files, src):
    """Headers that stand on their own includes if these files compile: nothing comes before them."""
    firsts = (re.search(r'^#include ("?)([^">]+)', f.read_text(), re.M) for f in files if f.suffix in (".cc", ".cu"))
    return {src / first[2] for first in firsts if first and first[1]}


# Headers that are parts of one file: Highway's, included once for each SIMD target.
def is_part(path):
    return path.name.endswith("-inl.h")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    files = [f for path in options.files for f in named(path)]
    if options.since:
        files += changed_since(options.since)
    elif not files:
        files = sorted((ROOT / "src").rglob("*"))
    files = [f for f in files if f.suffix in SUFFIXES and not is_part(f)]
    if not files:
        print("no sources")
        return 0
    flags = Flags(configure())
    built = [f for f in files if flags.of(f) is not None]
    if others := [str(f.relative_to(ROOT)) for f in files if flags.of(f) is None]:
        print(f"{len(others)} not part of this build: {' '.join(others[:8])}{' ...' if len(others) > 8 else ''}")
    files, failed = [f for f in built if f not in included_first(built, ROOT / "src")], 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for path, error in zip(files, pool.map(lambda f: compile_alone(f, flags.of(f)), files)):
            if error:
                failed += 1
                print(f"{path.relative_to(ROOT)} does not compile alone: {error}", flush=True)
    print(f"{len(files) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
