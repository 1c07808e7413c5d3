#!/usr/bin/env python3
"""What the Makefile offers, README and `make help` say; and what pip compiles, the C++ build has compiled.

usage: build_test.py BUILD
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).parent.parent


class Makefile(unittest.TestCase):
    def test_help_and_readme_list_every_target(self):
        phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
        told = re.findall(r"^make (\S+)", subprocess.run(["make", "-s", "-C", ROOT, "help"], capture_output=True, text=True).stdout, re.M)
        self.assertEqual(sorted(told), sorted(phony))
        readme = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
        self.assertEqual(readme, set(phony))


class Pip(unittest.TestCase):
    """ccache shares objects between compilations that are the same command."""

    def commands(self, build: pathlib.Path) -> dict[str, str]:
        """Of the objects of the rooms' libraries; programs are not what pip builds."""
        out = {}
        listed = subprocess.run(["ninja", "-C", build, "-t", "compdb"], capture_output=True, text=True, check=True).stdout
        for entry in json.loads(listed[listed.index("["):]):
            if not re.search(r"CMakeFiles/lathe_(?!\w*(_test|_emulated)\.dir)\w+\.dir/", entry["command"]):
                continue
            # ccache leaves out where the object and the list of what it depends on go.
            words = [w for w in entry["command"].split() if not re.search(r"CMakeFiles/", w)]
            out.setdefault(entry["file"], " ".join(words))
        return out

    def test_objects_are_those_of_the_build(self):
        python = BUILD / "python"
        if not (python / "build.ninja").exists():
            self.skipTest("pip has not built the module here")
        ours, theirs = self.commands(BUILD), self.commands(python)
        shared = [f for f in theirs if f in ours and f.startswith(str(ROOT / "src"))]
        self.assertGreater(len(shared), 50)
        for file in shared:
            self.assertEqual(theirs[file], ours[file])


if __name__ == "__main__":
    unittest.main()
