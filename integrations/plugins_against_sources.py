#!/usr/bin/env python3
"""Tests the plug-ins against the real sources of vLLM and SGLang from PyPI, on a machine without a GPU.

    integrations/plugins_against_sources.py                    all releases that the plug-ins list as tested
    integrations/plugins_against_sources.py vllm==0.33.0       one release
    integrations/plugins_against_sources.py --lathe WHEEL ...  this wheel of lathe instead of the checkout

The first run takes some minutes and 8 GB in build/integrations, mostly for torch. It keeps only the Python files of an engine's wheel
and installs nothing of it.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / "build" / "integrations"
PLUGINS = {"vllm": "lathe_vllm", "sglang": "lathe_sglang"}


def tested(engine: str) -> list[str]:
    source = (HERE / PLUGINS[engine].replace("_", "-") / PLUGINS[engine] / "__init__.py").read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "TESTED":
            return [f"{engine}=={version}" for version in ast.literal_eval(node.value)]
    raise SystemExit(f"{PLUGINS[engine]}: wanted a list TESTED, got none")


def run(*command: object, **kwargs: object) -> None:
    done = subprocess.run([str(part) for part in command], **kwargs)
    if done.returncode != 0:
        raise SystemExit(f"plugins_against_sources.py: {command[0]} ended with {done.returncode}")


def environment(lathe: str | None) -> Path:
    """The interpreter of a virtual environment with torch, lathe and the plug-ins."""
    python = WORK / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not python.exists():
        run(sys.executable, "-m", "venv", WORK / "venv")
        run(*pip, "-r", HERE / "tests" / "requirements.txt")
        run(*pip, "--no-deps", "-r", HERE / "tests" / "requirements-bare.txt")
    if lathe:
        run(*pip, "--force-reinstall", "--no-deps", lathe)
    else:
        # In a folder of its own, so that build/ keeps its CUDA objects.
        run(*pip, HERE.parent, "-C", "cmake.define.LATHE_CUDA=OFF", "-C", f"build-dir={WORK / 'lathe'}")
    run(*pip, "--no-deps", "--force-reinstall", *(HERE / n.replace("_", "-") for n in PLUGINS.values()))
    return python


def sources(python: Path, release: str) -> Path:
    """The folder with the Python files of an engine's release."""
    folder = WORK / release
    if folder.exists():
        return folder
    wheels = WORK / "wheels"
    run(python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", wheels, release)
    wheel = next(wheels.glob(release.replace("==", "-") + "-*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [n for n in packed.namelist() if not n.endswith((".so", ".bin"))])
    wheel.unlink()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="*", help="vllm==VERSION or sglang==VERSION")
    parser.add_argument("--lathe", help="a wheel of lathe to test with")
    options = parser.parse_args()
    releases = options.release or [*tested("vllm"), *tested("sglang")]
    for release in releases:
        if release.split("==")[0] not in PLUGINS or "==" not in release:
            parser.error(f"release: wanted vllm==VERSION or sglang==VERSION, got {release}")
    WORK.mkdir(parents=True, exist_ok=True)
    python = environment(options.lathe)
    failed = []
    for release in releases:
        print(f"== {release}", flush=True)
        test = HERE / "tests" / f"test_{release.split('==')[0]}.py"
        path = os.pathsep.join([str(sources(python, release)), str(test.parent)])
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
            env={**os.environ, "PYTHONPATH": path},
        )
        if done.returncode != 0:
            failed.append(release)
    if failed:
        raise SystemExit(f"failed with {', '.join(failed)}")
    print(f"passed with {', '.join(releases)}")


if __name__ == "__main__":
    main()
