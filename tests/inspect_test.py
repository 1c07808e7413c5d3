#!/usr/bin/env python3
"""Runs inspect and bench engine as a user does, on right and on broken checkpoints."""

import json
import math
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

from generated_checkpoint import checkpoint
from model_command_util import DATA, LATHE, ModelCommand, lathe


class InspectAndBench(ModelCommand):
    def test_inspect(self):
        result = lathe("inspect", str(checkpoint("deepseek_v3_fp8")), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(result.stdout)
        config = json.loads((DATA / "models/deepseek_v3_fp8/config.json").read_text())
        self.assertEqual(data["architecture"], "DeepseekV3ForCausalLM")
        self.assertEqual(data["layers"], config["num_hidden_layers"])
        self.assertIn("F8_E4M3", data["weights"])
        row = next(r for r in data["layouts"] if r["layout"] == "mla_bf16")
        per_layer = 2 * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
        self.assertEqual(row["bytes_per_token"], per_layer * config["num_hidden_layers"])
        self.assertEqual(row["longest_context"], config["max_position_embeddings"])
        self.assertEqual(lathe("inspect", str(checkpoint("llama"))).returncode, 0)
        self.assertIn("config.json", self.refused("inspect", "/no/such/folder"))

    def test_a_format_that_no_tensor_has(self):
        """Tensors decide: the same answer with and without the entry, and a line that says so."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(checkpoint("qwen3"), folder, dirs_exist_ok=True)
            path = pathlib.Path(folder) / "config.json"
            config = json.loads(path.read_text())
            outputs = []
            for more in ({}, {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}):
                path.write_text(json.dumps({**config, **more}))
                result = lathe("generate", "--model", folder, "--device", "cpu", "--prompt-ids", "1,2,3", "--max-new-tokens", "4", "--json")
                self.assertEqual(result.returncode, 0, result.stderr)
                outputs.append(json.loads(result.stdout)["tokens"])
                said = "config.json says fp8_blocks; the tensors are plain" in lathe("inspect", folder).stdout
                self.assertEqual(said, bool(more))
            self.assertEqual(outputs[0], outputs[1])

    def test_a_format_that_only_tensors_have(self):
        """Without quantization_config a checkpoint runs, and is planned for, as with it."""
        root = pathlib.Path(__file__).parent.parent
        for source in (root / "models/tiny-v32", root / "models/tiny-v4"):
            with self.subTest(source.name), tempfile.TemporaryDirectory() as folder:
                shutil.copytree(source, folder, dirs_exist_ok=True)
                path = pathlib.Path(folder) / "config.json"
                config = json.loads(path.read_text())
                seen = []
                for _ in range(2):
                    outputs = [lathe("plan", "--model", folder, "--device", "h200", "--json").stdout]
                    for ranks in ("1", "2"):
                        result = lathe("generate", "--model", folder, "--device", "cpu", "--threads", "2", "--tp", ranks, "--prompt-ids", "1,2,3",
                                       "--max-new-tokens", "4", "--ignore-eos", "--json")
                        self.assertEqual(result.returncode, 0, result.stderr)
                        outputs.append(json.loads(result.stdout)["tokens"])
                    outputs.append(lathe("inspect", folder).stdout)
                    seen.append(outputs)
                    config.pop("quantization_config", None)
                    path.write_text(json.dumps(config))
                self.assertEqual(seen[0], seen[1])

    def test_a_configuration_alone_says_what_its_weights_would_be(self):
        data = json.loads(lathe("inspect", str(self.model / "config.json"), "--json").stdout)
        made = json.loads(lathe("inspect", str(DATA / "models/qwen3/config.json"), "--json").stdout)
        stored = json.loads(lathe("inspect", str(checkpoint("qwen3")), "--json").stdout)
        self.assertEqual(made["parameters"], stored["parameters"])
        self.assertEqual([r["bytes_per_token"] for r in made["layouts"]],
                         [r["bytes_per_token"] for r in data["layouts"]])
        plan = lathe("plan", "--config", str(self.model / "config.json"), "--device", "cpu", "--json")
        self.assertIn("activations", {b["name"] for b in json.loads(plan.stdout)["budgets"]})

    def test_what_no_machine_holds_is_refused_before_anything_is_allocated(self):
        config = str(self.model / "config.json")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            for command in (["chat"], ["serve", "--port", "0"], ["eval", "--perplexity", text.name], ["bench", "drafts", "--draft", "ngram"],
                            ["calibrate", "--text", text.name, "--output", str(self.model / "scales.safetensors")]):
                device = [] if command[0] == "calibrate" else ["--device", "cpu"]
                result = lathe(*command, "--model", str(checkpoint("llama")), *device)
                self.assertEqual(result.returncode, 2, command)
                self.assertRegex(result.stderr, r"^lathe: [^\n]*tokenizer\.json: wanted [^\n]*\n$", command)
        dummy = ["--load-format", "dummy", "--config", config]
        for flag in ("--max-running-requests", "--chunked-prefill-size"):
            for command in (["plan", "--config", config, "--device", "cpu"],
                            ["generate", "--model", str(self.model), "--load-format", "dummy", "-p", "x"],
                            ["bench", "engine", *dummy]):
                result = lathe(*command, flag, "1000000000")
                self.assertEqual(result.returncode, 2, (command, result.stderr))
                text = result.stdout + result.stderr
                self.assertRegex(text, r"buffers +memory +wanted at most the machine's [^\n]* offered ")
                way = re.search(r"try (--\S+) (\d+)", text)
                self.assertEqual(way[1], flag)
                again = lathe("plan", "--config", config, "--device", "cpu", flag, way[2])
                if command[0] == "plan":
                    self.assertEqual(again.returncode, 0, again.stdout)

    def test_weights_beyond_the_machine_are_refused(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            config = json.loads((self.model / "config.json").read_text())
            config.update(num_hidden_layers=400, intermediate_size=1 << 20, hidden_size=1 << 14)
            if "layer_types" in config:
                del config["layer_types"]
            (folder / "config.json").write_text(json.dumps(config))
            shutil.copy(self.model / "tokenizer.json", folder)
            file = str(folder / "config.json")
            for command in (["plan", "--config", file, "--device", "cpu"],
                            ["generate", "--model", name, "--load-format", "dummy", "-p", "x"],
                            ["bench", "engine", "--load-format", "dummy", "--config", file]):
                result = lathe(*command)
                self.assertEqual(result.returncode, 2, command)
                self.assertRegex(result.stdout + result.stderr, r"offered [\d.]+ TiB \(weights [\d.]+ TiB")
            rows = json.loads(lathe("inspect", file, "--json").stdout)["layouts"]
            self.assertTrue(all("TiB" in r["reason"] for r in rows), rows)

    def test_memory_that_the_system_does_not_give_is_one_line(self):
        most = 1 << 30

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

        def run(*args: str) -> subprocess.CompletedProcess:
            return subprocess.run([LATHE, *args], capture_output=True, text=True, timeout=120,
                                  preexec_fn=limit)

        if run("layouts").returncode != 0:
            return  # a build whose own memory, such as a sanitiser's, does not fit
        base = ["generate", *self.flags("-p", "x", "--quiet", "--max-new-tokens", "1", "--threads", "1")]
        cases = [["--max-total-tokens", "8000000"], ["--chunked-prefill-size", "1000000"]]
        for more in cases:
            result = run(*base, *more)
            self.assertIn(result.returncode, (1, 2), more)
            self.assertRegex(result.stderr, r"^lathe: host memory: wanted \d+ bytes more, got less: [^\n]*\n$")

    def test_bench_engine(self):
        result = lathe("bench", "engine", "--load-format", "dummy", "--config", str(self.model / "config.json"),
                       "-p", "16,32", "-n", "4", "-d", "0,64", "-b", "1,2", "-r", "1", "--json", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual({(r["test"], r["depth"], r["batch"]) for r in rows},
                         {(t, d, b) for t in ("pp16", "pp32", "tg4") for d in (0, 64) for b in (1, 2)})
        self.assertTrue(all(r["tokens_per_s"] > 0 for r in rows))
        c = json.loads((self.model / "config.json").read_text())
        q, kv = (c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
        layer = c["hidden_size"] * (2 * q + 2 * kv + 3 * c["intermediate_size"])
        weights = c["num_hidden_layers"] * layer + c["vocab_size"] * c["hidden_size"]
        for r in rows:
            self.assertEqual("gb_per_s" in r, r["test"] == "tg4")
            if "gb_per_s" not in r:
                continue
            # Keys and values of the prompt's first token, of the depth and of half of the answer.
            keys = r["batch"] * (r["depth"] + 1 + 2) * c["num_hidden_layers"] * 2 * kv
            step = r["batch"] / r["tokens_per_s"]
            self.assertAlmostEqual(r["gb_per_s"] * 1e9 * step / (2 * (weights + keys)), 1, places=6)

    def test_bench_engine_refuses_batches_that_would_take_turns(self):
        result = lathe("bench", "engine", "--load-format", "dummy", "--config", str(self.model / "config.json"), "-b", "1,65")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("--batch: wanted at most 64, the requests that run at once, got 65; --max-running-requests 65", result.stderr)

    def test_bench_engine_refuses_tests_that_would_measure_nothing_or_share_less(self):
        base = ["bench", "engine", "--load-format", "dummy", "--config", str(self.model / "config.json"), "-r", "1", "--quiet"]
        for more, said in ((["-p", "0", "-n", "0"], "--n-prompt, --n-gen: wanted tokens of prefill or of decode, got 0 of both"),
                           (["--shared-prefix-tokens", "100", "-d", "10"],
                            "--shared-prefix-tokens: wanted at most the depth of every test, 10, got 100; --n-depth 100"),
                           (["--shared-prefix-tokens", "64", "--tests", "tg4@64,tg4"],
                            "--shared-prefix-tokens: wanted at most the depth of every test, 0, got 64; --n-depth 64"),
                           (["-p", "8,,16"], "-p: wanted a value before and after each ',', got 8,,16; --help lists the flags")):
            result = lathe(*base, *more)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"lathe: {said}\n"), more)

    def test_bench_engine_by_tests(self):
        base = ["bench", "engine", "--load-format", "dummy", "--config", str(self.model / "config.json"), "-r", "1", "--quiet", "--json", "--tests"]
        result = lathe(*base, "pp16,tg4@64x2,pp8@3x4")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [(r["test"], r["depth"], r["batch"]) for r in json.loads(result.stdout)["rows"]]
        self.assertEqual(rows, [("pp16", 0, 1), ("tg4", 64, 2), ("pp8", 3, 4)])
        for text in ("tg", "tg0", "xx4", "pp8x", "pp8@4@5", "pp8x2y", "pp8x2@4", "pp-8", "pp16777217"):
            result = lathe(*base, text)
            self.assertEqual((result.returncode, result.stdout), (2, ""), text)
            self.assertEqual(result.stderr, f"lathe: --tests: wanted pp or tg and tokens, perhaps @ depth and x batch, got {text}; "
                                            "pp8192, pp1024x16 or tg128@960x64\n")
        result = lathe(*base, "tg4x65")
        self.assertRegex(result.stderr, "--tests: wanted at most 64, the requests that run at once, got 65;")

    def test_bench_engine_refuses_batches_that_the_cache_cannot_hold(self):
        base = ["bench", "engine", "--load-format", "dummy", "--config", str(self.model / "config.json"), "-d", "100", "-p", "0", "-n", "28",
                "-r", "1", "--quiet", "--json", "--page-size", "64", "--max-total-tokens"]
        # 100 tokens, the prompt's last and 28 more: three pages.
        result = lathe(*base, "640", "-b", "2,4")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr, "lathe: --batch: wanted at most the 640 tokens that the cache holds, got 4 requests of 192 tokens: 768; "
                                        "--max-total-tokens 768\n")
        result = lathe(*base, "768", "-b", "2,4")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(all(r["tokens_per_s"] > 0 for r in json.loads(result.stdout)["rows"]))

    def test_bench_engine_with_guesses_as_right_as_asked(self):
        tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "tiny-v32")
        base = ["bench", "engine", "--model", tiny, "--device", "cpu", "--threads", "1", "-p", "0", "-n", "64", "-b", "1",
                "-r", "1", "--quiet", "--json"]
        for share, more in (("1", ["--draft", "mtp"]), ("0.6", ["--draft", "ngram", "--draft-tokens", "1"])):
            result = lathe(*base, *more, "--draft-acceptance", share)
            self.assertEqual(result.returncode, 0, result.stderr)
            (gain,) = json.loads(result.stdout)["drafts"]
            self.assertEqual(gain["drafts"], 1)
            self.assertAlmostEqual(gain["tokens_of_a_check_asked"], 1 + float(share), places=5)
            # A coin is thrown for about 2 * 40 guesses.
            self.assertAlmostEqual(gain["tokens_of_a_check"], 1 + float(share), delta=0.25 if share != "1" else 1e-6)
            self.assertGreater(gain["formula_ratio"], 0)
        refused = lathe(*base, "--draft-acceptance", "0.5")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--draft-acceptance: wanted a drafter with it, got --draft none", refused.stderr)
        self.assertIn("wanted a share above 0, at most 1, got 1.5", lathe(*base, "--draft-acceptance", "1.5").stderr)

    def test_configurations_are_overridden(self):
        context = lambda *args: json.loads(self.inspected(*args))["context"]
        self.assertEqual(context(), self.context)
        yarn = ["--rope-scaling", json.dumps({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": self.context})]
        self.assertEqual(context(*yarn), 4 * self.context)
        self.assertEqual(context("--override", "max_position_embeddings=96"), 96)
        self.assertEqual(context("--override", "max_position_embeddings=96", "--override", "rms_norm_eps=1e-3"), 96)
        # Every command that reads a configuration.
        run = lambda *args: lathe(*args, "--override", "max_position_embeddings=96", "--device", "cpu")
        planned = run("plan", "--model", str(self.model), "--json")
        self.assertEqual(planned.returncode, 0, planned.stderr)
        result = run("generate", *self.flags("--prompt-ids", "1,2", "--max-new-tokens", "2", "--context-length", "100"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("--context-length: wanted at most 96 tokens", result.stderr)
        told = lambda *args: self.generate("--prompt-ids", "1,2,3,4", "--logprobs", "1", *args)[0]["logprobs"]
        self.assertNotEqual(told("--rope-scaling", '{"rope_type": "linear", "factor": 8.0}'), told())
        self.assertNotEqual(told("--override", "rope_parameters.rope_theta=5"), told())
        for wrong, word in (("max_positions=3", "a key that is read for this model"), ("architectures=[]", "what the checkpoint is"),
                            ("hidden_act=silu", "a text needs double quotes"), ("rope_theta", "KEY=JSON"),
                            ("rope_theta=true", "--override rope_theta: wanted a finite number")):
            for command in (["inspect", str(self.model / "config.json")], ["plan", "--model", str(self.model)],
                            ["generate", *self.flags("--prompt-ids", "1")]):
                self.assertIn(word, self.refused(*command, "--override", wrong))

    def inspected(self, *args: str) -> str:
        result = lathe("inspect", *args, str(self.model / "config.json"), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout


del ModelCommand  # a base, no tests of its own


def read_tensors(file: pathlib.Path) -> dict[str, tuple[dict, bytes]]:
    """name -> (header entry, bytes) of a safetensors file."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {n: (e, data[8 + size + e["data_offsets"][0] : 8 + size + e["data_offsets"][1]]) for n, e in header.items()}


def write_tensors(file: pathlib.Path, tensors: dict[str, tuple[dict, bytes]]) -> None:
    header, data = {}, b""
    for name, (entry, values) in tensors.items():
        header[name] = {**entry, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Checkpoints(unittest.TestCase):
    """inspect, plan and generate agree on which files are a model."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = pathlib.Path(self.folder.name)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(checkpoint("qwen3") / name, self.model)

    def config(self, **changes) -> None:
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps({**config, **changes}))

    def all_refuse(self, *words: str) -> None:
        commands = (["inspect", str(self.model)], ["plan", "--model", str(self.model), "--device", "cpu"],
                    ["generate", "--model", str(self.model), "--prompt-ids", "1,2", "--device", "cpu"])
        for command in commands:
            result = lathe(*command)
            self.assertEqual((result.returncode, result.stdout), (2, ""), (command, result.stderr))
            for word in words:
                self.assertIn(word, result.stderr, command)

    def test_d1_missing_and_packed_tensors(self):
        self.assertEqual(lathe("plan", "--model", str(self.model), "--device", "cpu").returncode, 0)
        file = self.model / "model.safetensors"
        good = read_tensors(file)
        name = "model.layers.1.mlp.up_proj.weight"
        write_tensors(file, {n: t for n, t in good.items() if n != name})
        self.all_refuse("1 missing: " + name)
        # Pairs of 4-bit codes in a byte, as AWQ, GPTQ and NVFP4 pack them.
        entry, values = good[name]
        packed = {**entry, "dtype": "U8", "shape": [entry["shape"][0], entry["shape"][1] // 2]}
        write_tensors(file, good | {name: (packed, values[: len(values) // 4])})
        self.all_refuse(f"1 missing: {name}_scale")
        write_tensors(file, good | {"model.layers.0.mlp.up_proj.weight_scale": ({"dtype": "F32", "shape": [1]}, bytes(4))})
        self.all_refuse("1 of another shape or dtype: model.layers.0.mlp.up_proj.weight ")
        file.write_bytes(file.read_bytes()[:-4])
        self.all_refuse(file.name)
        # A configuration alone is a model to plan for.
        file.unlink()
        self.assertEqual(lathe("plan", "--model", str(self.model), "--device", "cpu").returncode, 0)

    def test_d1_hf_quant_config(self):
        (self.model / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
        self.all_refuse("hf_quant_config.json", "quant_algo", '"W4A8_AWQ"')

    def test_d1_packed_bytes_are_not_parameters(self):
        # gpt-oss in MXFP4: two codes to a byte, and a scale for 32 of them.
        config = json.loads((DATA / "models/gpt_oss/config.json").read_text())
        tensors = json.loads((DATA / "models/gpt_oss/tensors.json").read_text())
        def elements(name, spec):
            count = math.prod(spec["shape"])
            return 2 * count if name.endswith("_blocks") else 0 if name.endswith("_scales") else count
        wanted = sum(elements(n, s) for n, s in tensors.items())
        (self.model / "config.json").write_text(json.dumps(config))
        file = self.model / "model.safetensors"
        size = {"U8": 1, "BF16": 2, "F16": 2, "F32": 4}
        write_tensors(file, {n: ({"dtype": s["dtype"], "shape": s["shape"]}, bytes(math.prod(s["shape"]) * size[s["dtype"]]))
                             for n, s in tensors.items()})
        result = lathe("inspect", str(self.model), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["parameters"], wanted)

    def broken(self, *words: str) -> None:
        """Every command that loads weights says so in one line, which serve prints below its settings."""
        shutil.copy(DATA / "tokenizer/qwen2/tokenizer.json", self.model)
        (self.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
        text = self.model / "text.txt"
        text.write_text("One two three. " * 40)
        model, cpu = ["--model", str(self.model)], ["--device", "cpu"]
        commands = {"inspect": [str(self.model)], "plan": [*model, *cpu], "generate": [*model, *cpu, "-p", "a"],
                    "chat": [*model, *cpu], "serve": [*model, *cpu, "--port", "0"], "eval": [*model, *cpu, "--perplexity", str(text)],
                    "bench": ["engine", *model, *cpu, "-p", "4", "-n", "1", "-b", "1", "-r", "1"],
                    "calibrate": [*model, "--text", str(text), "--output", str(self.model / "scales.safetensors")]}
        for command, arguments in commands.items():
            with self.subTest(command):
                result = lathe(command, *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertEqual(len(re.findall("(?m)^lathe: ", result.stderr)), 1, result.stderr)
                self.assertTrue(result.stderr.splitlines()[-1].startswith("lathe: "), result.stderr)
                self.assertTrue(command == "serve" or len(result.stderr.splitlines()) == 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr.splitlines()[-1])

    def test_d1_all_commands_refuse_the_same_files(self):
        file, config = self.model / "model.safetensors", self.model / "config.json"
        good, text = read_tensors(file), config.read_text()
        name = "model.layers.0.mlp.up_proj.weight"
        entry, values = good[name]
        write_tensors(file, good | {name: ({**entry, "shape": entry["shape"][::-1]}, values)})
        self.broken("1 of another shape or dtype: " + name)
        write_tensors(file, good)
        (self.model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {n: "model-1.safetensors" for n in good}}))
        file.unlink()
        self.broken("model-1.safetensors", "model.safetensors.index.json names this shard")
        (self.model / "model.safetensors.index.json").unlink()
        write_tensors(file, good)
        self.config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
        self.broken("quant_method", '"bitsandbytes"')
        config.write_text(text)
        self.config(eos_token_id=[1, 1_000_000])
        self.broken("config.json: eos_token_id: wanted ids below vocab_size", "got 1000000")
        config.write_text(text)
        for given, words in (('{"eos_token_id": 999999}', ("eos_token_id", "got 999999")), ('{"temperature": -1}', ("temperature", "got -1")),
                             ('{"top_p": NaN}', ("top_p",)), ('{"min_p": "x"}', ("min_p",)), ("[]", ("an object",))):
            (self.model / "generation_config.json").write_text(given)
            self.broken("generation_config.json", *words)

    def test_d2_models_without_a_tokenizer_run_by_ids(self):
        run = lambda *a: lathe("generate", "--model", str(self.model), "--device", "cpu", "--max-new-tokens", "4", "--ignore-eos", *a)
        told = run("--prompt-ids", "1,2,3", "--json", "--logprobs", "1")
        self.assertEqual(told.returncode, 0, told.stderr)
        answer = json.loads(told.stdout)
        self.assertEqual((answer["text"], len(answer["tokens"]), len(answer["logprobs"])), ("", 4, 4))
        self.assertEqual(run("--prompt-ids", "1,2,3").stdout, " ".join(map(str, answer["tokens"])) + "\n")
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
            prompts.write(json.dumps({"prompt": [1, 2, 3]}) + "\n")
            prompts.flush()
            self.assertEqual(json.loads(run("--prompts", prompts.name).stdout)["tokens"], answer["tokens"])
        for more, word in ((["-p", "text"], "tokenizer.json"), (["--prompt-ids", "1", "--stop", "x"], "--stop: wanted a model with tokenizer.json")):
            result = run(*more)
            self.assertEqual(result.returncode, 2)
            self.assertIn(word, result.stderr)
        dummy = ["--load-format", "dummy", "--config", str(self.model / "config.json"), "--device", "cpu"]
        result = lathe("generate", *dummy, "--prompt-ids", "1,2", "--max-new-tokens", "2", "--ignore-eos")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^\d+ \d+\n$")
        result = lathe("bench", "engine", *dummy, "-p", "8", "-n", "2", "-b", "1", "-r", "1", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_d3_bytes_per_token_are_told_where_weights_do_not_fit(self):
        config = str(self.model / "config.json")
        rows = json.loads(lathe("inspect", config, "--json").stdout)["layouts"]
        wanted = {r["layout"]: r["bytes_per_token"] for r in rows}
        self.config(intermediate_size=1 << 23, hidden_size=1 << 19)
        large = json.loads(lathe("inspect", config, "--json").stdout)["layouts"]
        for row in large:
            self.assertFalse(row["legal"])
            self.assertIn("TiB", row["reason"])
            self.assertEqual(row["bytes_per_token"], wanted[row["layout"]])
        table = lathe("inspect", config).stdout
        for layout, count in wanted.items():
            self.assertRegex(table, rf"(?m)^{layout} +{count:.0f} +refused: ")

    def test_d3_bytes_per_token_are_told_where_no_kernel_is(self):
        for name in ("qwen3", "deepseek_v3_fp8", "qwen2_window"):
            config = str(DATA / "models" / name / "config.json")
            rows = {r["layout"]: r for r in json.loads(lathe("inspect", config, "--json", "--device", "cpu").stdout)["layouts"]}
            for row in json.loads(lathe("inspect", config, "--json", "--device", "sm80").stdout)["layouts"]:
                self.assertFalse(row["legal"])
                self.assertIn("kernel wanted one for sm80", row["reason"])
                self.assertEqual(row["bytes_per_token"], rows[row["layout"]]["bytes_per_token"], (name, row))

    def test_d4_the_true_reason_is_named(self):
        gguf = self.model / "x.gguf"
        gguf.write_bytes(b"GGUF" + bytes(100))
        for command in (["inspect", str(gguf)], ["plan", "--model", str(gguf)],
                        ["generate", "--model", str(gguf), "--prompt-ids", "1"]):
            result = lathe(*command)
            self.assertEqual(result.returncode, 2, command)
            self.assertIn("a GGUF file", result.stderr)
        text = (self.model / "config.json").read_text()
        (self.model / "config.json").write_text(text.replace("1e-05", "Infinity"))
        self.all_refuse('config.json: rms_norm_eps: wanted a finite number, got "Infinity"')

    def test_d4_all_commands_name_a_file_of_weights(self):
        text = self.model / "text.txt"
        text.write_text("One two three. ")
        for extension, name in (("gguf", "a GGUF file"), ("bin", "a PyTorch pickle"), ("safetensors", "one safetensors file")):
            file = self.model / ("x." + extension)
            file.write_bytes(b"GGUF" + bytes(100))
            model = ["--model", str(file), "--device", "cpu"]
            for command in (["inspect", str(file)], ["plan", *model], ["generate", *model, "-p", "a"], ["chat", *model], ["serve", *model],
                            ["eval", *model, "--perplexity", str(text)], ["bench", "engine", *model, "-p", "4", "-n", "1", "-b", "1"],
                            ["tokenize", *model[:2], "a"],
                            ["calibrate", *model[:2], "--text", str(text), "--output", str(self.model / "scales.safetensors")]):
                with self.subTest(command):
                    result = lathe(*command)
                    self.assertEqual(result.returncode, 2)
                    self.assertIn(name, result.stderr)
                    self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_a5_inspect_says_which_head_is_used(self):
        def head() -> bool:
            result = lathe("inspect", str(self.model), "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)["tied_embeddings"]
        self.assertTrue(head())
        file = self.model / "model.safetensors"
        tensors = read_tensors(file)
        entry, values = tensors["model.embed_tokens.weight"]
        write_tensors(file, tensors | {"lm_head.weight": (entry, values)})
        self.assertTrue(head())
        write_tensors(file, tensors | {"lm_head.weight": (entry, values[:-1] + bytes([values[-1] ^ 1]))})
        self.assertFalse(head())
        self.assertRegex(lathe("inspect", str(self.model)).stdout, r"(?m)^head +lm_head, its own$")

    def test_e13_memory_follows_what_the_cache_holds(self):
        def peak(*args: str) -> int:
            code = ("import resource, subprocess, sys; r = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
                    "sys.exit(r.stderr) if r.returncode else print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
            result = subprocess.run([sys.executable, "-c", code, LATHE, *args], capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            return int(result.stdout)  # KiB
        run = ["generate", "--model", str(self.model), "--device", "cpu", "--prompt-ids", "1,2", "--max-new-tokens", "2",
               "--ignore-eos", "--max-total-tokens", "512", "--threads", "1"]
        usual = peak(*run)
        self.config(max_position_embeddings=8 << 20)
        self.assertLess(peak(*run), usual + (256 << 10))
        # A window that is longer than the context: lists of its keys are as wide as the context.
        config = json.loads((DATA / "models/deepseek_v4/config.json").read_text())
        window = [*run, "--load-format", "dummy"]
        (self.model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
        usual = peak(*window)
        self.config(sliding_window=128000)
        self.assertLess(peak(*window), usual + (256 << 10))


if __name__ == "__main__":
    unittest.main()
