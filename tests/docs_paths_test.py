#!/usr/bin/env python3
"""Every file, folder and section that README.md, CONTRIBUTING.md, tests/README.md and docs/ name or link to exists, and docs/operators.md
lists every operator.

In notes, figures and model cards only links are read, as a note may name a file that has moved. Paths begin at the root, at src/ or at
src/kernels/cuda/. In commands only those that begin with a folder of the root are read. NAME, FAMILY and ROOM stand for any name.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests/README.md"])
LINKING = sorted([*ROOT.glob("bench/**/*.md"), *ROOT.glob("models/*/README.md")])
BASES = ["", "src", "src/kernels/cuda"]
BUILT = {"build", "dist", "out", "__pycache__"}

SUFFIX = r"\.(?:h|cc|cu|cuh|py|sh|md|cmake|html|svg|txt|json|jinja|toml)"
LINK = re.compile(r"\[[^\]]*\]\(([^)#:\s]*)(#[^)\s]*)?\)")
PATH = re.compile(rf"(?<![\w/.:*<>-])(?:[\w.-]+/)+[\w.-]*{SUFFIX}(?![\w*])")
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"[\w.+-]+\.(?:h|cc|cu|cuh|py|sh)")
FOLDER = re.compile(r"(?:[\w.-]+/)+[\w-]*")
BLOCK = re.compile(r"^```(\w*)\n.*?^```$", re.M | re.S)
# Written by a build, part of a published checkpoint, or with a placeholder.
ELSEWHERE = re.compile(r"^(?:build|build-\w+|dist|out|encoding)/|(?<![A-Za-z])(?:NAME|FAMILY|ROOM)(?![A-Za-z])")


def tree() -> tuple[set[str], set[str]]:
    """Files and folders below the root, without hidden and built ones."""
    found, folders, open_folders = set(), set(), [ROOT]
    while open_folders:
        for path in open_folders.pop().iterdir():
            name = str(path.relative_to(ROOT))
            if path.name.startswith(".") or path.name in BUILT or path.name.startswith("build-"):
                continue
            (folders if path.is_dir() else found).add(name)
            if path.is_dir():
                open_folders.append(path)
    return found, folders


def prose_of(document: pathlib.Path) -> str:
    """The text with spaces in place of its blocks of commands and output."""
    return BLOCK.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), document.read_text())


def anchors(document: pathlib.Path) -> set[str]:
    """The names that GitHub gives a document's headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", document.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


class Paths(unittest.TestCase):
    def setUp(self):
        self.files, self.folders = tree()
        self.tops = {f for f in self.folders if "/" not in f}
        self.roots = self.tops | {f.split("/")[1] for f in self.folders if f.startswith("src/")} | {"sm90"}

    def exists(self, path: str) -> bool:
        names = [str(pathlib.PurePath(base, path)) for base in BASES]
        return any(n in self.files or n in self.folders for n in names)

    def wrong_links(self, document: pathlib.Path):
        for match in LINK.finditer(prose_of(document)):
            target = (document.parent / match[1]).resolve() if match[1] else document
            if not target.exists() or (match[2] and target.suffix == ".md" and match[2][1:] not in anchors(target)):
                yield match.start(), match[1] + (match[2] or "")

    def wrong_paths(self, document: pathlib.Path):
        whole = document.read_text()
        # Commands and program output, in which users have files of their own. Blocks of plain text are read as prose.
        blocks = [m.span() for m in BLOCK.finditer(whole) if m[1] != "text"]
        for match in PATH.finditer(LINK.sub(lambda m: " " * len(m[0]), whole)):
            quoted = any(begin < match.start() < end for begin, end in blocks)
            if ELSEWHERE.search(match[0]) or (quoted and match[0].split("/")[0] not in self.tops):
                continue
            if not self.exists(match[0]):
                yield match.start(), match[0]
        for match in CODE.finditer(prose_of(document)):
            word = match[1]
            if ELSEWHERE.search(word):
                continue
            if NAME.fullmatch(word) and not any(f.split("/")[-1] == word for f in self.files):
                yield match.start(), word
            elif FOLDER.fullmatch(word) and word.split("/")[0] in self.roots and not self.exists(word):
                yield match.start(), word

    def check(self, documents, wrong):
        found = [f"{d.relative_to(ROOT)}:{d.read_text().count(chr(10), 0, at) + 1}: {what}" for d in documents for at, what in wrong(d)]
        self.assertEqual(found, [], "no such file, folder or section:\n" + "\n".join(found))

    def test_links(self):
        self.check(DOCUMENTS + LINKING, self.wrong_links)

    def test_paths(self):
        self.check(DOCUMENTS, self.wrong_paths)

    def test_names_of_tests(self):
        """Those of the table in tests/README.md: Suite.Name in src/, test_name in Python."""
        sources = [p.read_text() for p in [*ROOT.glob("src/**/test/*.cc"), *ROOT.glob("tests/*.py"), *ROOT.glob("python/tests/*.py")]]
        text = "\n".join(sources)
        table = re.sub(r"[\w/]+\.py", "", (ROOT / "tests/README.md").read_text())
        found = [f"{suite}.{name}" for suite, name in re.findall(r"\b([A-Z][A-Za-z]+)\.([A-Z]\w+)", table) if f"({suite}, {name}" not in text]
        found += [name for name in re.findall(r"\btest_\w+", table) if f"def {name}(" not in text]
        self.assertEqual(found, [], "tests/README.md names tests that are not there")

    def test_operators_are_listed(self):
        """Every operator of Backend, but for the two that pass tokens on, has a row in docs/operators.md, whose headers declare the function and the struct."""
        src = ROOT / "src"
        rows = re.findall(r"^\| `(\w+)` \|[^|]*\| `([^`]*)` \| (?:`(\w+)`, `([^`]*)`)? *\|", (ROOT / "docs/operators.md").read_text(), re.M)
        backend = (src / "kernels/backend.h").read_text()
        entries = re.findall(r"virtual [\w:<> ]+ (\w+)\(\s*const OpsContext&", backend[backend.index("// ---- Rows"):])
        self.assertEqual(sorted(name for name, *_ in rows), sorted(set(entries) - {"take_drawn", "share_draws"}))
        for name, header, struct, declared in rows:
            self.assertRegex((src / header).read_text(), rf"\b{name}\(", header)
            if struct:
                self.assertRegex((src / declared).read_text(), rf"struct {struct} \{{", declared)


if __name__ == "__main__":
    unittest.main()
