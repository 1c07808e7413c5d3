#!/usr/bin/env python3
"""Runs the lathe command as a user does: exit codes, JSON on stdout, one readable message on stderr."""

import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

LATHE = sys.argv.pop(1)


def lathe(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([LATHE, *args], capture_output=True, text=True, timeout=120)


PAIR = ["plan", "--attention", "dsa", "--kv-cache-dtype", "fp8_e4m3",
        "--prefill-attention-backend", "flashmla_kv", "--decode-attention-backend", "trtllm"]


class Plan(unittest.TestCase):
    def test_pair_on_the_oracle_is_a_plan(self):
        result = lathe(*PAIR, "--device", "ref", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        self.assertTrue(plan["legal"])
        self.assertEqual(plan["caches"][0]["layout"], "mla_fp8(nope=512,rope=64,scale=per_tensor)")
        self.assertEqual(plan["caches"][0]["bytes_per_token"], 576)
        self.assertEqual(plan["phases"]["extend"]["routes"][-1]["kind"], "inplace")
        self.assertEqual(plan["phases"]["decode"]["routes"][-1]["kind"], "native")

    def test_pair_without_kernels_for_the_device_says_what_is_missing(self):
        result = lathe(*PAIR, "--device", "sm100", "--json")
        self.assertEqual(result.returncode, 2)
        refusal = json.loads(result.stdout)
        self.assertFalse(refusal["legal"])
        self.assertEqual({r["rule"] for r in refusal["reasons"]}, {"device"})
        self.assertIn("--device ref", refusal["suggestions"])
        text = lathe(*PAIR, "--device", "sm100")
        self.assertEqual(text.returncode, 2)
        self.assertIn("wanted one for sm100", text.stdout)

    def test_cuda_is_planned_for_on_any_machine(self):
        result = lathe("plan", "--attention", "dsa", "--device", "cuda", "--json")
        if os.path.exists("/dev/nvidia0"):
            return  # whatever GPU this is
        self.assertEqual(result.returncode, 0, result.stdout)
        plan = json.loads(result.stdout)
        self.assertEqual(result.stderr, "lathe: no GPU answers, so this is for an H200\n")
        self.assertEqual(plan["device"], "sm90")
        kernels = {r["kernel"] for p in plan["phases"].values() for r in p["routes"]}
        self.assertEqual(kernels, {"sm90.sparse_latent.inplace", "sm90.sparse_latent.ragged"})

    def test_benches_of_a_gpu_say_what_is_missing(self):
        if os.path.exists("/dev/nvidia0"):
            return
        for bench in ("attention", "codec"):
            result = lathe("bench", bench, "--device", "cuda")
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stdout, "")
            self.assertRegex(result.stderr, r"^lathe: [^\n]*wanted [^\n]*, got [^\n]*\n$")
        for gpus, n in (("0,1", 2), ("0,1,2,3", 4)):
            result = lathe("bench", "exchange", "--gpus", gpus)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertEqual(result.stderr, f"lathe: --gpus: wanted {n} GPUs, got none: this machine has no GPU that the build can use; "
                                            f"--device cpu --tp {n}\n")

    def test_a_bench_whose_clients_end_says_so(self):
        for number in (signal.SIGKILL, signal.SIGINT):
            with subprocess.Popen([LATHE, "bench", "server", "--only", "whole"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
                clients = ""
                while not clients and bench.poll() is None:
                    clients = pathlib.Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().strip()
                os.kill(int(clients.split()[0]), number)
                out, err = bench.communicate(timeout=300)
            self.assertEqual((bench.returncode, out, err),
                             (1, "", "lathe: bench server: wanted clients to the end, got their process ended before\n"))

    def test_older_flag_names(self):
        result = lathe("plan", "--device", "ref", "--nsa-prefill-backend", "gather",
                       "--dsa-decode-backend", "native", "--kv-layout", "mla_fp8", "--json")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(json.loads(result.stdout)["phases"]["extend"]["requested"], "gather")

    def test_a_models_configuration_gives_its_problem_layers_and_context(self):
        model = os.path.join(os.path.dirname(__file__), "..", "models", "tiny-gqa")
        result = lathe("plan", "--model", model, "--device", "cpu", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual(plan["problem"]["heads"], config["num_attention_heads"])
        self.assertEqual(plan["layers"], config["num_hidden_layers"])
        self.assertEqual(plan["context_length"], config["max_position_embeddings"])
        same = lathe("plan", "--config", os.path.join(model, "config.json"), "--device", "cpu",
                     "--json")
        self.assertEqual(same.stdout, result.stdout)
        for wrong in (["--model", model, "--attention", "gqa"], ["--config", "/no/config.json"]):
            refused = lathe("plan", *wrong)
            self.assertEqual(refused.returncode, 2)
            self.assertRegex(refused.stderr, r"^lathe: ")

    def test_matrix(self):
        result = lathe("plan", "--device", "ref", "--matrix", "--json")
        self.assertEqual(result.returncode, 0)
        cells = json.loads(result.stdout)
        self.assertEqual(len(cells), 4 * 4 * 4)
        for cell in cells:
            mixed_native = cell["layout"] == "mla_fp8_block" and "native" in (
                cell["prefill"], cell["decode"])
            ragged = "ragged" in (cell["prefill"], cell["decode"])
            self.assertEqual(cell["legal"], not mixed_native and not ragged, cell)

    def test_D7_what_a_refusal_says_to_try_is_a_plan(self):
        flags = {"prefill": "--prefill-attention-backend", "layout": "--kv-layout", "decode": "--decode-attention-backend"}
        refused = tried = 0
        for attention, device in itertools.product(("mla", "dsa", "v4", "gqa"), ("cpu", "sm90")):
            machine = ["plan", "--attention", attention, "--device", device]
            for cell in json.loads(lathe(*machine, "--matrix", "--json").stdout):
                if cell["legal"]:
                    continue
                refused += 1
                pair = {flag: cell[name] for name, flag in flags.items()}
                text = lathe(*machine, *itertools.chain(*pair.items())).stdout
                ways = re.findall(r"^  try (.*)$", text, re.M)
                self.assertTrue(ways, text)
                for way in ways[0].split(", or "):
                    words = way.split()
                    self.assertTrue(all(word.startswith("--") for word in words[::2]), text)  # flags, not prose
                    changed = pair | dict(zip(words[::2], words[1::2]))
                    result = lathe(*machine, *itertools.chain(*changed.items()))
                    self.assertEqual(result.returncode, 0, f"{attention} {device} {pair}: {way}\n{result.stdout}")
                    tried += 1
        self.assertGreater(refused, 100)
        self.assertGreater(tried, 100)

    def test_D7_machines_without_kernels_refuse_every_plan(self):
        for device in ("sm80", "sm100"):
            for attention in ("mla", "dsa", "v4", "gqa"):
                result = lathe("plan", "--attention", attention, "--device", device)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(f"wanted one for {device}", result.stdout)

    def test_explain_keeps_every_rejection(self):
        result = lathe("plan", "--device", "ref", "--explain", "--json")
        rejected = json.loads(result.stdout)["rejected"]
        self.assertTrue(all(r["reasons"] for r in rejected))
        self.assertIn("ref.dense_latent.inplace", {r["kernel"] for r in rejected})


class Ranks(unittest.TestCase):
    FLASH = os.path.join(os.path.dirname(__file__), "data", "configs", "deepseek-v4-flash.json")
    SMALL = ["--context-length", "8192", "--max-running-requests", "64", "--chunked-prefill-size", "2048"]

    def plan(self, *args: str, config: str = FLASH) -> subprocess.CompletedProcess:
        return lathe("plan", "--config", config, *self.SMALL, *args)

    def ranks(self, *args: str) -> dict:
        result = self.plan(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return json.loads(result.stdout)["ranks"]

    def test_a_machine_that_is_not_there(self):
        text = self.plan("--device", "sm90", "--gpus", "8", "--tp", "8").stdout
        self.assertIn("ranks     8 × H200, NVLink 366 GB/s    heads 8 of 64", text)
        self.assertIn("of 139.0 GiB on H200", text)
        self.assertIn("8 × H100", self.plan("--device", "h100", "--tp", "8").stdout)
        json_text = self.plan("--device", "sm90", "--tp", "4", "--json").stdout
        memory = json.loads(json_text)["memory"]
        self.assertAlmostEqual(memory["weight_bytes"] / 1e9, 40.0, delta=0.4)
        self.assertGreater(memory["cache_tokens"], 500_000)

    def test_other_systems_flags(self):
        ours = self.ranks("--device", "sm90", "--tp", "4", "--expert-split", "number")
        self.assertEqual(ours["expert_groups"], 4)
        for same in (["--tensor-parallel-size", "4", "--enable-expert-parallel"],
                     ["--tp-size", "4", "--ep-size", "4"]):
            self.assertEqual(self.ranks("--device", "sm90", *same), ours)

    def test_what_cannot_be_is_refused_in_one_line(self):
        for args, says in ((["--tp", "3"], "1, 2, 4 or 8"),
                           (["--tp", "2", "--exchange", "gloo"], "auto, peer or nccl"),
                           (["--tp", "4", "--gpus", "0,1"], "how many GPUs"),
                           (["--tp", "4", "--gpus", "2"], "wanted 4 H200s   offered 2 found"),
                           (["--tp", "4", "--expert-split", "3x1"], "W x E = 4")):
            result = self.plan("--device", "sm90", *args)
            self.assertNotEqual(result.returncode, 0, args)
            self.assertIn(says, result.stdout + result.stderr)
        result = lathe("plan", "--attention", "dsa", "--device", "cpu", "--tp", "2")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertRegex(result.stderr, r"^lathe: --tp: [^\n]*--model DIR[^\n]*\n$")
        result = self.plan("--device", "cpu", "--gpus", "0")
        self.assertRegex(result.stderr, r"^lathe: --gpus: [^\n]*\n$")

    def test_a_model_too_large_for_one_gpu_says_how_many_it_needs(self):
        result = self.plan("--device", "sm90", "--gpus", "8")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--tp 2", result.stdout)


class BadInput(unittest.TestCase):
    def refused(self, *args: str) -> str:
        result = lathe(*args)
        self.assertEqual(result.returncode, 2, args)
        text = result.stdout + result.stderr
        self.assertNotIn("terminate", text)
        self.assertNotIn("Traceback", text)
        return text

    def test_names(self):
        self.assertIn("one of mla, dsa, v4, gqa", self.refused("plan", "--attention", "mqa"))
        self.assertIn("one of auto, cuda, ref, cpu", self.refused("plan", "--device", "sm42"))
        self.assertIn("auto, gather, inplace, native, ragged",
                      self.refused("plan", "--prefill-attention-backend", "best"))
        self.assertIn("one of mla_bf16", self.refused("plan", "--kv-layout", "mla_fp9"))
        self.assertIn("auto, bf16, fp8_e4m3 or fp4_e2m1",
                      self.refused("plan", "--kv-cache-dtype", "int8"))
        self.assertIn("one of mla_bf16", self.refused("layouts", "mla_fp9"))

    def test_numbers(self):
        self.assertIn("1 to 65536", self.refused("plan", "--page-size", "0"))
        self.assertIn("--page-size: wanted a whole number from 1 to 65536, got -1;", self.refused("layouts", "--page-size", "-1"))
        ep_size = r"--ep-size +wanted 0 \(any\), or a power of two from 1 to --tp 2 +offered 3\n"
        model = os.path.join(os.path.dirname(__file__), "..", "models", "tiny-v32")
        self.assertRegex(self.refused("plan", "--model", model, "--device", "cpu", "--tp", "2", "--ep-size", "3"), ep_size)
        self.assertIn("--chunked-prefill-size", self.refused("plan", "--chunked-prefill-size", "-5"))
        self.assertIn("--context-length", self.refused("plan", "--context-length", "-1"))
        for text, limits in (("many", ""), ("1e9", ""), ("99999999999999999999", " from -2147483648 to 2147483647")):
            line = self.refused("plan", "--heads", text)
            self.assertRegex(line, rf"^lathe: --heads: wanted a whole number{limits}, got {text}; [^\n]*\n$")
        self.assertRegex(self.refused("generate", "--seed", "-5"), "--seed: wanted a whole number from 0 to 18446744073709551615, got -5;")
        self.assertRegex(self.refused("generate", "--temperature", "warm"), "--temperature: wanted a number, got warm;")
        self.assertRegex(self.refused("generate", "--threads", "1025"), "--threads: wanted a whole number from 0 to 1024, got 1025;")
        self.assertRegex(self.refused("generate", "--dtype", "int4"), "--dtype: wanted one of auto, float32, bfloat16, fp8, int8, got int4;")
        self.assertRegex(self.refused("bench", "engine", "-p", "16,x"), "--n-prompt: wanted a whole number, got x;")
        self.assertRegex(self.refused("bench", "engine", "-p", "16,16777217"), "wanted a whole number from 0 to 16777216, got 16777217;")
        rate = ["bench", "serve", "--request-rate", "5"]
        for args, text in (([*rate, "--burstiness", "0"], "--burstiness: wanted a number from 0.001 to 1000000, got 0"),
                           ([*rate, "--burstiness", "nan"], "--burstiness: wanted a number from 0.001 to 1000000, got nan"),
                           (["bench", "serve", "--request-rate", "1e-300"], '--request-rate: wanted 0.001 to 1000000 requests a second, or inf, got "1e-300"'),
                           (["bench", "serve", "--random-range-ratio", "2"], "--random-range-ratio: wanted a number from 0 to 1, got 2"),
                           (["bench", "serve", "--temperature", "nan"], "--temperature: wanted a number from 0 to 100, got nan"),
                           (["bench", "matmul", "--only", "int4"], "--only: wanted one of decode, prefill, experts, got int4"),
                           (["bench", "drafts", "--draft", "none"], "--draft: wanted a drafter to compare with none, got none")):
            self.assertIn(text, self.refused(*args), args)
        self.assertIn("a multiple of 128", self.refused("layouts", "mla_fp8_block(nope=100)"))

    def test_numbers_are_decimal(self):
        pages = json.loads(lathe("layouts", "v4_fp8", "--page-size", "064", "--json").stdout)
        self.assertEqual(pages[0]["page_stride"], 37440)
        plan = lathe("plan", "--attention", "dsa", "--device", "ref", "--context-length", "0000010000", "--json")
        self.assertEqual(json.loads(plan.stdout)["context_length"], 10000)
        model = os.path.join(os.path.dirname(__file__), "..", "models", "tiny-gqa")
        for a, b in ((["0102"], ["102"]), (["010,0102"], ["10,102"]), (["010", "+011"], ["10", "11"])):
            texts = [lathe("tokenize", "--model", model, "--json", "--decode", *ids) for ids in (a, b)]
            self.assertEqual(texts[0].returncode, 0, texts[0].stderr)
            self.assertEqual(texts[0].stdout, texts[1].stdout)
        for args in (["serve", "--port", "0x7538"], ["plan", "--heads", "0x10"], ["plan", "--heads", "0b1"],
                     ["plan", "--heads", "1'000"], ["plan", "--heads", "1_0"], ["plan", "--heads", "true"],
                     ["plan", "--ep-size", "0x2"], ["plan", "--page-size", "0x40"], ["plan", "--heads", " 8"]):
            line = self.refused(*args)
            self.assertEqual(line.count("\n"), 1, line)
            self.assertRegex(line, rf"^lathe: {args[1]}: wanted a whole number[^\n]*, got {args[2]}; ")
        self.assertIn("got 0x1;", self.refused("generate", "--temperature", "0x1"))
        self.assertIn("--port: wanted a whole number from 0 to 65535, got 65536;",
                      self.refused("serve", "--port", "065536"))

    def test_a_bias_is_as_large_as_the_servers(self):
        model = os.path.join(os.path.dirname(__file__), "..", "models", "tiny-gqa")
        for bias in ("1=101", "1=-100.5", "1=inf", "1=nan"):
            line = self.refused("generate", "--model", model, "--quiet", "--prompt", "a", "--logit-bias", bias)
            self.assertRegex(line, rf'--logit-bias: wanted ID=BIAS[^\n]*from -100 to 100, got "{bias}"\n$')

    def test_numbers_that_no_float_holds(self):
        self.assertRegex(self.refused("generate", "--temperature", "1e39"),
                         r"^lathe: --temperature: wanted a number of at most 3.4\d+e\+38, got 1e39;")
        self.assertRegex(self.refused("generate", "--top-p", "1e-300"),
                         r"^lathe: --top-p: wanted 0 or a number of at least 1e-45, got 1e-300;")

    def test_flags_without_a_value_given_twice_or_with_another(self):
        for args, text in ((["plan", "--heads"], "--heads: wanted a value, got nothing"),
                           (["plan", "--heads="], "--heads: wanted a value, got nothing"),
                           (["plan", "--heads", "8", "--heads=4"], "--heads: wanted one value, got 2; give the flag once"),
                           (["plan", "--json=maybe"], "--json: wanted no value, got maybe"),
                           (["serve", "--quiet=2GiB"], "--quiet: wanted no value, got 2GiB"),
                           (["plan", "--attention", "gqa", "--model", "x"], "--attention: wanted no --model with it, got both"),
                           (["inspect"], "model: wanted a value, got nothing"),
                           (["eval", "--svg", "x.svg"], "--svg: wanted --all-plans with it, got --svg alone"),
                           (["generate", "--config", ""], "--config: wanted a text, got an empty one; leave the flag out"),
                           (["serve", "--host", ""], "--host: wanted a text, got an empty one; leave the flag out"),
                           (["serve", "--max-queued-tokens", "-1"], "--max-queued-tokens: wanted a whole number from 0 to 1099511627776, got -1"),
                          (["plan", "--gpus", ""], "--gpus: wanted a text, got an empty one; leave the flag out"),
                          (["generate", "--gpus", ""], "--gpus: wanted a text, got an empty one; leave the flag out"),
                          (["serve", "--uds", ""], "--uds: wanted a text, got an empty one; leave the flag out"),
                           (["inspect", "x", "--rope-scaling", ""], "--rope-scaling: wanted a text, got an empty one; leave the flag out")):
            line = self.refused(*args)
            self.assertEqual(line, f"lathe: {text}; --help lists the flags\n", args)

    def test_shared_keys_that_no_step_reads_once(self):
        refused = lambda offered: ("lathe: --disable-cascade-attn: wanted decode steps that read shared keys once without it, "
                                   f"got {offered}; leave it out\n")
        flags = ["--device", "h200", "--disable-cascade-attn"]
        models = pathlib.Path(__file__).parent.parent / "models"
        for of in (["--model", str(models / "tiny-v32")], ["--model", str(models / "tiny-v4")], ["--attention", "mla"]):
            self.assertEqual(self.refused("plan", *of, *flags), refused("latent attention"))
        self.assertEqual(self.refused("plan", "--attention", "gqa", *flags, "--batch-invariant"), refused("--batch-invariant"))
        for of in (["--model", str(models / "tiny-gqa")], ["--attention", "gqa"]):
            self.assertEqual(lathe("plan", *of, *flags).returncode, 0)

    def test_budgets_of_buffers_that_a_plan_has_not(self):
        models = pathlib.Path(__file__).parent.parent / "models"
        index = "--indexer-logits-budget: wanted a model whose index chooses keys, got one without an index; leave it out"
        gather = "--gather-budget: wanted a plan that gathers keys into a buffer, got one without that buffer; leave it out"
        gathers = ["--prefill-attention-backend", "gather"]
        for of, flag, text in (("tiny-gqa", "--gather-budget", gather), ("tiny-gqa", "--indexer-logits-budget", index),
                               ("tiny-v32", "--gather-budget", gather)):
            model = ["--model", str(models / of), flag, "300000000"]
            self.assertEqual(self.refused("plan", *model), f"lathe: {text}\n")
            self.assertEqual(self.refused("generate", *model, "--prompt", "a"), f"lathe: {text}\n")
        for of in (["tiny-gqa", "--gather-budget", *gathers], ["tiny-v32", "--gather-budget", *gathers, "--kv-layout", "mla_fp8"],
                   ["tiny-v32", "--indexer-logits-budget"], ["tiny-v4", "--indexer-logits-budget"],
                   ["tiny-gqa", "--speculative-draft-model-path", str(models / "tiny-v32"), "--indexer-logits-budget"]):
            at = of.index(next(f for f in of if f.endswith("-budget"))) + 1
            self.assertEqual(lathe("plan", "--model", str(models / of[0]), *of[1:at], "300000000", *of[at:]).returncode, 0, of)

    def test_flags_that_nothing_would_follow(self):
        alone = lambda flag, other: f"{flag}: wanted {other} with it, got {flag} alone; --help lists the flags"
        both = lambda flag, other: f"{flag}: wanted no {other} with it, got both; --help lists the flags"
        dataset = lambda flag, names: f"{flag}: wanted --dataset-name {names} with it, got --dataset-name random"
        model = ["--model", os.path.join(os.path.dirname(__file__), "..", "models", "tiny-gqa"), "--quiet", "-p", "a"]
        for args, *texts in ((["generate", "-n", "2"], alone("-n", "--prompts")),
                             (["generate", *model, "--chat-template-kwargs", "{}"],
                              "--chat-template-kwargs: wanted --apply-chat-template, or messages in --prompts, with it, got prompts without a template"),
                             (["generate", *model, "--apply-chat-template", "--chat-template-kwargs", '{"add_generation_prompt":false}'],
                              "--chat-template-kwargs: wanted names that are not the request's own, got add_generation_prompt"),
                             (["chat", *model[:3], "--chat-template-kwargs", '{"messages":[]}'],
                              "--chat-template-kwargs: wanted names that are not the request's own, got messages"),
                             (["generate", *model, "--logit-bias", "3=1", "3=2"], "--logit-bias: wanted each token once, got 3 twice"),
                             (["generate", *model, "--override", "rms_norm_eps=1e-5", "--override", "rms_norm_eps=1e-6"],
                              '--override: wanted each key once, got "rms_norm_eps" twice'),
                             *((["plan", "--attention", "dsa", "--device", "cpu", flag, "x"],
                                f"{flag}: wanted a model with it, got an attention problem alone; --model DIR or --config FILE")
                               for flag in ("--override", "--rope-scaling")),
                             (["eval", "--window", "64"], alone("--window", "--perplexity")),
                             (["bench", "serve", "--save-detailed"], alone("--save-detailed", "--json")),
                             (["bench", "serve", "--burstiness", "2"], alone("--burstiness", "--request-rate")),
                             (["bench", "serve", "--random-prefixes", "2"], alone("--random-prefixes", "--random-prefix-len")),
                             (["bench", "serve", "--dataset-path", "x"], dataset("--dataset-path", "custom")),
                             (["bench", "serve", "--task", "copy"], dataset("--task", "tasks")),
                             (["bench", "serve", "--dataset-name", "tasks", "--vocab-size", "9"],
                              "--vocab-size: wanted --dataset-name random or custom with it, got --dataset-name tasks"),
                             (["bench", "engine", "-p", "8", "--tests", "pp8"], both("--tests", "--n-prompt"), both("--n-prompt", "--tests")),
                             (["bench", "engine", "-b", "8", "--tests", "pp8"], both("--tests", "--batch"), both("--batch", "--tests")),
                             (["bench", "server", "--parsing"], alone("--parsing", "--count-tokens")),
                             (["plan", "--rules", "--kinds"], "--rules: wanted no other flag with it, got --kinds"),
                             (["plan", "--kernels", "--json"], "--kernels: wanted no other flag with it, got --json"),
                             (["plan", "--matrix", "--explain"], both("--explain", "--matrix"), both("--matrix", "--explain")),
                             (["plan", "--attention", "mla", "--kv-heads", "4"], "--kv-heads: wanted --attention gqa with it, got --attention mla"),
                             (["plan", "--attention", "v4", "--head-dim", "64"], "--head-dim: wanted --attention gqa with it, got --attention v4"),
                             (["plan", "--compress-ratio", "0"], "--compress-ratio: wanted --attention v4 with it, got --attention dsa"),
                             (["generate", *model, "--device", "cpu", "--disable-overlap-schedule"],
                              "--disable-overlap-schedule: wanted a GPU, whose steps may overlap, got --device cpu; leave it out"),
                             (["layouts", "--table", "--json"], both("--json", "--table"), both("--table", "--json"))):
            self.assertIn(self.refused(*args), [f"lathe: {text}\n" for text in texts], args)

    def test_a_model_and_another_shape_contradict(self):
        for flag in ("--num-layers", "--heads", "--kv-heads", "--head-dim", "--top-k", "--window", "--compress-ratio"):
            for source in ("--model", "--config"):
                line = self.refused("plan", source, "x", flag, "4")
                self.assertIn(line, [f"lathe: {a}: wanted no {b} with it, got both; --help lists the flags\n"
                                     for a, b in ((flag, source), (source, flag))])
        self.assertRegex(self.refused("plan", "--model", "x", "--sink"), "^lathe: --(sink|model): wanted no --(sink|model) with it, got both;")

    def test_flags(self):
        self.assertIn("--help", self.refused("plan", "--no-such-flag"))
        self.assertIn("--help", self.refused())
        self.assertIn("--help", self.refused("fly"))

    def test_subcommands(self):
        for args in ([], ["fly"], ["bench"], ["bench", "fly"]):
            text = self.refused(*args)
            self.assertEqual(text.count("\n"), 1, text)
            self.assertRegex(text, r"wanted one of \w+, \w+", args)
        self.assertIn('got "genrate"; did you mean lathe generate?', self.refused("genrate"))
        self.assertIn("did you mean lathe bench codec?", self.refused("bench", "codex"))
        self.assertNotIn("did you mean", self.refused("fly"))
        version = lathe("--version")
        self.assertEqual(version.returncode, 0)
        self.assertRegex(version.stdout, r"^lathe \d+\.\d+\.\d+\n$")


class Layouts(unittest.TestCase):
    def test_sizes(self):
        layouts = json.loads(lathe("layouts", "--json").stdout)
        self.assertEqual({e["name"]: e["bytes_per_token"] for e in layouts},
                         {"mla_bf16": 1152, "mla_fp8": 576, "mla_fp8_block": 656, "mla_fp4": 324,
                          "v4_fp8": 584, "index_fp8": 132, "gqa_bf16": 4096, "gqa_fp8": 2048})
        strides = {}
        for page in (256, 64, 2):
            data = json.loads(lathe("layouts", "v4_fp8", "--page-size", str(page), "--json").stdout)
            strides[page] = data[0]["page_stride"]
        self.assertEqual(strides, {256: 149760, 64: 37440, 2: 1728})

    def test_help(self):
        for args in (["--help"], ["plan", "--help"], ["layouts", "--help"]):
            self.assertEqual(lathe(*args).returncode, 0)

    def test_help_that_cannot_be_written_fails(self):
        for args in (["--help"], ["plan", "--help"], ["--version"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([LATHE, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(result.returncode, 1, args)
            self.assertRegex(result.stderr, r"^lathe: stdout: wanted [^\n]*\n$")
            closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", LATHE, *args], capture_output=True, timeout=60)
            self.assertEqual(closed.returncode, 1, args)


if __name__ == "__main__":
    unittest.main()
