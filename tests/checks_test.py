#!/usr/bin/env python3
"""What tools/check_rooms.py refuses and what it lets pass, and which files check_files.py takes, in trees of a few files."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import check_files
import check_rooms

LIBRARY = {"plan/plan.h": "", "engine/engine.h": "", "engine/test/engine_test_util.h": "", "kernels/cuda/sm90/matmul/matmul.h": ""}


def breaches(check, files: dict[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        src = pathlib.Path(folder)
        for name, text in files.items():
            (src / name).parent.mkdir(parents=True, exist_ok=True)
            (src / name).write_text(text)
        return check(src)


class Rooms(unittest.TestCase):
    def said(self, name: str, text: str = "") -> str:
        return "\n".join(breaches(check_rooms.include_breaches, LIBRARY | {name: text}))

    def test_each_spelling_of_an_include(self):
        for line in ('#include "engine/engine.h"', "#include <engine/engine.h>", "#  include  <engine/engine.h>", '#import "engine/engine.h"',
                     '#include_next "engine/engine.h"', '#include /* here */ "engine/engine.h"'):
            self.assertIn("plan may not include engine", self.said("plan/a.cc", line), line)
        for line in ('#include "../engine/engine.h"', '#include "plan/../engine/engine.h"', '#include "plan.h"', "#include <plan/../engine/engine.h>"):
            self.assertIn("is not a path from src/", self.said("plan/a.cc", line), line)
        for line in ("#include HEADER", '#include \\\n"engine/engine.h"'):
            self.assertIn("wanted #include", self.said("plan/a.cc", line), line)
        self.assertIn('wanted "plan/plan.h"', self.said("plan/a.cc", "#include <plan/plan.h>"))
        self.assertIn("a test's", self.said("engine/a.cc", '#include "engine/test/engine_test_util.h"'))
        self.assertEqual(self.said("plan/a.cc", '#include <vector>\n#include <fmt/format.h>\n#include "plan/plan.h"\n'), "")

    def test_each_kind_of_file_is_read(self):
        for name in ("plan/a.h", "plan/a.inc", "plan/deep/a.cc", "kernels/cuda/sm90/moe/a.cuh", "kernels/cuda/sm90/moe/a.cu", "plan/fake/a.h"):
            self.assertIn("may not include engine", self.said(name, '#include "engine/engine.h"'), name)
        self.assertEqual(self.said("plan/test/a_test.cc", '#include "engine/engine.h"'), "")

    def test_files_have_a_room(self):
        for name in ("a.h", "attic/a.h", "attic/test/a_test.cc", "model/attic/a.h", "kernels/cpu/attic/a.h", "kernels/cuda/sm90/attic/a.h"):
            self.assertIn("has no row", self.said(name), name)
        for name in ("plan/a.cpp", "plan/a.hpp", "plan/test/a.cc", "plan/test/deep/a_test.cc", "plan/test/A_test.cc", "plan/test/a_emulation.cc"):
            self.assertIn("wanted", self.said(name), name)
        for name in ("base/attic/a.h", "kernels/cuda/sm90/moe/test/a_emulation.cc"):
            self.assertEqual(self.said(name), "", name)


class Twins(unittest.TestCase):
    def said(self, one: str, other: str, wrap="namespace lathe {{\nnamespace {{\n{}\n}}\n}}\n") -> str:
        files = {"plan/a.cc": wrap.format(one), "plan/b.cc": wrap.format(other)}
        return "\n".join(breaches(check_rooms.twin_breaches, files))

    def test_two_definitions_of_one_name(self):
        for one, other in (
            ("int f(int a) {\n  return a;\n}", "int f(int b) { return b; }"),
            ("Result<int> f(const Foo& a) { return 1; }", "[[nodiscard]] Result<int> f(const Foo&) { return 1; }"),
            ("int f(int a, std::vector<int> b = {}) { return 1; }", "int f(int a) { return 1; }"),
            ("int f(const int a) noexcept { return 1; }", "static int f(int) { return 1; }"),
            ("auto f(std::map<int, int> a) -> int { return 1; }", "int f(std::map<int,int> b) { return 1; }"),
            ("template <typename T>\nT f(T a) {\n  return a;\n}", "template <class U> U f(U b) { return b; }"),
            ("bool operator==(const A& a, const A& b) { return true; }", "bool operator==(const A& x, const A& y) { return true; }"),
            ("struct F {\n  int a;\n};", "enum class F : int { a };"),
            ("constexpr int f = 1;", "constexpr auto f = [](int a) { return a; };"),
            ("const char* const f[] = {1};", "constexpr std::array f = {1};"),
            ("using F = int;", "using F = long;"),
        ):
            self.assertIn("plan/a.cc:3 too", self.said(one, other), one)
            self.assertIn("plan/a.cc:2 too", self.said(one, other, "namespace lathe {{\n{}\n}}\n"), one)

    def test_kernels_are_compiled_in_units(self):
        files = {f"kernels/cuda/sm90/{folder}/a.cu": "namespace {\nint f() { return 1; }\n}\n" for folder in ("codec", "moe")}
        self.assertIn("codec/a.cu:2 too", "\n".join(breaches(check_rooms.twin_breaches, files)))

    def test_what_may_be_in_two_files(self):
        for one, other in (
            ("int f(int a) { return a; }", "int f(long a) { return 1; }"),
            ("int f(int a) { return a; }", "int f(int a);"),
            ("struct F;", "struct F;"),
            ("using F = int;", "using F  = int;"),
            ("struct A {\n  int f(int a) { return a; }\n};", "struct B {\n  int f(int a) { return a; }\n};"),
            ('const char* a = R"(int f() { )"; int f() { return 1\'000; }', "// int f() { }\n/* int f() { } */"),
        ):
            self.assertEqual(self.said(one, other), "", one)
        self.assertEqual(self.said("int f() { return 1; }", "int f() { return 1; }", "// Compiled alone: a reason\nnamespace {{\n{}\n}}\n"), "")


class ChangedFiles(unittest.TestCase):
    def test_those_whose_header_lost_an_include(self):
        files = {"a.h": "#include <set>\n#include <map>\n", "b.h": '#include "a.h"\n', "b.cc": '#include "b.h"\n', "c.h": "#include <set>\n",
                 "c.cc": '#include "c.h"\n', "d.cc": "#include <set>\n", "deleted.h": ""}
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            git = lambda *a: subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *a], cwd=root, check=True, capture_output=True)
            write = lambda name, text: (root / "src" / name).write_text(text)
            (root / "src").mkdir()
            for name, text in files.items():
                write(name, text)
            git("init")
            git("add", ".")
            git("commit", "-m", "all")
            write("a.h", "#include <map>\n")
            write("c.h", "#include <set>\nint i;\n")
            write("new.h", "")
            (root / "src" / "deleted.h").unlink()
            self.assertEqual([p.name for p in check_files.changed_since("HEAD", root)], ["a.h", "b.cc", "b.h", "c.h", "new.h"])

    def test_headers_that_a_file_includes_first(self):
        files = {"a.cc": '// A.\n#include "a.h"\n#include "b.h"\n', "b.cc": '#include <set>\n#include "b.h"\n', "a.h": '#include "c.h"\n',
                 "b.h": "", "c.h": ""}
        with tempfile.TemporaryDirectory() as folder:
            src = pathlib.Path(folder)
            for name, text in files.items():
                (src / name).write_text(text)
            self.assertEqual(check_files.included_first([src / name for name in files], src), {src / "a.h"})


if __name__ == "__main__":
    unittest.main()
