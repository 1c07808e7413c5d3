#!/usr/bin/env python3
"""Checks the machine code of CUDA objects against the tables next to the kernels. Needs no GPU.

check_sass.py TABLES OBJECT... : TABLES is a folder; every sass.txt in it is a table with a line per kind of kernel

    kernel  registers  shared  needs

kernel     a pattern (fnmatch, without spaces) for the demangled name without namespace and arguments; exactly one pattern of all
           tables must match a kernel
registers  most registers per thread
shared     exact bytes of static shared memory
needs      instructions that must occur (HGMMA,QGMMA), or -

Kernels may not use local memory: no stack, no LDL or STL. Nor may each wgmma be waited for before the next: ptxas makes products
serial where it cannot follow their accumulators, and warns with C7510 at most. Nor may a loop wait for all products before a wait
that would let some run on: ptxas adds such waits, too. A kernel without a line is a fault, and so is a line without a kernel.
Prints each fault and exits with 1, or with 77 (skipped) if there is no cuobjdump. Looks for it in $CUOBJDUMP, on PATH, next to
nvcc and among the Python packages (nvidia-cuda-cuobjdump with nvidia-cuda-nvdisasm).
"""

import fnmatch
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77
# Hopper's driver reserves this much of every block's shared memory; cuobjdump includes it.
RESERVED_SHARED = 1024
# Fewer products than these may all be waited for by intention.
SERIAL_PRODUCTS = 4


def find_cuobjdump():
    candidates = [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump")]
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    candidates.append(str(pathlib.Path(nvcc).with_name("cuobjdump")))
    for folder in [*sys.path, *glob.glob("build*/venv/lib/python3*/site-packages")]:
        candidates += sorted(glob.glob(os.path.join(folder, "nvidia", "cu*", "bin", "cuobjdump")))
    for path in candidates:
        if not path or not os.access(path, os.X_OK):
            continue
        # It runs nvdisasm, which is next to it or on PATH.
        if pathlib.Path(path).with_name("nvdisasm").exists() or shutil.which("nvdisasm"):
            return path
    return None


def run(cuobjdump, flag, path):
    env = dict(os.environ, PATH=f"{os.path.dirname(cuobjdump)}{os.pathsep}{os.environ.get('PATH', '')}")
    done = subprocess.run([cuobjdump, flag, path], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"check_sass: {cuobjdump} {flag} {path}: {done.stderr.strip()}")
    return done.stdout


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.splitlines()))


def short_name(signature):
    """void lathe::cuda::encode_kernel<lathe::bf16, true>(lathe::cuda::EncodeParams) -> encode_kernel<bf16,true>"""
    name = re.sub(r"\(anonymous namespace\)::", "", signature)
    name = re.sub(r"\([\w:]+\)(?=\d)", "", name)  # an enumeration's constant: (Kind)2
    name = re.sub(r"\b\w+::", "", name.split("(")[0])
    return name.removeprefix("void ").replace(" ", "")


def read_object(cuobjdump, path):
    """{mangled name: {registers, stack, shared, instructions, products, waits, stalls}} of an object's kernels."""
    kernels = {}
    usage = run(cuobjdump, "-res-usage", path)
    for name, registers, stack, shared in re.findall(
            r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage):
        kernels[name] = {"registers": int(registers), "stack": int(stack),
                         "shared": max(0, int(shared) - RESERVED_SHARED), "instructions": set(), "products": 0, "waits": 0,
                         "code": []}
    current = None
    for line in run(cuobjdump, "-sass", path).splitlines():
        if match := re.search(r"Function : (\S+)", line):
            current = kernels.get(match.group(1))
        elif current is not None and (match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line)):
            instruction = match.group(1)
            current["instructions"].add(instruction.split(".")[0])
            current["products"] += instruction.startswith(("HGMMA", "QGMMA"))
            current["waits"] += instruction.startswith("WARPGROUP.DEPBAR")
            if instruction.startswith(("HGMMA", "QGMMA", "WARPGROUP.DEPBAR", "BRA")):
                current["code"].append((int(line.split("/*")[1].split("*/")[0], 16), line.split("*/")[1]))
    for kernel in kernels.values():
        kernel["stalls"] = sum(stalls(loop) for loop in innermost_loops(kernel.pop("code")))
    return kernels


def innermost_loops(code):
    """Yields the instructions of each loop without another: code is [(address, text)] of branches, products and waits."""
    loops = []
    for address, text in code:
        match = re.search(r"\bBRA (?:\S+, )?0x([0-9a-f]+)", text)
        if match and int(match.group(1), 16) <= address:
            loops.append((int(match.group(1), 16), address))
    for begin, end in loops:
        if not any(begin <= other[0] and other[1] <= end and other != (begin, end) for other in loops):
            yield [text for address, text in code if begin <= address <= end]


def stalls(loop):
    """Waits for up to n groups of products at which no more than n can be unfinished, after a wait for all in the same loop."""
    waits = [re.search(r"DEPBAR.LE gsb0, 0x([0-9a-f]+)", text) for text in loop]
    alls = [i for i, wait in enumerate(waits) if wait and int(wait.group(1), 16) == 0]
    if not alls:
        return 0
    count = groups = 0
    for i in range(alls[0], alls[0] + len(loop)):
        wait = waits[i % len(loop)]
        if wait and int(wait.group(1), 16) == 0:
            groups = 0
        elif wait:
            count += groups <= int(wait.group(1), 16)
        elif re.search(r"GMMA.*\bgsb0", loop[i % len(loop)]):
            groups += 1
    return count


def read_tables(folder):
    rows = []
    for path in sorted(pathlib.Path(folder).rglob("sass.txt")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) != 4 or not words[1].isdigit() or not words[2].isdigit():
                sys.exit(f"{path}:{number}: wanted: kernel registers shared needs")
            needs = set() if words[3] == "-" else set(words[3].split(","))
            rows.append({"at": f"{path}:{number}", "pattern": words[0], "registers": int(words[1]),
                         "shared": int(words[2]), "needs": needs, "used": False})
    return rows


def faults_of(name, found, row):
    if found["stack"] or found["instructions"] & {"LDL", "STL"}:
        yield f"uses local memory ({found['stack']} bytes of stack)"
    if found["registers"] > row["registers"]:
        yield f"uses {found['registers']} registers, declared {row['registers']}"
    if found["shared"] != row["shared"]:
        yield f"uses {found['shared']} bytes of shared memory, declared {row['shared']}"
    if found["products"] >= SERIAL_PRODUCTS and found["waits"] >= found["products"]:
        yield f"waits {found['waits']} times for {found['products']} wgmmas, so they run one after another"
    if found["stalls"]:
        yield "has a loop that waits for all wgmmas, and then for all but some"
    if missing := sorted(row["needs"] - found["instructions"]):
        yield f"has no {', '.join(missing)}, which the table requires"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    cuobjdump = find_cuobjdump()
    if cuobjdump is None:
        print("check_sass: skipped, no cuobjdump (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return SKIPPED
    rows = read_tables(sys.argv[1])
    kernels = {}
    for path in sys.argv[2:]:
        if path.endswith(".cu.o"):
            kernels.update(read_object(cuobjdump, path))
    faults = []
    for mangled, signature in sorted(demangled(list(kernels)).items(), key=lambda item: item[1]):
        name = short_name(signature)
        matching = [row for row in rows if fnmatch.fnmatchcase(name, row["pattern"])]
        for row in matching:
            row["used"] = True
        if len(matching) != 1:
            described = ", ".join(row["at"] for row in matching) or "nothing"
            faults.append(f"{name}: wanted one line that matches it, got {described}")
            continue
        faults += [f"{matching[0]['at']}: {name} {fault}" for fault in faults_of(name, kernels[mangled], matching[0])]
    faults += [f"{row['at']}: no kernel matches {row['pattern']}" for row in rows if not row["used"]]
    for fault in faults:
        print(fault)
    print(f"check_sass: {len(kernels)} kernels, {len(faults)} faults")
    return 1 if faults or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
