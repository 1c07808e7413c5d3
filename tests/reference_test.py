#!/usr/bin/env python3
"""`lathe eval --reference` against figures worked out by hand: models that give one token a known logit and all others 0."""

import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

from scripted_checkpoint import VOCAB, make

LATHE = sys.argv.pop(1)
TEXT = "abcdefghijklmnopqrstuvwxyz"
LOGIT = 1 / math.sqrt(1 / VOCAB + 1e-6)  # of a one-hot row after RMSNorm, times a head of 1


def change_head(folder, change):
    """change: [VOCAB, VOCAB] halves as integers -> the same."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    end = 8 + struct.unpack("<Q", data[:8])[0]
    first, last = json.loads(data[8:end])["lm_head.weight"]["data_offsets"]
    data[end + first:end + last] = change(array.array("H", data[end + first:end + last])).tobytes()
    path.write_bytes(data)


def evaluate(model, reference, *args):
    text = model.parent / "text.txt"
    text.write_text(TEXT)
    return subprocess.run([LATHE, "eval", "--model", str(model), "--reference", str(reference), "--perplexity", str(text), "--dtype", "float32",
                           "--device", "cpu", "--threads", "1", "--context-length", "64", "--quiet", "--json", *args], capture_output=True, text=True)


class Reference(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def model(self, name, change=None):
        make(self.folder / name, {"letters": list(TEXT)})
        if change:
            change_head(self.folder / name, change)
        return self.folder / name

    def figures(self, model, reference):
        done = evaluate(model, reference)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["reference"]

    def test_itself(self):
        model = self.model("model")
        got = self.figures(model, model)
        self.assertEqual((got["kl_mean"], got["kl_max"], got["logit_difference_mean"], got["logit_difference_max"]), (0, 0, 0, 0))
        self.assertEqual(got["same_most_likely"], 1)
        self.assertEqual(got["tokens"], len(TEXT) // 2)

    def test_a_head_of_a_quarter(self):
        reference = self.model("reference")
        quarter = self.model("quarter", lambda head: array.array("H", [0x3400 if v == 0x3C00 else v for v in head]))
        got = self.figures(quarter, reference)
        p_sum = math.log(math.exp(LOGIT) + VOCAB - 1)
        q_sum = math.log(math.exp(LOGIT / 4) + VOCAB - 1)
        p = math.exp(LOGIT - p_sum)
        kl = p * (LOGIT - p_sum - LOGIT / 4 + q_sum) + (1 - p) * (q_sum - p_sum)
        self.assertAlmostEqual(got["kl_mean"], kl, delta=1e-4 * kl)
        self.assertAlmostEqual(got["kl_max"], kl, delta=1e-4 * kl)
        self.assertAlmostEqual(got["logit_difference_max"], 0.75 * LOGIT, delta=1e-4 * LOGIT)
        self.assertAlmostEqual(got["logit_difference_mean"], 0.75 * LOGIT / VOCAB, delta=1e-6 * LOGIT)
        self.assertEqual(got["same_most_likely"], 1)
        self.assertEqual(self.figures(self.model("none", lambda head: array.array("H", bytes(2 * len(head)))), reference)["same_most_likely"], 0)

    def test_refusals(self):
        model = self.model("model")
        done = evaluate(model, self.folder / "nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nowhere", done.stderr)
        done = subprocess.run([LATHE, "eval", "--model", str(model), "--reference", str(model)], capture_output=True, text=True)
        self.assertIn("--perplexity", done.stderr)


if __name__ == "__main__":
    unittest.main()
