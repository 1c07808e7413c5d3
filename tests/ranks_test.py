#!/usr/bin/env python3
"""Runs commands with a model on several ranks of a CPU, as a user does, on the shipped models."""

import http.client
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from serve_util import LATHE, MESSAGES, ROOT, Server

MODELS = ROOT / "models"
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
                self.assertEqual(plain, self.answer(model, *tp, "--draft", draft, "--check-ranks"), (model, draft))

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

    def test_the_script_for_several_gpus(self):
        """bench/several_gpus.py, on ranks of a CPU, and its list for a machine that is not here."""
        def script(*flags: str) -> str:
            result = subprocess.run([sys.executable, ROOT / "bench/several_gpus.py", LATHE, *flags], capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            return result.stdout

        with tempfile.TemporaryDirectory() as folder:
            shown = script("--device", "cpu", "--only", "C1,C4,C5,C7", "--checkpoint", folder)
        self.assertRegex(shown, r"C7 start to ready: 1 rank [\d.]+ s, [\d.]+ GB/s of a rank; 2 ranks [\d.]+ s")
        for part in ("C1 bench exchange, 2 ranks\n", "C4 tiny-v32, 2 ranks --expert-split number: ", "; answered 6 of 6, ", "C5 answers by auto"):
            self.assertIn(part, shown)
        listed = script("--list", "--device", "h100", "--gpus", "4").splitlines()
        self.assertIn("C2 deepseek-v4-flash, 4 ranks", listed)
        self.assertIn("C3 glm-5-fp8, 8 ranks: left out 8 ranks, 4 are here", listed)

    def test_flags_of_other_engines(self):
        """--tp and how experts are shared, as vLLM and SGLang spell them."""
        plain = self.answer("tiny-v32", "--tp", "2", "--expert-split", "width")
        for flags in (("--tensor-parallel-size", "2"), ("--tp-size", "2")):
            self.assertEqual(plain, self.answer("tiny-v32", *flags, "--expert-split", "width"), flags)
        number = self.answer("tiny-v32", "--tp", "2", "--expert-split", "number")
        for flags in (("--enable-expert-parallel",), ("--ep-size", "2"), ("--expert-parallel-size", "2"), ("--expert-split", "1x2")):
            self.assertEqual(number, self.answer("tiny-v32", "--tp", "2", *flags), flags)
        self.assertEqual(plain, self.answer("tiny-v32", "--tp", "2", "--expert-split", "2x1", "--dp", "1", "--pp-size", "1"))

    def refused(self, *args: str) -> str:
        result = lathe(*args)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def test_gpus_and_other_ways_to_share_are_refused_by_name(self):
        """Every command that runs a model has --gpus; without GPUs it is refused."""
        model = ("--model", str(MODELS / "tiny-gqa"), "--device", "cpu")
        for command in (("generate", "--prompt", "a"), ("serve",), ("chat",), ("eval",), ("bench", "engine")):
            told = self.refused(*command, *model, "--tp", "2", "--gpus", "0,1")
            self.assertIn("--gpus: wanted a GPU with it, got --device cpu", told, command)
        for flag, name in (("--dp", "--dp"), ("--data-parallel-size", "--dp"), ("--pp-size", "--pp"), ("--pipeline-parallel-size", "--pp")):
            self.assertIn(f"{name}: wanted 1, as --tp", self.refused("generate", "--prompt", "a", *model, flag, "2"))
        self.assertIn("--dp", self.refused("plan", *model[:2], "--dp", "2"))
        self.assertIn("--ep-size", self.refused("generate", "--prompt", "a", *model, "--tp", "2", "--ep-size", "2", "--enable-expert-parallel"))

    def test_flags_that_one_rank_or_a_cpu_cannot_follow(self):
        """Every command refuses a flag of ranks that would do nothing, with one line that names it."""
        experts, dense = (("--model", str(MODELS / name), "--device", "cpu") for name in ("tiny-v32", "tiny-gqa"))
        runs = (("generate", "--prompt", "a"), ("serve",), ("chat",), ("eval",), ("bench", "engine"), ("bench", "drafts", "--draft", "ngram"))
        for command in (*runs, ("plan",)):
            for flags in (("--exchange", "nccl"), ("--exchange", "peer"), ("--exchange-dtype", "f32"), ("--expert-split", "number"),
                          ("--enable-expert-parallel",)):
                told = self.refused_any(*command, *experts, *flags)
                self.assertRegex(told, f"{flags[0]}:? +wanted --tp 2, 4 or 8 with it", command)
            for exchange in ("nccl", "peer"):
                told = self.refused_any(*command, *experts, "--tp", "2", "--exchange", exchange)
                self.assertRegex(told, "--exchange +wanted GPUs +offered --device cpu", command)
            for flags in (("--expert-split", "width"), ("--enable-expert-parallel",), ("--ep-size", "2")):
                told = self.refused_any(*command, *dense, "--tp", "2", *flags)
                self.assertRegex(told, f"{flags[0]} +wanted a model with experts", command)
        for command in runs:
            told = self.refused(*command, *dense, "--check-ranks")
            self.assertEqual(told.splitlines()[-1], "lathe: --check-ranks: wanted --tp 2, 4 or 8 with it, got --tp 1", command)
            told = self.refused(*command, *dense, "--tp", "4", "--threads", "3")
            self.assertEqual(told.splitlines()[-1], "lathe: --threads: wanted one for each of 4 ranks, or more, got 3", command)
        for flags in (("--gpus", "0,1"), ("--exchange", "peer")):
            told = self.refused("bench", "exchange", "--device", "cpu", *flags)
            self.assertEqual(told, f"lathe: {flags[0]}: wanted --device cuda with it, got --device cpu\n")

    def refused_any(self, *args: str) -> str:
        """As refused(), of a plan too, which says on stdout why."""
        result = lathe(*args)
        self.assertEqual(result.returncode, 2, (args, result.stderr))
        return result.stdout + result.stderr

    def test_a_stop_signal_in_a_step(self):
        """Case 25: requests under way have the time that --shutdown-timeout gives them, and the exit code is 0."""
        for seconds in ("0", "30"):
            with Server("--device", "cpu", "--tp", "2", "--shutdown-timeout", seconds) as server:
                answers = []
                def ask():
                    body = {"messages": MESSAGES, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
                    try:
                        answers.append(server.call("POST", "/v1/chat/completions", body)[0])
                    except (OSError, http.client.HTTPException):
                        answers.append(None)
                asked = [threading.Thread(target=ask) for _ in range(3)]
                for t in asked:
                    t.start()
                while "running" not in str(server.call("GET", "/metrics")[2]):
                    time.sleep(0.01)
                time.sleep(0.2)
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(60), 0, "".join(server.log))
                for t in asked:
                    t.join()
                if seconds == "30":
                    self.assertEqual(answers, [200] * 3)

    def test_bench_exchange(self):
        result = lathe("bench", "exchange", "--device", "cpu", "--tp", "4", "--rows", "1,8", "--cols", "256", "--repeats", "1", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        cases = json.loads(result.stdout)["cases"]
        self.assertEqual([c["rows"] for c in cases], [1, 8])
        self.assertTrue(all(c["host_seconds"] > 0 for c in cases))
        self.assertIn("--tp: wanted 2, 4 or 8", self.refused("bench", "exchange", "--device", "cpu", "--tp", "3"))

    def test_bench_engine_with_random_weights(self):
        config = str(ROOT / "tests/data/models/qwen3_moe/config.json")
        result = lathe("bench", "engine", "--load-format", "dummy", "--config", config, "--device", "cpu", "--tp", "4", "-p", "16",
                       "-n", "4", "-r", "1", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(all(r["tokens_per_s"] > 0 for r in json.loads(result.stdout)["rows"]))

    def test_bench_engine(self):
        result = lathe("bench", "engine", "--model", str(MODELS / "tiny-gqa"), "--device", "cpu", "--tp", "2", "-b", "2", "-p", "32",
                       "-n", "4", "-r", "1", "--json", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(all(r["tokens_per_s"] > 0 for r in json.loads(result.stdout)["rows"]))


if __name__ == "__main__":
    unittest.main()
