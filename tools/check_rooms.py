#!/usr/bin/env python3
"""Checks the walls of src/: what each folder may include, that every file is in a room, and that no room has two definitions of one name.

check_rooms.py          prints each breach as file:line with the rule and the row to change, and exits with 1
check_rooms.py --table  prints the table of docs/architecture.md
check_rooms.py --write  writes it there; without, a table that differs is a breach

ROOMS is the table, lowest layers first. A row is for a folder and its subfolders; where one subfolder has a row, all have. The folder's
files may include themselves and the folders that the row names. Tests (folders named test/) may include anything.
"""

import pathlib
import re
import sys

from definitions import definitions

KERNELS = "base layout attn plan step kernels"
HOST = f"{KERNELS} ops io"
SM90 = f"{KERNELS} kernels/cuda/common"
FAKE, ANYTHING = "kernels/cuda/fake", "anything"

# folder, what it is for, what it may include
ROOMS = [
    ("base", "errors, number formats, memory, arenas, threads", ""),
    ("layout", "cache layouts as values: sizes, offsets, rules", "base"),
    ("layout/pages", "index units, pools, page tables, prefix cache", "base layout"),
    ("layout/codec", "rows of numbers to cached bytes and back", "base layout layout/pages"),
    ("layout/rope", "rotary embedding, and the write into the cache", "base layout layout/pages layout/codec"),
    ("attn", "what attention computes: problems, arguments and their checks, capabilities", "base layout"),
    ("plan", "the planner: registry, rules, costs, refusals, budgets, model plans", "base layout attn"),
    ("step", "one forward step's metadata, and the attention operator over it", "base layout attn plan"),
    ("kernels", "the boundary to devices: one entry per operator, and the operators' arguments", "base layout attn plan step"),
    ("kernels/ref", "the oracle: loops in double precision", KERNELS),
    ("kernels/cpu/common", "what the CPU's operators share: tasks, rows, dot products", KERNELS),
    ("kernels/cpu/tile", "register tiles of attention: dot products and softmax", f"{KERNELS} kernels/cpu/common"),
    ("kernels/cpu/matmul", "matrix products (GEMM) with weights", f"{KERNELS} kernels/cpu/common"),
    ("kernels/cpu/rowwise", "norms, activations, sums", f"{KERNELS} kernels/cpu/common kernels/cpu/matmul"),
    ("kernels/cpu/moe", "experts", f"{KERNELS} kernels/cpu/common kernels/cpu/matmul kernels/cpu/rowwise"),
    ("kernels/cpu/latent", "latent attention", f"{KERNELS} kernels/cpu/common kernels/cpu/tile"),
    ("kernels/cpu/grouped_query", "grouped-query attention", f"{KERNELS} kernels/cpu/common kernels/cpu/tile"),
    ("kernels/cpu/ragged", "attention over keys expanded from latents", f"{KERNELS} kernels/cpu/common kernels/cpu/tile kernels/cpu/matmul"),
    ("kernels/cpu/indexer", "index keys, scores, top-k", f"{KERNELS} kernels/cpu/common"),
    ("kernels/cpu/compress", "compressed entries", f"{KERNELS} kernels/cpu/common"),
    ("kernels/cpu/delta", "delta-rule layers", f"{KERNELS} kernels/cpu/common"),
    ("kernels/cpu/hyper", "hyper-connections", f"{KERNELS} kernels/cpu/common"),
    ("kernels/cpu/sampling", "logits to tokens", f"{KERNELS} kernels/cpu/common"),
    ("kernels/cpu", "the CPU's backend and its kernels' capabilities", KERNELS + " kernels/cpu/*"),
    (FAKE, "the CUDA runtime and device of tests on the CPU", ANYTHING),
    ("kernels/cuda/common", "what device code shares: barriers, wgmma, TMA, launches, streams", "base layout attn kernels kernels/cuda/fake"),
    ("kernels/cuda/sm90/attention", "what the attention families share: row max, masks, swizzle", SM90),
    ("kernels/cuda/sm90/codec", "cache codecs, RoPE and the write", SM90),
    ("kernels/cuda/sm90/step", "a step's lists and work, made on the device", SM90),
    ("kernels/cuda/sm90/rowwise", "norms, activations, fused query and key preparation", f"{SM90} kernels/cuda/sm90/codec"),
    ("kernels/cuda/sm90/matmul", "matrix products (GEMM) with weights", SM90),
    ("kernels/cuda/sm90/gqa", "grouped-query attention", f"{SM90} kernels/cuda/sm90/attention"),
    ("kernels/cuda/sm90/latent", "latent attention", f"{SM90} kernels/cuda/sm90/attention kernels/cuda/sm90/step"),
    ("kernels/cuda/sm90/ragged", "attention over keys expanded from latents", f"{SM90} kernels/cuda/sm90/attention kernels/cuda/sm90/codec "
     "kernels/cuda/sm90/matmul kernels/cuda/sm90/gqa"),
    ("kernels/cuda/sm90/indexer", "index scores and top-k", SM90),
    ("kernels/cuda/sm90/moe", "routing and placing of experts' rows", SM90),
    ("kernels/cuda/sm90/compress", "compressed entries", f"{SM90} kernels/cuda/sm90/codec kernels/cuda/sm90/rowwise"),
    ("kernels/cuda/sm90/delta", "delta-rule layers", SM90),
    ("kernels/cuda/sm90/hyper", "hyper-connections", f"{SM90} kernels/cuda/sm90/matmul"),
    ("kernels/cuda/sm90/random", "random weights", SM90),
    ("kernels/cuda/sm90/exchange", "sums and exchanges between GPUs of one host, over peer memory", SM90),
    ("kernels/cuda/sm90/sampling", "logits to tokens", SM90),
    ("kernels/cuda/runtime", "copies to the device, step start, idle times", f"{SM90} kernels/cuda/sm90/*"),
    ("kernels/cuda/exchange", "communicators of GPUs: peer memory, NCCL", f"{SM90} kernels/cuda/sm90/exchange"),
    ("kernels/cuda/operators", "operators of more than one kernel", f"{SM90} kernels/cuda/sm90/* kernels/cuda/runtime"),
    ("kernels/cuda", "the GPU's backend, and its kernels' capabilities", f"{SM90} kernels/cuda/*"),
    ("kernels/devices", "every device of this build: its kernels, backend and machine", f"{KERNELS} kernels/*"),
    ("ops", "device-neutral operators: check arguments, call the backend", KERNELS),
    ("io/text", "UTF-8, JSON, Python's string operations", "base"),
    ("io/files", "whole, mapped and compressed files", "base io/text"),
    ("io/checkpoint", "safetensors", "base io/text io/files"),
    ("io/tokenizer", "text to tokens and back", "base io/text io/files"),
    ("io/template", "chat templates: a Jinja interpreter, DeepSeek V4's prompts", "base io/text io/files io/tokenizer"),
    ("model/config", "config.json in one form for all architectures", HOST),
    ("model/architectures", "one file per architecture", f"{HOST} model/config"),
    ("model", "the interface of a model: weights, caches, a forward pass", f"{HOST} model/config"),
    ("model/weights", "the table of tensors, and the weights", f"{HOST} kernels/ref model/config model"),
    ("model/layers", "the decoder and its layers", f"{HOST} model/config model model/weights"),
    ("model/load", "weights from files, or random ones", f"{HOST} kernels/ref model/config model model/weights model/layers"),
    ("model/memory", "a model's plan: activations, budgets, what fits", f"{HOST} model/config model model/weights model/layers"),
    ("engine/request", "requests, stop strings, streamed text", f"{HOST} model"),
    ("engine/schedule", "who runs in a step, and which pages they get", f"{HOST} model engine/request"),
    ("engine/runner", "a batch on the device, and its memory", f"{HOST} model engine/request engine/schedule"),
    ("engine/draft", "drafters, and how long drafts are", f"{HOST} model engine/request engine/schedule engine/runner"),
    ("engine", "the engine's step, its thread, the runtime of a process", f"{HOST} model engine/*"),
    ("capi", "liblathe: the C interface of include/lathe/lathe.h", f"{HOST} model engine kernels/ref kernels/cuda/common kernels/cuda/operators"),
    ("server/http", "sockets and HTTP", "base"),
    ("server/markup", "reasoning and tool calls in an answer's text", "base io"),
    ("server/grammar", "grammars and JSON schemas as token masks", f"{HOST} engine"),
    ("server/metrics", "Prometheus metrics", f"{HOST} engine"),
    ("server/openai", "OpenAI's fields and shapes", f"{HOST} model engine server/http server/markup server/grammar"),
    ("server/responses", "/v1/responses: OpenAI's other fields and shapes", f"{HOST} model engine server/http server/markup server/grammar server/openai"),
    ("server/messages", "/v1/messages: Anthropic's fields and shapes", f"{HOST} model engine server/http server/markup server/grammar server/openai"),
    ("server/page", "the page", "base server/http"),
    ("server/service", "requests in progress, overload, drain", f"{HOST} model engine server/http server/markup server/grammar server/metrics "
     "server/openai server/responses server/messages"),
    ("server/routes", "the table of routes", f"{HOST} model engine server/http server/openai server/messages server/page server/service"),
    ("server", "a server over a runtime", f"{HOST} model engine server/*"),
    ("server/scripted", "a server over a scripted model", f"{HOST} model engine server/* server"),
    ("tools/flags", "the flags of subcommands", f"{HOST} model engine server"),
    ("tools/terminal", "answers, prompts and boxes on a terminal", f"{HOST} model engine server tools/flags"),
    ("tools/eval", "lathe eval", f"{HOST} model engine server tools/flags tools/terminal"),
    ("tools/bench", "lathe bench", f"{HOST} model engine server kernels/* tools/flags tools/terminal tools/eval"),
    ("tools", "the lathe command, one file per subcommand", f"{HOST} model engine capi server tools/*"),
]
EXTERNAL = {"hwy"}  # included with quotes, as Highway's per-target inclusion asks for
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
SOURCES = SUFFIXES | {".inc"}
OTHER_SUFFIXES = {".c", ".cpp", ".cxx", ".hpp", ".hh", ".inl"}
INCLUDE = re.compile(r"^\s*#\s*(?:include(?:_next)?|import)\b(.*)")
TARGET = re.compile(r'\s*(?:/\*.*?\*/\s*)*(["<])([^">]+)[">]')
# What the build looks for.
TEST = re.compile(r".*/test/[a-z0-9_]+_(?:test|bench)\.cc|kernels/cuda/.*/test/[a-z0-9_]+_emulation\.cc")
HERE = "tools/check_rooms.py"
FOLDERS = [folder for folder, _, _ in ROOMS]
# In a row of another room, such a name stands for all folders of the room.
WHOLE = {"layout", "io", "model", "engine", "server"}


def row_of(path: str) -> str | None:
    """The row that holds a file: the longest of its folders that has one."""
    parts = path.split("/")[:-1]
    while parts:
        if "/".join(parts) in FOLDERS:
            return "/".join(parts)
        parts.pop()
    return None


def allowed(row: str) -> set[str]:
    names = next(may for folder, _, may in ROOMS if folder == row).split()
    if names == [ANYTHING]:
        return set(FOLDERS)
    out = {row}
    for name in names:
        if name.endswith("/*"):
            out |= {f for f in FOLDERS if f.startswith(name[:-1]) and FOLDERS.index(f) < FOLDERS.index(row)}
        elif name in WHOLE and row.split("/")[0] != name:
            out |= {f for f in FOLDERS if f == name or f.startswith(name + "/")}
        else:
            out.add(name)
    if "kernels" in names and row.split("/")[0] not in ("kernels",):
        out.add("kernels/devices")
    return out


def place_breaches(name: str) -> list[str]:
    """What is wrong with where a file is, or with its name."""
    folder, row, suffix = str(pathlib.PurePath(name).parent), row_of(name), pathlib.PurePath(name).suffix
    inside = row != folder and any(f.startswith(f"{row}/") for f in FOLDERS)
    if row is None or (inside and "/test/" not in name):
        return [f"src/{name}: {'src/' if folder == '.' else folder} has no row in {HERE}"]
    if suffix in OTHER_SUFFIXES:
        return [f"src/{name}: wanted a name that ends in .h, .cc, .cu, .cuh or .inc, got {suffix}"]
    if suffix == ".cc" and "/test/" in name and not TEST.fullmatch(name):
        return [f"src/{name}: the build has no such test; wanted test/NAME_test.cc, of small letters, digits and _"]
    return []


def include_breach(src: pathlib.Path, directive: str, row: str, may: set[str]) -> list[str]:
    """What is wrong with the rest of an #include line."""
    match = TARGET.match(directive)
    if not match:
        return [f'wanted #include "PATH" or #include <PATH>, got {directive.strip()}']
    quote, target = match.groups()
    known = (src / target).exists()
    if target.split("/")[0] in EXTERNAL or (quote == "<" and not known):
        return []
    folder = row_of(target)
    if folder is None or not known or {".", ".."} & set(target.split("/")):
        return [f'"{target}" is not a path from src/']
    if "/test/" in target:
        return [f'includes "{target}", a test\'s']
    if folder not in may:
        return [f'includes "{target}"; {row} may not include {folder} (row "{row}" of {HERE})']
    return [f'wanted "{target}", got <{target}>'] if quote == "<" else []


def include_breaches(src: pathlib.Path) -> list[str]:
    breaches = []
    may = {row: allowed(row) for row in FOLDERS}
    for row, names in may.items():
        for name in names:
            if name not in FOLDERS:
                breaches.append(f"{HERE}: row {row}: {name} is not a folder of the table")
            elif FOLDERS.index(name) > FOLDERS.index(row) and row != FAKE:
                breaches.append(f"{HERE}: row {row} may include {name}, which is a higher layer")
    for path in sorted(p for p in src.rglob("*") if p.suffix in SOURCES | OTHER_SUFFIXES):
        name = str(path.relative_to(src))
        breaches += place_breaches(name)
        row = row_of(name)
        if row is None or "/test/" in name:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := INCLUDE.match(line):
                breaches += [f"src/{name}:{number}: {breach}" for breach in include_breach(src, match[1], row, may[row])]
    return breaches


def batch_of(name: str) -> tuple[str, str] | None:
    """Files of one batch are compiled together. Nothing for programs of one file."""
    test = "test" if "/test/" in name else ""
    if name.endswith("_fake_cuda_test.cc"):
        return "fake_cuda", "test"
    if test and (name.endswith(".cu") or re.search(r"_(gpu_test|bench)\.cc$", name)):
        return None
    if name.endswith(".cu"):
        return "units of kernels", test
    parts = name.split("/")
    if name.startswith("kernels/cpu/") and not test:
        return "/".join(parts[:-1]), test
    return "/".join(parts[:2] if parts[0] == "kernels" else parts[:1]), test


def twin_breaches(src: pathlib.Path) -> list[str]:
    """Files of a room are compiled in batches: two definitions of one name (and signature) may meet in one."""
    breaches = []
    seen: dict[tuple, tuple] = {}
    for path in sorted(p for p in src.rglob("*") if p.suffix in (".cc", ".cu")):
        name = str(path.relative_to(src))
        text = path.read_text()
        if re.search(r'^// Compiled alone: |^#include "hwy/foreach_target.h"', text, re.M):
            continue
        if "// Compiled alone" in text:
            breaches.append(f'src/{name}: wanted a line that begins with "// Compiled alone: ", which the build looks for')
        batch = batch_of(name)
        if batch is None:
            continue
        told = set()
        for space, (kind, what, *rest), line in definitions(text):
            key = (batch, space, what, *(rest if kind == "function" else ()))
            other, *alias = seen.setdefault(key, (f"src/{name}:{line}", *(rest if kind == "alias" else ())))
            if other.startswith(f"src/{name}:") or (kind == "alias" and alias == rest) or (what, line) in told:
                continue
            if batch[0].startswith("kernels/cpu/") and not batch[1] and kind != "function":
                continue  # compiled file by file; a function in two files is a copy
            told.add((what, line))
            same = f"{what}() is in {other} too, with the same arguments" if kind == "function" else f"{what} is in {other} too"
            breaches.append(f"src/{name}:{line}: {same}; share it, or give one another name")
    return breaches


def table() -> str:
    lines = ["| folder | what it is for | may include |", "| --- | --- | --- |"]
    for folder, what, may in ROOMS:
        names = may.split()
        cells = []
        model, engine = [*HOST.split(), "model"], [*HOST.split(), "model", "engine"]
        for last, group in (("engine", engine), ("model", model), ("io", HOST.split()), ("kernels", KERNELS.split())):
            if set(group) <= set(names) and folder.split("/")[0] != last:
                cells.append(f"up to `{last}`")
                names = [n for n in names if n not in group]
        cells += [n if n == ANYTHING else f"`{n}`" for n in names]
        lines.append(f"| `{folder}` | {what} | {', '.join(cells) or 'nothing'} |")
    return "\n".join(lines)


def document_breaches(document: pathlib.Path, write: bool) -> list[str]:
    """The table between the marks of docs/architecture.md is table()."""
    text = document.read_text()
    wanted, found = re.subn(r"(?<=<!-- rooms -->\n).*?(?=\n<!-- end of rooms -->)", lambda _: table(), text, flags=re.S)
    if found != 1:
        return ["docs/architecture.md: wanted one table between <!-- rooms --> and <!-- end of rooms -->"]
    if wanted == text:
        return []
    if write:
        document.write_text(wanted)
        return []
    return [f"docs/architecture.md: the table of rooms is not the one of {HERE}; {HERE} --write rewrites it"]


def main() -> int:
    if "--table" in sys.argv:
        print(table())
        return 0
    root = pathlib.Path(__file__).resolve().parent.parent
    src = root / "src"
    breaches = include_breaches(src) + twin_breaches(src) + document_breaches(root / "docs/architecture.md", "--write" in sys.argv)
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
