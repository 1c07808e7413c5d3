"""The examples run; they assert by themselves that what they print is so."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(script):
    # Measurements belong on an idle machine; here it only has to run.
    more = ["--quick"] if script.stem == "crossing_points" else []
    command = [sys.executable, str(script), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 3 <= len(done.stdout.splitlines()) <= 20


def test_there_are_examples():
    assert len(list(EXAMPLES.glob("*.py"))) == 5
