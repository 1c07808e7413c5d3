#!/usr/bin/env python3
"""Checkpoints with one file damaged in one place: every command runs, or ends with one line that says what is wrong.

A file becomes empty, cut, a folder, a pipe, a link that leads nowhere or to itself, unreadable, UTF-16, or has another kind of line ends; a key of
its JSON is deleted, written twice, or gets a value of another type or size. `lathe inspect`, `plan`, `generate` and `serve` read the result, and what
`inspect` accepts, `generate` runs. LATHE_SEED sets the seed, which is printed, and LATHE_CASES the number of random cases.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import scripted_checkpoint

LATHE = sys.argv.pop(1)
SEED = int(os.environ.get("LATHE_SEED", "1"))
CASES = int(os.environ.get("LATHE_CASES", "150"))
JSONS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"]
WEIGHTS = "model-00001-of-00001.safetensors"
# As JSON text, as some are no values of Python's.
VALUES = ["null", "true", "false", "0", "-0", "-1", "1", "2.5", "1e400", "-1e400", "1e300", "1e-300", "NaN", "Infinity", "-Infinity", "9223372036854775808",
          "18446744073709551616", "123456789012345678901234567890", "-9223372036854775809", "2147483648", '""', '"x"', '"\\u0000"', '"\\ud800"', "[]", "{}",
          "[[]]", "[-1]", "[null]", '["x"]', '{"a": 1}', "[" * 90 + "]" * 90, "[" * 3000 + "]" * 3000, '{"a":' * 2000 + "1" + "}" * 2000]
ANSWER = "yes and no"


def make(folder):
    scripted_checkpoint.make(folder, {"a": ["yes", " and", " no"]}, template="{% for m in messages %}{{ m.content }}{% endfor %}")
    (folder / "model.safetensors").rename(folder / WEIGHTS)
    with (folder / WEIGHTS).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {name: WEIGHTS for name in header}}))
    (folder / "generation_config.json").write_text(json.dumps({
        "bos_token_id": 257, "eos_token_id": [256], "do_sample": False, "temperature": 1.0, "top_p": 0.9, "top_k": 50, "min_p": 0.0,
        "repetition_penalty": 1.0}))
    config = json.loads((folder / "config.json").read_text())
    config["rope_scaling"] = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048, "beta_fast": 32, "beta_slow": 1}
    (folder / "config.json").write_text(json.dumps(config))


def paths(value, at=()):
    """Places of values in a JSON value; some of long lists and maps."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = list(inner)
    for key, below in inner if len(inner) < 40 else inner[:3]:
        yield from paths(below, (*at, key))


def text_of(value, at, to, twice=False):
    """The value's JSON text with the value at a place replaced by the text `to`; None deletes it. twice: the key is written again after it."""
    if not at:
        return to
    parts = []
    for key, below in value.items() if isinstance(value, dict) else enumerate(value):
        here = key == at[0]
        if here and len(at) == 1 and to is None:
            continue
        name = f"{json.dumps(key)}: " if isinstance(value, dict) else ""
        parts.append(name + (text_of(below, at[1:], to, twice) if here and not (twice and len(at) == 1) else json.dumps(below)))
        if here and len(at) == 1 and twice:
            parts.append(name + to)
    return ("{%s}" if isinstance(value, dict) else "[%s]") % ", ".join(parts)


def whole_file_changes():
    """(what, change(path)) of a file as a whole."""
    def other(text):
        return lambda path: path.write_bytes(text(path.read_bytes()))

    def instead(make_it):
        def apply(path):
            path.unlink()
            make_it(path)
        return apply

    return {
        "empty": other(lambda b: b""), "blank": other(lambda b: b" \n"), "cut": other(lambda b: b[:len(b) // 2]), "without its last byte": other(lambda b: b[:-1]),
        "BOM": other(lambda b: b"\xef\xbb\xbf" + b), "UTF-16": other(lambda b: b.decode("latin1").encode("utf-16")),
        "CRLF": other(lambda b: b.replace(b", ", b",\r\n")), "twice": other(lambda b: b + b), "[]": other(lambda b: b"[]"), "7": other(lambda b: b"7"),
        "zeros": other(lambda b: bytes(len(b))), "no UTF-8": other(lambda b: b.replace(b'"', b'"\xff', 1)), "HTML": other(lambda b: b"<!doctype html>"),
        "a pointer of git LFS": other(lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "missing": lambda path: path.unlink(), "a folder": instead(lambda p: p.mkdir()), "a pipe": instead(os.mkfifo),
        "a link to itself": instead(lambda p: p.symlink_to(p.name)), "a link to nothing": instead(lambda p: p.symlink_to("blobs/none")),
        "unreadable": lambda path: path.chmod(0), "a device": instead(lambda p: p.symlink_to("/dev/zero"))}


def cases(rng):
    """(what, file, change(path))"""
    for file in [*JSONS, WEIGHTS]:
        for what, change in whole_file_changes().items():
            yield f"{file}: {what}", file, change
    everything = []
    with tempfile.TemporaryDirectory() as made:
        make(pathlib.Path(made))
        values = {file: json.loads((pathlib.Path(made) / file).read_text()) for file in JSONS}
    def written(text):
        return lambda path: path.write_text(text)
    for file, value in values.items():
        for at in paths(value):
            if not at:
                continue
            place = f"{file}: {'.'.join(map(str, at))[:60]}"
            everything.append((f"{place} deleted", file, written(text_of(value, at, None))))
            if isinstance(at[-1], str):
                everything.append((f"{place} twice", file, written(text_of(value, at, "null", True))))
            for to in VALUES:
                everything.append((f"{place} = {to[:30]}", file, written(text_of(value, at, to))))
    yield from rng.sample(everything, min(CASES, len(everything)))


class OneFileIsDamaged(unittest.TestCase):
    def run_lathe(self, *args, until=None):
        """(exit status, stdout, stderr); until: text of stderr at which a program that goes on is ended."""
        with subprocess.Popen([LATHE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as p:
            try:
                if until:
                    head = b""
                    while (line := p.stderr.readline()) and until.encode() not in line:
                        head += line
                    if line:
                        p.send_signal(signal.SIGTERM)
                        p.communicate(timeout=60)
                        return 0, "", ""
                    out, err = p.communicate(timeout=60)
                    return p.returncode, out.decode("utf8", "replace"), (head + err).decode("utf8", "replace")
                out, err = p.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                p.kill()
                return "hangs", "", ""
        return p.returncode, out.decode("utf8", "replace"), err.decode("utf8", "replace")

    def refusal_faults(self, code, err, file):
        """What is wrong with how a command ended that does not run."""
        line = err.strip()
        if code not in (1, 2):
            return f"ends with {code}: {line[:200]}"
        if "\n" in line or not line.startswith("lathe: "):
            return f"more than one line: {line[:400]}"
        if not re.search(r"wanted .*, got ", line, re.S):
            return f"neither wanted nor got: {line}"
        if "; " not in line and "architectures: wanted one of" not in line:
            return f"no way out: {line}"
        if len(line) > 1500:
            return f"{len(line)} characters: {line[:300]}"
        # The file, or what the loader misses because of it.
        if file not in line and "the tensors that config.json describes" not in line and "model.safetensors" not in line:
            return f"does not name {file}: {line}"
        for name in [file, "config.json"]:
            if line.replace("generation_config.json", "G").replace("tokenizer_config.json", "T").count(name) > 2:
                return f"names {name} more than twice: {line}"
        return None

    def check(self, case, serve):
        what, file, change = case
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made) / "model"
            shutil.copytree(self.good, folder)
            change(folder / file)
            runs = {"inspect": ["inspect", str(folder), "--device", "cpu"],
                    "plan": ["plan", "--model", str(folder), "--device", "cpu"],
                    "generate": ["generate", "--model", str(folder), "--device", "cpu", "--threads", "1", "--context-length", "64", "--max-new-tokens", "8",
                                 "--quiet", "--prompt", "<a>"]}
            ended = {name: self.run_lathe(*args) for name, args in runs.items()}
            if serve:
                ended["serve"] = self.run_lathe("serve", "--model", str(folder), "--device", "cpu", "--threads", "1", "--context-length", "64", "--port", "0",
                                                until="ready")
        wrong = []
        for name, (code, out, err) in ended.items():
            if code != 0:
                # serve prints what it was started with before it reads a file.
                fault = self.refusal_faults(code, err.strip().rsplit("\n", 1)[-1] if name == "serve" else err, file)
                wrong += [f"{what}: {name} {fault}"] if fault else []
        # Without a tokenizer a model runs on --prompt-ids.
        if what != "tokenizer.json: missing" and (ended["inspect"][0] == 0) != (ended["generate"][0] == 0):
            wrong.append(f"{what}: inspect {ended['inspect'][0]} {ended['inspect'][2].strip()[:200]} generate {ended['generate'][0]} "
                         f"{ended['generate'][2].strip()[:300]}")
        return wrong, ended

    def test_ends_in_one_line_or_runs(self):
        print(f"seed {SEED}")
        rng = random.Random(SEED)
        with tempfile.TemporaryDirectory() as made:
            self.good = pathlib.Path(made) / "good"
            make(self.good)
            _, ended = self.check(("good", "config.json", lambda path: None), True)
            self.assertEqual(ended["generate"][1].strip(), ANSWER, ended["generate"])
            self.assertEqual([0] * 4, [code for code, _, _ in ended.values()], ended)
            listed = list(cases(rng))
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                found = pool.map(lambda i: self.check(listed[i], i % 10 == 0)[0], range(len(listed)))
                wrong = [w for each in found for w in each]
        self.assertEqual([], wrong, f"{len(wrong)}\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main()
