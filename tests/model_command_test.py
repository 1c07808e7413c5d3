#!/usr/bin/env python3
"""Runs generate, chat, inspect and bench engine as a user does, on a checkpoint folder put together from fixtures."""

import fcntl
import json
import math
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

from generated_checkpoint import checkpoint

LATHE = sys.argv.pop(1)
DATA = pathlib.Path(__file__).parent / "data"
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def lathe(*args: str, stdin: str = "") -> subprocess.CompletedProcess:
    return subprocess.run([LATHE, *args], capture_output=True, text=True, input=stdin, timeout=120)


class ModelCommand(unittest.TestCase):
    """A folder with a configuration, a tokenizer and a chat template, and random weights."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = pathlib.Path(cls.folder.name)
        tokenizer = json.loads((DATA / "tokenizer/qwen2/tokenizer.json").read_text())
        ids = list(tokenizer["model"]["vocab"].values()) + [t["id"] for t in tokenizer["added_tokens"]]
        config = json.loads((DATA / "models/qwen3/config.json").read_text())
        config["vocab_size"] = max(ids) + 1
        (cls.model / "config.json").write_text(json.dumps(config))
        shutil.copy(DATA / "tokenizer/qwen2/tokenizer.json", cls.model)
        (cls.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        cls.context = config["max_position_embeddings"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def flags(self, *args: str, model: pathlib.Path | None = None) -> list[str]:
        return ["--model", str(model or self.model), "--load-format", "dummy", *args]

    def generate(self, *args: str) -> list[dict]:
        result = lathe("generate", *self.flags("--json", "--ignore-eos", "--max-new-tokens", "12", *args))
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refused(self, *args: str, stdin: str = "") -> str:
        result = lathe(*args, stdin=stdin)
        self.assertEqual(result.returncode, 2, (args, result.stderr))
        self.assertEqual(result.stdout, "")
        # What a request meets comes after the lines of the start.
        self.assertTrue(result.stderr.splitlines()[-1].startswith("lathe: "), result.stderr)
        self.assertNotIn("terminate", result.stderr)
        return result.stderr


class Generate(ModelCommand):
    PROMPT = "The lathe turns, the pages of the cache lie still, and 12 tokens follow."

    def test_text_streams_to_stdout_and_the_rest_to_stderr(self):
        text = self.generate("--prompt", self.PROMPT)[0]["text"]
        result = lathe("generate", *self.flags("--prompt", self.PROMPT, "--ignore-eos", "--max-new-tokens", "12"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, text + "\n")
        for word in ("weights", "cache", "plan", "prefill", "decode", "tokens/s", "finish"):
            self.assertIn(word, result.stderr)

    def test_what_cannot_be_written_or_begun_is_said(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([LATHE, "generate", *self.flags("-p", "a", "--json", "--max-new-tokens", "2", "--quiet")],
                                    stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual((result.returncode, result.stderr),
                         (1, "lathe: stdout: wanted a file that can be written, got an error\n"))
        self.assertIn("max_new_tokens: wanted 1 or more, got 0", self.refused("chat", *self.flags("--max-new-tokens", "0")))
        for command in (["generate", "-p", "a"], ["chat"]):
            self.assertIn("--model: wanted a directory with tokenizer.json, got nothing", self.refused(*command))

    def test_the_chat_template_goes_around_every_prompt(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write(json.dumps({"prompt": "one"}) + "\n")
            f.flush()
            alone = self.generate("--prompt", "one", "--apply-chat-template")
            self.assertEqual(self.generate("--prompts", f.name, "--apply-chat-template"), alone)
            self.assertNotEqual(self.generate("--prompts", f.name), alone)

    def test_chunks_threads_cache_and_layout_pairs_change_no_token(self):
        whole = self.generate("--prompt", self.PROMPT)
        self.assertEqual(whole[0]["completion_tokens"], 12)
        for extra in (["--chunked-prefill-size", "1"], ["--chunked-prefill-size", "7"], ["--threads", "1"],
                      ["--no-prefix-cache"], ["--page-size", "16"], ["--decode-attention-backend", "native"]):
            self.assertEqual(self.generate("--prompt", self.PROMPT, *extra), whole, extra)

    def test_drafts_change_no_token(self):
        plain = self.generate("--prompt", self.PROMPT)
        for extra in (["--draft", "ngram"], ["--draft", "ngram", "--draft-tokens", "1"], ["--draft", "none"],
                      ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "15"]):
            self.assertEqual(self.generate("--prompt", self.PROMPT, *extra), plain, extra)
        for extra in (["--draft", str(self.model)],
                      ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(self.model)]):
            self.assertEqual(self.generate("--prompt", self.PROMPT, *extra), plain, extra)
        told = lathe("generate", *self.flags("-p", "a", "--max-new-tokens", "9", "--draft", str(self.model))).stderr
        self.assertRegex(told, r"drafts +" + re.escape(str(self.model)) + r", up to 4 tokens of a request in a step\n"
                               r" +weights .*, cache ")
        told = lathe("generate", *self.flags("-p", "a", "--max-new-tokens", "2", "--draft", "ngram", "--explain")).stderr
        self.assertRegex(told, r"\ndrafts +(none were made|[0-9.]+ tokens in each of)")
        self.assertRegex(told, r"drafts +ngram, up to 4 tokens of a request in a step\n")
        self.assertRegex(told, r"drafts +up to 4 of a request, 320 rows in a verify step\n")

    def test_drafts_that_do_not_run_are_refused(self):
        run = lambda *a: self.refused("generate", *self.flags("-p", "a", *a))
        self.assertIn('--draft: wanted none, ngram, mtp or a draft model\'s directory, got "eagle"; layers of EAGLE are not run', run("--draft", "eagle"))
        self.assertIn("--draft: wanted a model whose draft layer runs", run("--draft", "mtp"))
        self.assertIn("no/such/model", run("--draft", "no/such/model"))
        self.assertIn("--speculative-draft-model-path: wanted a draft model's directory",
                      run("--speculative-algorithm", "STANDALONE"))
        self.assertIn("1 to 15, got 16", run("--draft", "ngram", "--draft-tokens", "16"))
        self.assertIn("--draft-tokens: wanted a drafter with it, got --draft none; --draft ngram", run("--draft-tokens", "4"))

    def test_a_file_of_prompts_gives_what_each_gives_alone(self):
        prompts = ["one", "two and more", self.PROMPT, "42"]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.writelines(json.dumps({"prompt": p}) + "\n" for p in prompts)
            f.write(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n\n")
            f.flush()
            batch = self.generate("--prompts", f.name)
            self.assertEqual([b["index"] for b in batch], list(range(5)))
            for prompt, answer in zip(prompts, batch):
                self.assertEqual(self.generate("--prompt", prompt)[0]["text"], answer["text"])
            chat = self.generate("--prompt", "hi", "--apply-chat-template")[0]
            self.assertEqual(chat["text"], batch[4]["text"])
            self.assertEqual(len(self.generate("--prompts", f.name, "-n", "2")), 2)

    def test_prompts_come_from_a_pipe(self):
        flags = ["generate", *self.flags("--json", "--quiet", "--ignore-eos", "--max-new-tokens", "4")]
        want = lathe(*flags, "--prompt", "one two")
        for more in ([], ["--prompt", "-"], ["--prompt-file", "-"]):
            self.assertEqual(lathe(*flags, *more, stdin="one two").stdout, want.stdout, more)
        piped = lathe(*flags, "--prompts", "-", stdin='{"prompt": "one two"}\n')
        self.assertEqual(piped.stdout, want.stdout)

    def test_a_bad_line_of_prompts_fails_alone(self):
        lines = ['{"prompt": "one"}', "{", '{"prompt": ["x"]}', '{"messages": [{"role": 3}]}',
                 json.dumps({"prompt": "word " * self.context}), '{"prompt": [5, 99999999]}', '{"prompt": "two"}']
        flags = ["generate", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "4", "--prompts", "-")]
        result = lathe(*flags, stdin="\n".join(lines))
        self.assertEqual(result.returncode, 1, result.stderr)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([a["index"] for a in answers], list(range(len(lines))))
        bad = [i for i, a in enumerate(answers) if "error" in a]
        self.assertIn("stdin:2", answers[1]["error"])
        self.assertIn("stdin:3: wanted token ids", answers[2]["error"])
        self.assertIn(str(self.context), answers[4]["error"])
        self.assertIn("prompt[1]", answers[5]["error"])
        self.assertEqual([i for i in bad if i != 3], [1, 2, 4, 5])
        self.assertEqual(len(result.stderr.splitlines()), len(bad))
        for i, text in ((0, "one"), (6, "two")):
            self.assertEqual(self.generate("--prompt", text)[0]["tokens"][:4], answers[i]["tokens"])
        none = lathe(*flags, stdin="{\n")
        self.assertEqual(none.returncode, 2)
        self.assertIn("stdin:1", json.loads(none.stdout)["error"])

    def test_token_ids_go_in_and_out(self):
        ids = lathe("tokenize", "--model", str(self.model), "one, two").stdout.split()
        by_ids = self.generate("--prompt-ids", ",".join(ids))
        self.assertEqual(by_ids, self.generate("--prompt", "one, two"))
        self.assertEqual(len(by_ids[0]["tokens"]), by_ids[0]["completion_tokens"])
        with_logprobs = self.generate("--prompt", "one, two", "--logprobs", "3")[0]
        self.assertEqual(with_logprobs["text"], by_ids[0]["text"])
        rows = with_logprobs["logprobs"]
        self.assertEqual([r["token"] for r in rows], with_logprobs["tokens"])
        for r in rows:  # greedy: the likeliest is the one that was taken
            self.assertEqual(len(r["top"]), 3)
            self.assertEqual((r["top"][0]["token"], r["top"][0]["logprob"]), (r["token"], r["logprob"]))
            self.assertLessEqual(sum(math.exp(t["logprob"]) for t in r["top"]), 1 + 1e-6)
        self.assertIn("--json", self.refused("generate", *self.flags("--prompt", "x", "--logprobs", "3")))

    def test_tokenize(self):
        run = lambda *a, **k: lathe("tokenize", "--model", str(self.model), *a, **k)
        text = "gr\u00fc\u00dfe, 12 \u6f22\u5b57"
        ids = run(text).stdout.split()
        self.assertEqual(run("--decode", ",".join(ids)).stdout, text + "\n")
        self.assertEqual(run(stdin=text).stdout.split(), ids)
        self.assertEqual(run("-", stdin=text).stdout.split(), ids)
        data = json.loads(run("--json", text).stdout)
        self.assertEqual((data["tokens"], data["text"]), ([int(i) for i in ids], text))
        self.assertEqual(len(data["pieces"]), len(ids))
        self.assertIn("--decode[1]", self.refused("tokenize", "--model", str(self.model), "--decode", "1,99999999"))

    def test_seeds_and_stops(self):
        warm = ["--prompt", "x", "--temperature", "1", "--seed"]
        self.assertEqual(self.generate(*warm, "3"), self.generate(*warm, "3"))
        self.assertNotEqual(self.generate(*warm, "3")[0]["text"], self.generate(*warm, "4")[0]["text"])
        text = self.generate("--prompt", self.PROMPT)[0]["text"]
        stop = text[len(text) // 2:][:3]
        stopped = self.generate("--prompt", self.PROMPT, "--stop", stop)[0]
        self.assertEqual(stopped["text"], text[:text.index(stop)])
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_bad_input_is_one_message(self):
        run = lambda *a: self.refused("generate", *self.flags(*a))
        self.assertIn("--prompt", run())
        self.assertIn("2 of them", run("--prompt", "a", "--prompt-file", "b"))
        self.assertIn("at least one token", run("--prompt", ""))
        self.assertIn("No such file", run("--prompt-file", "/no/such/file"))
        self.assertIn("--logit-bias", run("--prompt", "a", "--logit-bias", "x"))
        self.assertIn("temperature", run("--prompt", "a", "--temperature", "-1"))
        long = run("--prompt", "word " * (self.context + 1), "--max-new-tokens", "4")
        self.assertIn(str(self.context), long)
        self.assertIn(str(self.context), run("--prompt", "a", "--context-length", "9999999"))
        self.assertIn("--config", self.refused("generate", "--model", str(self.model), "--config", "c", "--prompt", "a"))
        self.assertIn("--device", run("--prompt", "a", "--device", "sm90"))

    def test_a_pair_that_does_not_fit_is_refused_with_reasons(self):
        result = lathe("generate", *self.flags("--prompt", "a", "--kv-layout", "mla_fp8"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("refused", result.stderr)
        self.assertEqual(result.stdout, "")

    def test_bad_folders(self):
        run = lambda folder, *a: self.refused("generate", "--model", str(folder), "--prompt", "a", *a)
        self.assertIn("/no/such/folder", run("/no/such/folder"))
        self.assertIn("safetensors", run(self.model))
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(self.model, folder, dirs_exist_ok=True)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"architectures": ["MambaForCausalLM"]}))
            self.assertIn("Qwen3ForCausalLM", run(folder, "--load-format", "dummy"))
            (folder / "config.json").write_text(json.dumps(config))
            source = checkpoint("qwen3")
            weights = next(source.glob("*.safetensors")).read_bytes()
            (folder / "model.safetensors").write_bytes(weights[:-100])
            self.assertIn("model.safetensors", run(folder))
            (folder / "model.safetensors").write_bytes(weights)
            self.assertIn("model.embed_tokens.weight", run(folder))  # of another vocabulary
            tokenizer = json.loads((folder / "tokenizer.json").read_text())
            tokenizer["model"]["type"] = "WordLevel"
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
            self.assertIn("WordLevel", run(folder))
            (folder / "tokenizer.json").write_text("{")
            self.assertIn("tokenizer", run(folder))


class Chat(ModelCommand):
    def chat(self, *lines: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
        return lathe("chat", *self.flags("--max-new-tokens", "8", "--ignore-eos", *flags),
                     stdin="".join(line + "\n" for line in lines))

    def test_turns_and_commands(self):
        result = self.chat("hello", "/stats", "/plan", "again", "/reset", "hello", "/what")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("tokens/s", result.stdout)
        self.assertIn("gqa_bf16", result.stdout)
        self.assertIn("/reset", result.stdout)
        self.assertNotIn("drafts", result.stdout)
        self.assertRegex(self.chat("hello", "/stats", flags=("--draft", "ngram")).stdout, r"\ndrafts +(none|[0-9.]+)")
        first = self.chat("hello").stdout
        self.assertTrue(result.stdout.startswith(first))
        # After /reset the conversation is as at the start.
        self.assertEqual(result.stdout.count(first), 2)

    def test_a_turn_beyond_the_context_says_so_and_the_chat_goes_on(self):
        result = self.chat("word " * self.context, "hello")
        self.assertEqual(result.returncode, 0)
        self.assertIn(str(self.context), result.stderr)
        self.assertEqual(result.stdout, self.chat("hello").stdout)

    def test_a_bad_template_names_its_line(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(self.model, folder, dirs_exist_ok=True)
            (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "a\n{% nonsense %}"}))
            text = self.refused("chat", *self.flags(model=folder))
            self.assertIn("line 2", text)
            self.assertIn("nonsense", text)


    def test_a_conversation_is_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "talk.json"
            whole = self.chat("hello", f"/save {file}", "again").stdout
            saved = json.loads(file.read_text())
            self.assertEqual([m["role"] for m in saved], ["user", "assistant"])
            self.assertEqual(saved[0]["content"], "hello")
            resumed = self.chat(f"/load {file}", "again").stdout
            self.assertTrue(whole.endswith(resumed.split("\n", 1)[1]), (whole, resumed))
            file.write_text('[{"role": "user"}]')
            broken = self.chat("hello", f"/load {file}", "again")
            self.assertRegex(broken.stderr, r"lathe: .*talk.json: wanted \[\{.role.")
            self.assertEqual(broken.stdout, self.chat("hello", "again").stdout)
            self.assertIn("/no/file", self.chat("/load /no/file", "/save /no/file").stderr)

    def test_several_lines_are_one_message(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "talk.json"
            self.chat("one\\", "two", '"""', "three", "", "four\\", '"""', f"/save {file}")
            said = [m["content"] for m in json.loads(file.read_text()) if m["role"] == "user"]
            self.assertEqual(said, ["one\ntwo", "three\n\nfour\\\n"])

    def test_an_answer_has_a_limit(self):
        stats = self.chat("/stats").stdout
        self.assertIn("at most 8 tokens (--max-new-tokens)", stats)
        result = lathe("chat", *self.flags("--ignore-eos"), stdin="/stats\n")
        self.assertIn("at most 2048 tokens (--max-new-tokens, the default)", result.stdout)


class Terminal:
    """A command on a pseudo-terminal of so many columns, in a C locale."""

    def __init__(self, *args: str, columns: int = 80):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(LC_ALL="C", TERM="xterm")
            os.environ.pop("LC_CTYPE", None)
            os.execv(LATHE, [LATHE, *args])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.seen = b""

    def wait(self, text: str) -> str:
        """What came up to and with `text`, which is then forgotten."""
        wanted = text.encode()
        while wanted not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 60)
            if not ready:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.fd, 65536)
            except OSError as error:
                raise AssertionError(f"no {text!r} in {self.seen!r}") from error
        at = self.seen.index(wanted) + len(wanted)
        out, self.seen = self.seen[:at], self.seen[at:]
        return out.decode("utf-8", "replace").replace("\r", "")

    def type(self, text: str):
        os.write(self.fd, text.encode())

    def exit_code(self) -> int:
        while True:  # so that nothing it writes waits for a reader
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code


class ChatOnATerminal(ModelCommand):
    def start(self, *more: str, columns: int = 80) -> Terminal:
        t = Terminal("chat", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "40", "--threads", "1",
                                         *more), columns=columns)
        t.wait("lists the commands.")
        t.wait("> ")
        return t

    def test_text_beyond_ascii_and_control_c(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "talk.json"
            t = self.start()
            t.type("not this")
            t.wait("this")
            t.type("\x03")
            t.wait("leaves)")
            t.wait("> ")
            t.type("gr\u00fc\u00dfe, \u6f22\u5b57\n")
            t.wait("\n")
            t.wait("> ")
            t.type(f"/save {file}\n")
            t.wait("2 messages")
            t.wait("> ")
            # Twice with something between is not twice.
            t.type("\x03")
            t.wait("leaves)")
            t.wait("> ")
            t.type("/stats\n")
            t.wait("prefix cache")
            t.wait("> ")
            t.type("\x03")
            t.wait("leaves)")
            t.wait("> ")
            t.type("\x03")
            self.assertEqual(t.exit_code(), 0)
            self.assertEqual(json.loads(file.read_text())[0]["content"], "gr\u00fc\u00dfe, \u6f22\u5b57")

    def test_lines_break_at_words_and_long_prompts_show_progress(self):
        prompt = "word " * 60
        plain = lathe("chat", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "40"),
                      stdin=prompt + "\n").stdout
        t = self.start("--chunked-prefill-size", "16", columns=30)
        t.type(prompt + "\n")
        t.wait("reading the prompt   16 of ")
        t.wait("\x1b[K")
        answer = t.wait("> ").removesuffix("> ")
        t.type("/exit\n")
        self.assertEqual(t.exit_code(), 0)
        drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", answer)
        self.assertGreater(drawn.count("\n"), plain.count("\n"))
        squeezed = [re.sub(r"\s", "", text) for text in (drawn, plain)]
        self.assertEqual(squeezed[0], squeezed[1])
        for line in drawn.split("\n"):
            self.assertTrue(len(line) <= 30 or " " not in line.strip(), line)


class InspectAndBench(ModelCommand):
    def test_inspect(self):
        result = lathe("inspect", str(DATA / "models/deepseek_v3_fp8"), "--json")
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
        self.assertEqual(lathe("inspect", str(DATA / "models/llama")).returncode, 0)
        self.assertIn("config.json", self.refused("inspect", "/no/such/folder"))

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
        for wrong, word in (("max_positions=3", "a key that is read for this model"), ("architectures=[]", "what the checkpoint is"),
                            ("hidden_act=silu", "a text needs double quotes"), ("rope_theta", "KEY=JSON"),
                            ("rope_theta=true", "config.json: rope_theta: wanted a finite number")):
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
        self.all_refuse("1 unexpected: model.layers.0.mlp.up_proj.weight_scale")
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
