#!/usr/bin/env python3
"""Runs generate as a user does."""

import json
import math
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from generated_checkpoint import checkpoint
from model_command_util import LATHE, ModelCommand, lathe


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
        self.assertIn("--max-new-tokens: wanted 1 or more, got 0", self.refused("chat", *self.flags("--max-new-tokens", "0")))
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
        self.assertRegex(run("--draft", "mtp"), r"--draft: wanted a model whose draft layer runs: .*, got \w+, whose configuration has no draft layer;")
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
                 json.dumps({"prompt": "word " * self.context}), '{"prompt": [5, 99999999]}', '{"prompt": "two"}',
                 '{"prompt": "a", "messages": []}', '{"messages": [{"role": "user", "content": "b"}], "prompt": "a"}']
        flags = ["generate", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "4", "--prompts", "-")]
        result = lathe(*flags, stdin="\n".join(lines))
        self.assertEqual(result.returncode, 1, result.stderr)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([a["index"] for a in answers], list(range(len(lines))))
        bad = [i for i, a in enumerate(answers) if "error" in a]
        self.assertRegex(answers[1]["error"], "^stdin:2: wanted .*, got the end after byte 1$")
        self.assertIn("stdin:3: wanted token ids", answers[2]["error"])
        self.assertIn(str(self.context), answers[4]["error"])
        self.assertRegex(answers[5]["error"], r"^stdin:6: prompt\[1\]: wanted")
        for i in (7, 8):
            self.assertRegex(answers[i]["error"], rf"stdin:{i + 1}: wanted .*, got both prompt and messages")
        self.assertEqual([i for i in bad if i != 3], [1, 2, 4, 5, 7, 8])
        self.assertEqual(len(result.stderr.splitlines()), len(bad))
        for i, text in ((0, "one"), (6, "two")):
            self.assertEqual(self.generate("--prompt", text)[0]["tokens"][:4], answers[i]["tokens"])
        none = lathe(*flags, stdin="{\n")
        self.assertEqual(none.returncode, 2)
        self.assertIn("stdin:1", json.loads(none.stdout)["error"])

    def test_messages_of_lines_are_read_as_the_server_reads_them(self):
        """The lines and their answers are those of /v1/chat/completions: 400, or the same prompt."""
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
        chat = lambda *messages, **more: {"messages": list(messages), **more}
        user = {"role": "user", "content": "b\nc"}
        parts = {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}
        good = [chat(user), chat(parts), chat(user, prompt=None), {"prompt": [5, 6.0], "messages": None}, {"prompt": [5, 6]}]
        bad = [(chat({"role": "x", "content": "secret"}), r"messages\[0\].role: wanted system, developer, user, assistant or tool, got .x.$"),
               (chat(), r"messages: wanted a list of messages, at least one, got \[\]$"),
               ({"messages": "hi"}, r"messages: wanted a list of messages"),
               (chat("hi"), r"messages\[0\]: wanted a message, got"),
               (chat({"role": "user"}), r"messages\[0\].content: wanted text, got nothing$"),
               (chat({"role": "user", "content": None}), r"messages\[0\].content: wanted text, got nothing$"),
               (chat({"role": "user", "content": [{"type": "image_url"}]}), r"messages\[0\].content\[0\].type: wanted .text., got .image_url.$"),
               (chat(user, {"role": "assistant", "tool_calls": [call]}), r"messages\[1\].tool_calls\[0\].function.arguments: wanted a JSON object"),
               (chat(user, {"role": "tool", "content": "1", "tool_call_id": "z"}), r"messages\[1\].tool_call_id: wanted the id of a call"),
               ({"prompt": []}, r"wanted at least one token, got \[\]$"), ({"prompt": ""}, r"wanted at least one token, got ..$"),
               ({"prompt": [5, 1.5]}, "wanted token ids, got 1.5$"), ({"prompt": None}, "got none of them$"),
               ('{"prompt": "a"} b', "got something else at byte 17 of 17$"), ("b", "got no JSON object$"),
               ('{"prompt": "a", "prompt": "b"}', "got .prompt. twice$")]
        lines = [line if isinstance(line, str) else json.dumps(line) for line in good + [line for line, _ in bad]]
        result = lathe("generate", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "3", "--prompts", "-"), stdin="\n".join(lines))
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual((result.returncode, len(answers)), (1, len(lines)), result.stderr)
        for i, (line, words) in enumerate(bad, len(good)):
            self.assertRegex(answers[i].get("error", "an answer"), rf"^stdin:{i + 1}: ({words}|.*{words})", line)
        alone = self.generate("--prompt", user["content"], "--apply-chat-template")[0]
        self.assertEqual((answers[0]["tokens"], answers[0]["prompt_tokens"]), (alone["tokens"][:3], alone["prompt_tokens"]))
        for i, as_in in ((1, 0), (2, 0), (3, 4)):
            self.assertEqual((answers[i]["tokens"], answers[i]["prompt_tokens"]), (answers[as_in]["tokens"], answers[as_in]["prompt_tokens"]), lines[i])

    def test_members_of_lines_that_are_not_read_are_named_once(self):
        lines = "\n".join(json.dumps({"prompt": "a", "zzz": 1, "temperature": t}) for t in (0, 2))
        flags = ["generate", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "2", "--prompts", "-")]
        result = lathe(*flags, stdin=lines)
        self.assertEqual((result.returncode, len(result.stdout.splitlines())), (0, 2), result.stderr)
        self.assertEqual(result.stderr, 'lathe: --prompts: members that are not read: "zzz", "temperature"; flags set sampling\n')

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
        self.assertIn("lathe: text: wanted one of TEXT, --file FILE, --decode IDS, or text on stdin, got none", run(stdin="").stderr)
        self.assertIn("--decode[1]", self.refused("tokenize", "--model", str(self.model), "--decode", "1,99999999"))
        self.assertIn("; --file names it", self.refused("tokenize", "--model", str(self.model), "--file", "/no/such/file"))

    def test_seeds_and_stops(self):
        warm = ["--prompt", "x", "--temperature", "1", "--seed"]
        self.assertEqual(self.generate(*warm, "3"), self.generate(*warm, "3"))
        self.assertNotEqual(self.generate(*warm, "3")[0]["text"], self.generate(*warm, "4")[0]["text"])
        text = self.generate("--prompt", self.PROMPT)[0]["text"]
        stop = text[len(text) // 2:][:3]
        stopped = self.generate("--prompt", self.PROMPT, "--stop", stop)[0]
        self.assertEqual(stopped["text"], text[:text.index(stop)])
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_generation_config_gives_min_p(self):
        """With min_p 1 only the most likely token is left, at any temperature."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(self.model, folder, dirs_exist_ok=True)
            run = lambda *a: json.loads(lathe("generate", *self.flags("--json", "--prompt", "x", "--seed", "3", "--max-new-tokens", "12",
                                                                      "--ignore-eos", *a, model=folder)).stdout)["tokens"]
            greedy = run()
            (folder / "generation_config.json").write_text('{"temperature": 1, "min_p": 1}')
            self.assertEqual(run(), greedy)
            self.assertNotEqual(run("--min-p", "0"), greedy)  # the flag has precedence

    def test_tokens_beyond_the_vocabulary_are_named_at_start(self):
        """As Gemma 3's text models have one."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(self.model, folder, dirs_exist_ok=True)
            vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
            tokenizer = json.loads((folder / "tokenizer.json").read_text())
            for far in (["<far>"], ["<far>", "<farther>"]):
                tokenizer["added_tokens"] += [{"id": vocab + len(far) - 1, "content": far[-1], "special": True, "single_word": False,
                                               "lstrip": False, "rstrip": False, "normalized": False}]
                (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
                names = f'"<far>" ({vocab})' if len(far) == 1 else f'2 tokens, "<far>" ({vocab}) to "<farther>" ({vocab + 1}),'
                warning = (f"\nwarning   the tokenizer has {names} beyond the model's vocabulary of {vocab}; "
                           "prompts with such a token are refused\n")
                run = lambda prompt: lathe("generate", *self.flags("--prompt", prompt, "--max-new-tokens", "1", model=folder))
                self.assertIn(warning, run("a").stderr)
                refused = run("a<far>")
                self.assertEqual(refused.returncode, 2)
                self.assertRegex(refused.stderr, rf"\nlathe: prompt\[\d\]: wanted .*, got {vocab}")
            self.assertNotIn("warning", lathe("generate", *self.flags("--prompt", "a", "--max-new-tokens", "1")).stderr)

    def test_bad_input_is_one_message(self):
        run = lambda *a: self.refused("generate", *self.flags(*a))
        self.assertIn("--prompt", run())
        self.assertIn("--prompts FILE.jsonl, or text on stdin, got --prompt and --prompt-file; leave out all but one", run("--prompt", "a", "--prompt-file", "b"))
        self.assertIn("got --prompt-ids and --prompts;", run("--prompt-ids", "1", "--prompts", "b"))
        self.assertIn("at least one token", run("--prompt", ""))
        self.assertIn("No such file", run("--prompt-file", "/no/such/file"))
        self.assertIn("--logit-bias", run("--prompt", "a", "--logit-bias", "x"))
        # Before the model is loaded, which prints its plan.
        self.assertRegex(run("--prompt", "a", "--temperature", "-1"), "^lathe: --temperature: wanted")
        self.assertRegex(run("--prompt", "a", "--top-p", "2"), "^lathe: --top-p: wanted")
        self.assertRegex(run("--prompt", "a", "--json", "--logprobs", "100000"), r"\nlathe: --logprobs: wanted 0 to \d+, got 100000\n$")
        for ids in ("1,,2", ",1", "1,"):
            for given in (["--prompt-ids", ids], ["--prompt-ids=" + ids]):
                self.assertIn(f"--prompt-ids: wanted a value before and after each ',', got {ids};", run(*given))
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


if __name__ == "__main__":
    unittest.main()
