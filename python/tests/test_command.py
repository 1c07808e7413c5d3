"""The lathe command of the package: words, exit codes and pipes are those of a program."""

import json
import os
import signal
import subprocess
import sys

import lathe

MAIN = [sys.executable, "-c", "from lathe._command import main; main()"]


def run(*words):
    return subprocess.run([*MAIN, *words], capture_output=True, text=True)


def test_words_and_exit_codes():
    done = run("layouts", "--json")
    assert done.returncode == 0 and done.stderr == ""
    names = [layout["name"] for layout in json.loads(done.stdout)]
    assert names == [layout.name for layout in lathe.layouts()]
    refused = run("plan", "--attention", "none")
    assert refused.returncode == 2 and refused.stdout == ""
    assert "none" in refused.stderr and "Traceback" not in refused.stderr
    assert lathe.__version__ in run("--version").stdout


def test_a_closed_pipe_ends_it():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*MAIN, "layouts"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE and done.stderr == ""  # as shells report it
