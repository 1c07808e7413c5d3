#!/usr/bin/env python3
"""Runs commands with a model on several ranks of a CPU, as a user does, on the shipped models."""

import json
import pathlib
import subprocess
import sys
import unittest

LATHE = sys.argv.pop(1)
MODELS = pathlib.Path(__file__).parent.parent / "models"
PROMPT = "Sort the words: pear apple fig"


def lathe(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([LATHE, *args], capture_output=True, text=True, timeout=300)


class Ranks(unittest.TestCase):
    def answer(self, model: str, *args: str) -> dict:
        result = lathe("generate", "--model", str(MODELS / model), "--prompt", PROMPT, "--temperature", "0",
                       "--max-new-tokens", "16", "--ignore-eos", "--json", *(() if "--device" in args else ("--device", "cpu")), *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout.splitlines()[0])

    def test_answers_and_drafts(self):
        """Greedy answers on 2 and 4 ranks; drafts change no token of them."""
        for model, ranks, drafts in (("tiny-gqa", 2, ("ngram",)), ("tiny-v32", 4, ("mtp",)), ("tiny-v4", 2, ("mtp", "ngram"))):
            tp = ["--tp", str(ranks)]
            plain = self.answer(model, *tp)
            self.assertEqual(plain, self.answer(model, *tp, "--chunked-prefill-size", "5"))
            for draft in drafts:
                self.assertEqual(plain, self.answer(model, *tp, "--draft", draft), (model, draft))

    def test_a_draft_model_is_on_the_same_ranks(self):
        plain = self.answer("tiny-gqa", "--tp", "2")
        draft = ["--draft", str(MODELS / "tiny-gqa")]
        self.assertEqual(plain, self.answer("tiny-gqa", "--tp", "2", *draft))

    def test_the_reference_device(self):
        """In double precision, so its tokens may differ from the CPU's."""
        self.assertEqual(self.answer("tiny-gqa", "--tp", "2", "--device", "ref")["completion_tokens"], 16)

    def test_what_ranks_cannot_share_is_refused(self):
        """tiny-v4 has two groups of heads; the refusal names a number of ranks that works."""
        for model, ranks, says in (("tiny-v4", "4", "--tp 2"), ("tiny-gqa", "3", "1, 2, 4 or 8")):
            result = lathe("generate", "--model", str(MODELS / model), "--device", "cpu", "--prompt", "a", "--tp", ranks)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(says, result.stderr)
            self.assertEqual(result.stdout, "")

    def test_bench_engine(self):
        result = lathe("bench", "engine", "--model", str(MODELS / "tiny-gqa"), "--device", "cpu", "--tp", "2", "-b", "2", "-p", "32",
                       "-n", "4", "-r", "1", "--json", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(all(r["tokens_per_s"] > 0 for r in json.loads(result.stdout)["rows"]))


if __name__ == "__main__":
    unittest.main()
