#!/usr/bin/env python3
"""What the Makefile offers, README and `make help` say; and pip compiles where the C++ build does."""

import json
import pathlib
import re
import subprocess
import tomllib
import unittest

ROOT = pathlib.Path(__file__).parent.parent


class Makefile(unittest.TestCase):
    def test_help_and_readme_list_every_target(self):
        phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
        told = re.findall(r"^make (\S+)", subprocess.run(["make", "-s", "-C", ROOT, "help"], capture_output=True, text=True).stdout, re.M)
        self.assertEqual(sorted(told), sorted(phony))
        readme = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
        self.assertEqual(readme, set(phony))


class Pip(unittest.TestCase):
    def test_builds_where_the_release_preset_does(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        release = next(p for p in presets if p["name"] == "release")
        self.assertEqual("${sourceDir}/" + project["tool"]["scikit-build"]["build-dir"], release["binaryDir"])

    def test_each_setting_of_pip_has_a_value_in_the_preset(self):
        """Else what pip's build was told would stay for the next C++ build."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        release = next(p for p in presets if p["name"] == "release")
        self.assertLessEqual(set(project["tool"]["scikit-build"]["cmake"]["define"]), set(release["cacheVariables"]))


if __name__ == "__main__":
    unittest.main()
