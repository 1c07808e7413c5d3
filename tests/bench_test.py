#!/usr/bin/env python3
"""What the benches refuse: flags that nothing would follow, and work that the model or the machine cannot do."""

import http.server
import json
import os
import pathlib
import re
import resource
import socket
import subprocess
import tempfile
import threading
import unittest

from model_command_util import DATA, LATHE, ModelCommand, lathe

ROOT = pathlib.Path(__file__).parent.parent


class BenchEngine(ModelCommand):
    def engine(self, *args: str):
        return lathe("bench", "engine", "--load-format", "dummy", "--config", str(self.model / "config.json"), "--device", "cpu", "-r", "1", *args)

    def test_a_test_beyond_the_context_is_refused_before_weights_are_read(self):
        context = self.context
        for args, flag, offered, way_out in (
                (["-p", str(context), "-n", "0"], "--n-prompt", f"pp{context} at depth 0: {context + 1}", f"at most {context - 1} tokens at that depth"),
                (["-p", "0", "-n", str(context)], "--n-gen", f"tg{context} at depth 0: {context + 2}", f"at most {context - 2} tokens at that depth"),
                (["-p", "8", "-n", "8", "-d", str(context - 9)], "--n-gen, --n-depth", f"tg8 at depth {context - 9}: {context + 1}",
                 "at most 7 tokens at that depth"),
                (["--tests", f"pp8@{context + 9}"], "--tests", f"pp8 at depth {context + 9}: {context + 18}", "a smaller depth"),
                (["--context-length", "64", "-p", "63,64", "-n", "0"], "--n-prompt", "pp64 at depth 0: 65", "--context-length 65")):
            result = self.engine(*args)  # not --quiet: a line of loaded weights would show
            wanted = f"tests within the context of {64 if '--context-length' in args else context} tokens"
            self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"lathe: {flag}: wanted {wanted}, got {offered}; {way_out}\n"))
        for args in (["-p", "55", "-n", "54", "-d", "8"], ["--tests", "pp63,tg62"]):  # just within
            result = self.engine("--context-length", "64", *args, "--quiet")
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_flags_of_drafts_need_a_test_of_decode(self):
        for flag, *more in (["--draft", "ngram"], ["--draft-acceptance", "0.5", "--draft", "none"], ["--draft-tokens", "2"],
                            ["--speculative-draft-model-path", str(DATA / "models/qwen3"), "--speculative-algorithm", "STANDALONE"]):
            for tests, offered in ((["-n", "0"], "--n-gen 0"), (["--tests", "pp8,pp4@4"], "--tests pp8,pp4@4")):
                result = self.engine(flag, *more, *tests)
                self.assertEqual((result.returncode, result.stderr), (2, f"lathe: {flag}: wanted a test of decode with it, got {offered}; leave it out\n"))
        result = self.engine("--draft-acceptance", "0.5", "-p", "8", "-n", "4")
        self.assertEqual((result.returncode, result.stderr),
                         (2, "lathe: --draft-acceptance: wanted a drafter with it, got --draft none; --draft ngram, mtp or DIR\n"))
        result = self.engine("--draft", "ngram", "--tests", "pp8,tg4", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_flags_without_an_effect(self):
        for bench in ("engine", "drafts"):
            result = lathe("bench", bench, "--model", str(self.model), "--random-seed", "3")
            self.assertEqual((result.returncode, result.stderr),
                             (2, "lathe: --random-seed: wanted answers that are sampled with it, got a bench of greedy ones; leave it out\n"))
        for command in (["bench", "engine"], ["generate"], ["chat"], ["serve"]):
            result = lathe(*command, "--explain", "--quiet")
            self.assertEqual(result.returncode, 2)
            self.assertRegex(result.stderr, r"^lathe: --(quiet: wanted no --explain|explain: wanted no --quiet) with it, got both; ")

    def test_flags_of_prefixes_need_a_test_that_has_them(self):
        for args, said in ((["--shared-prefix-tokens", "64", "-d", "64"],
                            "--shared-prefix-tokens: wanted a test of 2 requests or more, which share them, got 1 request in every test; --batch 2"),
                           (["--shared-prefix-tokens", "64", "--tests", "tg4@64x2", "--disable-radix-cache"],
                            "--shared-prefix-tokens: wanted a prefix cache with it, got --disable-radix-cache; leave one of them out"),
                           (["-d", "8", "--no-prefix-cache"],
                            "--disable-radix-cache: wanted prefill at depth 0, as the cache keeps no tokens, got pp512@8; leave it out")):
            result = self.engine(*args)
            self.assertEqual((result.returncode, result.stderr), (2, f"lathe: {said}\n"))


class LoadingServer(http.server.ThreadingHTTPServer):
    """Has a model after `loading` questions to /health; its answers are one token."""

    def __init__(self, loading: int, status: int = 503):
        super().__init__(("127.0.0.1", 0), LoadingHandler)
        self.loading, self.status, self.paths = loading, status, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *args):
        self.shutdown()
        super().__exit__(*args)


class LoadingHandler(http.server.BaseHTTPRequestHandler):
    def answer(self, status: int, body: str):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.server.loading > 0:
            self.server.loading -= self.path == "/health"
            return self.answer(self.server.status, "loading")
        return self.answer(200, json.dumps({"data": [{"id": "m"}]})) if self.path == "/v1/models" else self.answer(404, "")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        event = {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
        self.answer(200, f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")

    def log_message(self, *args):
        pass


class BenchServe(unittest.TestCase):
    def serve(self, url: str, *args: str):
        return lathe("bench", "serve", "--base-url", url, "--num-prompts", "2", "--random-input-len", "4", *args)

    def test_waits_for_a_server_that_loads(self):
        for status in (503, 502):
            with LoadingServer(2, status) as server:
                url = f"http://127.0.0.1:{server.server_port}"
                result = self.serve(url, "--json")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(json.loads(result.stdout)["completed"], 2)
                self.assertEqual(server.paths, ["/health"] * 3 + ["/v1/models"])
                self.assertEqual(result.stderr.split("\n")[0], f"waiting at most 600 s for {url}: HTTP {status}: loading")

    def test_says_that_a_server_is_not_ready(self):
        with LoadingServer(1000) as server, socket.socket() as none:
            none.bind(("127.0.0.1", 0))  # and does not listen
            for port, got in ((server.server_port, "HTTP 503: loading"), (none.getsockname()[1], "Connection refused")):
                url = f"http://127.0.0.1:{port}"
                result = self.serve(url, "--ready-check-timeout-sec", "1")
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertEqual(result.stderr.splitlines(), [
                    f"waiting at most 1 s for {url}: {got}",
                    f"lathe: --ready-check-timeout-sec: wanted a server that is ready at {url} within 1 s, got {got}; more seconds, or another --base-url"])
                result = self.serve(url, "--ready-check-timeout-sec", "0")
                self.assertEqual((result.returncode, result.stderr), (2, f"lathe: --base-url: wanted an answer to /v1/models, got {got}\n"))

    def test_flags_that_nothing_would_follow(self):
        for args, said in ((["--request-rate", "inf", "--burstiness", "2"],
                            "--burstiness: wanted requests a second with it, got --request-rate inf; --request-rate 10, or leave it out"),
                           (["--dataset-name", "tasks", "--seed", "3"],
                            "--seed: wanted --request-rate or random prompts with it, which it chooses, got --dataset-name tasks, all at once; leave it out"),
                           (["--num-warmups", "3"], "--num-warmups: wanted at most --num-prompts, 2: they are the first of them, got 3"),
                           *(([flag, ""], f"{flag}: wanted a text, got an empty one; leave the flag out; --help lists the flags")
                             for flag in ("--base-url", "--endpoint", "--model", "--api-key", "--dataset-path", "--task-dir", "--tokenizer",
                                          "--extra-body", "--goodput", "--svg"))):
            result = lathe("bench", "serve", "--num-prompts", "2", *args)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"lathe: {said}\n"))

    def test_flags_of_random_tokens_need_a_line_that_has_some(self):
        with LoadingServer(0) as server, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            url = f"http://127.0.0.1:{server.server_port}"
            file.write('{"prompt": "a"}\n')
            file.flush()
            custom = ["--dataset-name", "custom", "--dataset-path", file.name]
            flags = (["--random-prefix-len", "4"], ["--vocab-size", "500"], ["--tokenizer", str(ROOT / "models/tiny-gqa")])
            for flag in flags:
                result = lathe("bench", "serve", "--base-url", url, *custom, *flag)
                self.assertEqual((result.returncode, result.stderr),
                                 (2, f"lathe: {flag[0]}: wanted a line without a prompt, for random tokens, got prompts in all lines of {file.name}; "
                                     "leave it out\n"))
            file.write('{"input_length": 4}\n')
            file.flush()
            for flag in flags:
                result = lathe("bench", "serve", "--base-url", url, *custom, "--num-prompts", "2", *flag)
                self.assertEqual(result.returncode, 0, result.stderr)


class Memory(unittest.TestCase):
    def test_what_the_machine_has_no_memory_for_is_refused_before_it_is_allocated(self):
        gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        with LoadingServer(0) as server, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"prompt": "a"}\n{"input_length": 9000000000000000000}\n')
            file.flush()
            serve = ["serve", "--base-url", f"http://127.0.0.1:{server.server_port}"]
            for args, flag, offered, needed in (
                    (["exchange", "--device", "cpu", "--tp", "8", "--rows", "8,65536", "--cols", "16384", "--repeats", "1"], "--rows",
                     "3 arrays of 65536 rows of 16384 columns on each of 8 ranks: 96.0 GiB; fewer --rows, --cols or --tp", 96),
                    (["codec", "--mebibytes", "65536", "--repeats", "1"], "--mebibytes", "twice 65536: 128.0 GiB; fewer", 128),
                    (["sampling", "--vocab", "16777216", "--rows", "1024"], "--rows, --vocab", "1024 rows of 16777216 logits: 64.0 GiB; fewer of either", 64),
                    ([*serve, "--num-prompts", "10000000", "--random-input-len", "16000000"], "--num-prompts",
                     r"10000000 prompts of 160000000000000 tokens in all: 582.1 TiB; fewer or shorter ones", 1 << 19),
                    ([*serve, "--num-prompts", "3", "--dataset-name", "custom", "--dataset-path", file.name, "--random-prefix-len", "8"], "--num-prompts",
                     r"3 prompts of 9000000000000000000 tokens in all: 8185452.3 TiB; fewer or shorter ones", 1 << 32)):
                if gib > needed:
                    continue
                result = lathe("bench", *args)
                self.assertEqual((result.returncode, result.stdout), (2, ""), args)
                self.assertRegex(result.stderr, rf"^lathe: {flag}: wanted at most the machine's [\d.]+ [MGT]iB, got {re.escape(offered)}\n$")

    def test_a_rank_without_memory_ends_in_one_line(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        run = lambda *args: subprocess.run([LATHE, *args], capture_output=True, text=True, timeout=120, preexec_fn=limit)
        if run("layouts").returncode != 0:
            return  # a build whose own memory, such as a sanitiser's, does not fit
        result = run("bench", "exchange", "--device", "cpu", "--tp", "2", "--rows", "65536", "--cols", "2048", "--repeats", "1")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertRegex(result.stderr, r"^lathe: host memory: wanted [^\n]*, got [^\n]*\n$")

    def test_threads_of_a_gpu(self):
        result = lathe("bench", "sampling", "--device", "cuda", "--threads", "2")
        self.assertEqual((result.returncode, result.stderr), (2, "lathe: --threads: wanted --device cpu with it, got --device cuda; leave it out\n"))


class BenchServer(unittest.TestCase):
    def test_flags_of_measurements_that_do_not_run(self):
        for args, said in ((["--only", "idle,ends", "--churn", "5"], "--churn: wanted --only churn with it, got --only idle,ends; leave it out"),
                           (["--only", "churn", "--peer", "x"], "--peer: wanted --only peer with it, got --only churn; leave it out"),
                           (["--only", "idle,peer"], "--peer: wanted a command, for --only peer, got none; --peer tools/fastapi_server.py"),
                           (["--peer", ""], "--peer: wanted a text, got an empty one; leave the flag out; --help lists the flags")):
            result = lathe("bench", "server", *args)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"lathe: {said}\n"))
        for flag in (["--churn", "5"], ["--peer", "x"]):
            result = lathe("bench", "server", "--count-tokens", "4", *flag)
            self.assertEqual(result.returncode, 2)
            self.assertRegex(result.stderr, rf"^lathe: (--count-tokens: wanted no {flag[0]}|{flag[0]}: wanted no --count-tokens) with it, got both; ")


if __name__ == "__main__":
    unittest.main()
