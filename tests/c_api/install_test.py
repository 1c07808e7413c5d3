#!/usr/bin/env python3
"""What a user of the library does with an installed tree: find_package, pkg-config, headers as C99 and C++20, ctypes; and what it exports.

usage: install_test.py BUILD SOURCE
"""

import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
del sys.argv[1:]
MODEL = SOURCE / "models/tiny-v32"
HEADERS = sorted((SOURCE / "include/lathe").glob("*.h"))
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]


def run(*command: object, **more: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def task(number: int) -> dict[str, str]:
    with gzip.open(SOURCE / "models/tasks/arithmetic.jsonl.gz", "rt") as lines:
        return next(json.loads(line) for i, line in enumerate(lines) if i == number)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.prefix = cls.root / "prefix"
        run("cmake", "--install", BUILD, "--component", "devel", "--prefix", cls.prefix)
        cls.library = next(cls.prefix.rglob("liblathe.so"))
        cls.env = {**os.environ, "LD_LIBRARY_PATH": str(cls.library.parent)}
        cls.env["PKG_CONFIG_PATH"] = str(cls.library.parent / "pkgconfig")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_cmake_project_builds_and_runs(self):
        build = self.root / "build"
        run("cmake", "-S", SOURCE / "examples/c", "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        said = run(build / "attend")
        self.assertIn("mla_fp8", said)
        item = task(5)
        self.assertEqual(run(build / "generate", MODEL, item["prompt"]).strip(), item["response"])
        bad = subprocess.run([build / "generate", "/nowhere", "x"], capture_output=True, text=True)
        self.assertEqual((bad.returncode, bad.stdout), (1, ""))
        self.assertIn("/nowhere", bad.stderr)

    def test_a_component_that_was_not_built_is_not_found(self):
        project = self.root / "component"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
            "find_package(lathe REQUIRED COMPONENTS tpu)\n"
        )
        command = ["cmake", "-S", project, "-B", project / "b", f"-DCMAKE_PREFIX_PATH={self.prefix}"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("without the component tpu", " ".join(done.stderr.split()))

    def test_pkg_config(self):
        program = self.root / "attend"
        flags = run("pkg-config", "--cflags", "--libs", "lathe", env=self.env).split()
        run("cc", "-std=c99", SOURCE / "examples/c/attend.c", "-o", program, *flags)
        said = run(program, env=self.env)
        lse = float(re.search(r"LSE (-?[\d.]+)", said)[1])
        # Logits of small random rows are near 0, so the sum over 100 keys is near 100.
        self.assertAlmostEqual(lse, 4.6, delta=0.3)

    def test_D6_pkg_config_has_the_usual_variables(self):
        wanted = {
            "prefix": self.prefix,
            "exec_prefix": self.prefix,
            "libdir": self.library.parent,
            "includedir": next(self.prefix.rglob("lathe.h")).parent.parent,
        }
        for name, folder in wanted.items():
            said = run("pkg-config", f"--variable={name}", "lathe", env=self.env).strip()
            self.assertTrue(said, name)
            self.assertEqual(pathlib.Path(said).resolve(), folder.resolve(), name)

    def test_D6_pkg_config_follows_the_folders(self):
        # prefix, libraries, headers, where the tree is at last; then what pkg-config says
        cases = [("/p", "lib/x86_64-linux-gnu", "include", "/moved", "/moved/lib/x86_64-linux-gnu", "/moved/include"),
                 ("/p", "/abs/lib64", "/abs/include", "/p", "/abs/lib64", "/abs/include"),
                 ("/p", "lib", "/abs/include", "/moved", "/moved/lib", "/abs/include")]
        for prefix, libraries, headers, at, libdir, includedir in cases:
            folder = self.root / "pc" / (libraries if libraries.startswith("lib") else "lib") / "pkgconfig"
            folder.mkdir(parents=True, exist_ok=True)
            script = self.root / "pc.cmake"
            script.write_text(f'include("{SOURCE}/cmake/LathePkgConfig.cmake")\nlathe_pkg_config("{folder}/lathe.pc")\n')
            run("cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", f"-DCMAKE_INSTALL_LIBDIR={libraries}", f"-DCMAKE_INSTALL_INCLUDEDIR={headers}",
                "-DPROJECT_VERSION=1.2", "-P", script)
            env = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
            for name, wanted in (("libdir", libdir), ("includedir", includedir)):
                said = run("pkg-config", f"--variable={name}", "lathe", env=env).strip()
                said = os.path.normpath(said).replace(str(self.root / "pc"), at)
                self.assertEqual(said, wanted, (libraries, headers))
            self.assertEqual(run("pkg-config", "--modversion", "lathe", env=env).strip(), "1.2")

    def test_the_static_library_needs_no_shared_one(self):
        program = self.root / "attend_static"
        flags = run("pkg-config", "--cflags", "--static", "--libs", "lathe", env=self.env).split()
        archive = self.library.parent / "liblathe.a"
        flags = [archive if flag == "-llathe" else flag for flag in flags]
        cuda = os.environ.get("LATHE_CUDART_FOLDER")
        run("cc", SOURCE / "examples/c/attend.c", "-o", program, *flags, *([f"-L{cuda}"] if cuda else []))
        needed = run("readelf", "-d", program)
        self.assertNotIn("liblathe", needed)
        self.assertIn("LSE", run(program))

    def test_headers_stand_alone(self):
        include = f"-I{self.prefix}/include"
        run("cc", "-std=c99", *WARNINGS, include, "-include", "lathe/lathe.h", "-x", "c", "/dev/null")
        for header in HEADERS:
            named = f"lathe/{header.name}"
            run("c++", "-std=c++20", *WARNINGS, include, "-include", named, "-x", "c++", "/dev/null")

    def test_exports_are_the_headers_functions(self):
        text = (SOURCE / "include/lathe/lathe.h").read_text()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        declared = set(re.findall(r"^\w[\w ]*[ *]+(lathe_\w+)\(", text, re.M))
        self.assertGreater(len(declared), 40)
        exported = set()
        for line in run("nm", "-D", "--defined-only", self.library).splitlines():
            kind, name = line.split()[1:3]
            if kind != "A":  # the version itself
                exported.add(name.removesuffix("@@LATHE_0"))
        self.assertEqual(exported, declared)
        self.assertIn("[liblathe.so.0]", run("readelf", "-d", self.library))

    def test_another_language_generates(self):
        items = [task(5), task(17), task(40)]
        prompts = [item["prompt"] for item in items]
        said = run(sys.executable, SOURCE / "examples/c/generate.py", self.library, MODEL, *prompts)
        answers = dict(re.findall(r"^(\d+): (.*)$", said, re.M))
        self.assertEqual([answers[str(n)] for n in (1, 2, 3)], [item["response"] for item in items])
        self.assertEqual(said.count("(stop, "), 3)
        bad = subprocess.run(
            [sys.executable, SOURCE / "examples/c/generate.py", self.library, "/nowhere", "x"],
            capture_output=True, text=True)
        self.assertEqual((bad.returncode, bad.stdout), (1, ""))
        self.assertIn("/nowhere: wanted a folder with config.json", bad.stderr)


if __name__ == "__main__":
    unittest.main()
