#!/usr/bin/env python3
"""Runs the shipped checkpoints on a few held-out items of every task: answers must be right, whatever the plan.

A wrong kernel, position, page or top-k shows as a wrong answer, since nothing but attention can find an operand of an
earlier sentence, the value behind a key some thousand tokens ago, or the next word of a list.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

LATHE = sys.argv.pop(1)
MODELS = pathlib.Path(__file__).parent.parent / "models"
# Of 60, 4 and 44 items: what the checkpoints give over every plan, less an item or two. Prompts of retrieval have 1, 2, 4 and 8 K
# tokens by turns, so three items have no long one.
ITEMS = {"arithmetic": 60, "retrieval": 4, "copy": 44}
FLOORS = {"arithmetic": 0.96, "retrieval": 1.0, "copy": 0.95}


def evaluate(model: str, *args: str) -> dict:
    result = subprocess.run(
        [LATHE, "eval", "--model", str(MODELS / model), "--json", *args], capture_output=True, text=True, timeout=900
    )
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


class Answers(unittest.TestCase):
    def solves(self, model: str, *args: str, tasks: dict[str, int] = ITEMS) -> None:
        for task, items in tasks.items():
            with self.subTest(model=model, task=task, plan=args):
                figures = evaluate(model, "--task", task, "--limit", str(items), *args)["tasks"][task]
                self.assertEqual(figures["items"], items)
                said = f"{figures['right']} of {items} right, {figures['invalid']} invalid: {figures['groups']}"
                self.assertGreaterEqual(figures["accuracy"], FLOORS[task], said)

    def test_latent_two_bytes_in_place(self):
        self.solves("tiny-v32", "--kv-cache-dtype", "bf16")

    def test_latent_gather_prefill_native_decode_over_fp8(self):
        self.solves("tiny-v32", "--prefill-attention-backend", "gather", "--decode-attention-backend", "native",
                    "--kv-layout", "mla_fp8")

    def test_latent_fp8_blocks_and_small_pages_and_chunks(self):
        self.solves("tiny-v32", "--kv-layout", "mla_fp8_block", "--page-size", "16", "--chunked-prefill-size", "257",
                    tasks={"arithmetic": 20, "retrieval": 3, "copy": 22})

    def test_window_and_compressed_entries(self):
        few = {"arithmetic": 20, "retrieval": 4, "copy": 22}
        self.solves("tiny-v4", "--kv-cache-dtype", "bf16", tasks=few)
        self.solves("tiny-v4", "--chunked-prefill-size", "257", tasks=few | {"retrieval": 3})

    def test_grouped_query(self):
        self.solves("tiny-gqa")
        self.solves("tiny-gqa", "--kv-cache-dtype", "fp8_e4m3", tasks={"retrieval": 4})


    def test_chains_are_neither_solved_nor_lost(self):
        for model in ("tiny-v32", "tiny-gqa"):
            figures = evaluate(model, "--task", "chains", "--limit", "60", "--kv-cache-dtype", "bf16")["tasks"]["chains"]
            self.assertEqual({k: g["items"] for k, g in figures["groups"].items()}, {"4": 30, "5": 30})
            self.assertGreaterEqual(figures["groups"]["4"]["right"], 29, (model, figures))
            self.assertTrue(0.6 <= figures["accuracy"] <= 0.9, (model, figures))


class Perplexity(unittest.TestCase):
    TEXT = "Tom has 12 apples. Mia has 5 more apples than Tom. How many apples do Tom and Mia have together?"

    def nats(self, model: str, half: int) -> list[float]:
        """Of every token past the first `half`: what generate says of it behind its own window's tokens."""
        folder = str(MODELS / model)
        run = lambda *a, **k: subprocess.run([LATHE, *a], capture_output=True, text=True, timeout=300, check=True, **k).stdout
        ids = [int(i) for i in run("tokenize", "--model", folder, "--special", self.TEXT).split()]
        vocab = json.loads((MODELS / model / "config.json").read_text())["vocab_size"]
        first = [at - half - (at - half) % half for at in range(half, len(ids))]
        lines = [json.dumps({"prompt": ids[begin:at]}) for begin, at in zip(first, range(half, len(ids)))]
        answers = run("generate", "--model", folder, "--prompts", "-", "--quiet", "--max-new-tokens", "1",
                      "--ignore-eos", "--logprobs", str(vocab), "--threads", "2", input="\n".join(lines))
        out = []
        for line, token in zip(answers.splitlines(), ids[half:]):
            top = {t["token"]: t["logprob"] for t in json.loads(line)["logprobs"][0]["top"]}
            out.append(-top[token])
        return out

    def test_of_a_text(self):
        for model in ("tiny-gqa", "tiny-v32"):
            with self.subTest(model=model), tempfile.NamedTemporaryFile("w") as file:
                file.write(self.TEXT)
                file.flush()
                want = self.nats(model, 8)
                got = evaluate(model, "--perplexity", file.name, "--window", "16")
                self.assertEqual(got["tasks"], {})
                self.assertEqual(got["perplexity"]["tokens"], len(want))
                mean = sum(want) / len(want)
                spread = (sum((x - mean) ** 2 for x in want) / (len(want) - 1) / len(want)) ** 0.5
                self.assertAlmostEqual(math.log(got["perplexity"]["perplexity"]), mean, delta=2e-3)
                low, high = got["perplexity"]["interval_95"]
                self.assertAlmostEqual(math.log(low), mean - 1.96 * spread, delta=5e-3)
                self.assertAlmostEqual(math.log(high), mean + 1.96 * spread, delta=5e-3)

    def test_a_window_beyond_the_context(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.TEXT)
            file.flush()
            evaluate("tiny-gqa", "--perplexity", file.name, "--context-length", "64")
            for more in ([], ["--all-plans"]):
                run = subprocess.run([LATHE, "eval", "--model", str(MODELS / "tiny-gqa"), "--perplexity", file.name, "--context-length", "64",
                                      "--window", "65", "--quiet", *more], capture_output=True, text=True, timeout=300)
                self.assertEqual((run.returncode, run.stdout), (2, ""))
                self.assertRegex(run.stderr, r"^lathe: --window: wanted at most 64, the tokens that context and cache hold, got 65; ")

    def test_every_plan_beside_the_plain_one(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.TEXT)
            file.flush()
            rows = evaluate("tiny-v32", "--perplexity", file.name, "--all-plans", "--quiet")["rows"]
        self.assertEqual(rows[0]["perplexity"]["nats_more_than_plain"], 0)
        for row in rows:
            low, high = row["perplexity"]["nats_interval_95"]
            self.assertLessEqual(low, high)
            # Two-byte keys hardly change a likelihood, four-bit ones do.
            if row["layout"] == "mla_bf16":
                self.assertLess(abs(row["perplexity"]["nats_more_than_plain"]), 0.02, row)
        self.assertGreater(max(abs(r["perplexity"]["nats_more_than_plain"]) for r in rows
                               if r["layout"] == "mla_fp4"), 1e-4)


class Plans(unittest.TestCase):
    """Every plan gives the same answers, and those that share arithmetic the same bits."""

    def test_every_plan(self):
        rows = evaluate("tiny-v32", "--all-plans", "--task", "copy,arithmetic", "--limit", "8", "--quiet")["rows"]
        kinds = {"gather", "inplace", "native"}
        exact = 0
        for row in rows:
            with self.subTest(**{k: row[k] for k in ("layout", "prefill", "decode", "chunk")}):
                for figures in row["tasks"].values():
                    self.assertGreaterEqual(figures["right"], 7, figures)
                share = row["equal_tokens"] / row["reference_tokens"]
                if row["layout"] == "mla_bf16" and {row["prefill"], row["decode"]} <= kinds:
                    self.assertEqual((share, row["mean_abs_logit_difference"]), (1.0, 0.0))
                    exact += 1
                elif row["layout"] == "mla_bf16":
                    self.assertGreaterEqual(share, 0.999)
                else:
                    self.assertGreater(row["mean_abs_logit_difference"], 0.0)
        # Nine pairs, the plain row and five chunk sizes; the planner's own mixes and three more layouts besides.
        self.assertEqual(exact, 15)
        self.assertEqual({r["layout"] for r in rows}, {"mla_bf16", "mla_fp8", "mla_fp8_block", "mla_fp4"})

    def test_window_and_compressed_entries(self):
        rows = evaluate("tiny-v4", "--all-plans", "--task", "copy", "--limit", "6", "--quiet")["rows"]
        for row in rows:
            with self.subTest(**{k: row[k] for k in ("layout", "prefill", "decode", "chunk")}):
                self.assertEqual(row["equal_tokens"], row["reference_tokens"])
                self.assertEqual(row["mean_abs_logit_difference"] == 0, row["layout"] == "mla_bf16")
        self.assertEqual({r["layout"] for r in rows}, {"mla_bf16", "v4_fp8"})

    def test_chunk_sizes(self):
        rows = evaluate("tiny-gqa", "--all-plans", "--task", "copy", "--limit", "12", "--quiet")["rows"]
        chunks = {r["chunk"] for r in rows if (r["layout"], r["prefill"], r["decode"]) == ("gqa_bf16", "inplace", "inplace")}
        self.assertEqual(chunks, {1, 7, 64, 257, 2048, 8192})
        for row in rows:
            if row["layout"] == "gqa_bf16":
                self.assertEqual(row["equal_tokens"], row["reference_tokens"], row)


class BadInput(unittest.TestCase):
    def refused(self, *args: str) -> str:
        result = subprocess.run([LATHE, "eval", *args], capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        return result.stderr

    def test_messages(self):
        v32 = str(MODELS / "tiny-v32")
        self.assertIn("--model", self.refused())
        self.assertIn("wanted one of all, arithmetic, retrieval, copy, chains, got sums", self.refused("--model", v32, "--task", "sums"))
        self.assertIn("--task-dir names", self.refused("--model", v32, "--task-dir", "/nowhere"))
        # Before any plan has run.
        self.assertIn("--svg: wanted a file that can be written",
                      self.refused("--model", v32, "--all-plans", "--svg", "/no/such/folder/x.svg"))
        with tempfile.NamedTemporaryFile() as file:
            self.assertIn("at least two tokens", self.refused("--model", v32, "--perplexity", file.name))
        self.assertIn("--svg: wanted --all-plans with it", self.refused("--model", v32, "--svg", "x.svg"))
        self.assertIn("native", self.refused("--model", v32, "--limit", "1", "--kv-layout", "mla_fp8_block",
                                             "--decode-attention-backend", "native"))


if __name__ == "__main__":
    unittest.main()
