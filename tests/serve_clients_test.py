#!/usr/bin/env python3
"""Models of the clients that must run unmodified: each reads answers as that client's own code does, no more kindly.

Of the benches of SGLang and vLLM, genai-perf's perf_analyzer, aiperf and lm-eval; and `lathe bench serve`. The openai and anthropic
packages run in python/tests/test_openai_client.py and test_agent_clients.py; SGLang's Rust bench and lm-eval itself in tools/try_clients.py.
"""

import http.client
import json
import pathlib
import socket
import statistics
import subprocess
import tempfile
import unittest
from xml.etree import ElementTree

from serve_util import LATHE, MESSAGES, QUESTION, ROOT, Server


def lines(server: Server, path: str, body: dict):
    """The lines of a stream as they come, those of nothing left out, as aiohttp's readers give them."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Authorization": "Bearer "})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    for line in response:
        if line.strip():
            yield line.strip().decode("utf-8")
    connection.close()


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--metrics-names", "sglang", "--metrics-names", "vllm")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_sglang_bench(self):
        models = self.server.call("GET", "/v1/models")[2]
        model = models["data"][0]["id"]
        self.assertIn("tokenizer_path", self.server.call("GET", "/get_model_info")[2])
        self.assertIsInstance(self.server.call("GET", "/get_server_info")[2], dict)
        self.assertEqual(self.server.call("POST", "/flush_cache?timeout=60")[0], 200)
        # --backend sglang: differences of cumulative texts.
        body = {"text": QUESTION, "sampling_params": {"temperature": 0.0, "max_new_tokens": 9, "ignore_eos": True}, "stream": True,
                "lora_path": None, "return_logprob": False, "logprob_start_len": -1}
        text, tokens, done = "", 0, False
        for line in lines(self.server, "/generate", body):
            chunk = line.removeprefix("data: ")
            if chunk == "[DONE]":
                done = True
                continue
            data = json.loads(chunk)
            if data["text"]:
                text = data["text"]
                tokens = data["meta_info"]["completion_tokens"]
        self.assertEqual((tokens, done, bool(text)), (9, True, True))
        # --backend sglang-oai: every line that is not [DONE] is an event with a choice.
        body = {"model": model, "prompt": QUESTION, "temperature": 0.0, "best_of": 1, "max_tokens": 9, "stream": True, "ignore_eos": True}
        parts = []
        for line in lines(self.server, "/v1/completions", body):
            chunk = line.removeprefix("data: ")
            if chunk != "[DONE]":
                parts.append(json.loads(chunk)["choices"][0]["text"])
        self.assertEqual("".join(parts), text)
        # --backend sglang-oai-chat.
        body = {"model": model, "messages": MESSAGES, "temperature": 0.0, "max_tokens": 9, "stream": True, "ignore_eos": True}
        content = ""
        for line in lines(self.server, "/v1/chat/completions", body):
            chunk = line.removeprefix("data: ")
            if chunk != "[DONE]":
                content += json.loads(chunk)["choices"][0]["delta"].get("content", "") or ""
        self.assertTrue(content)

    def test_sglang_batch_bench(self):
        prompts = [[300 + i] * 12 for i in range(4)]
        body = {"input_ids": prompts, "sampling_params": {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}, "return_logprob": False,
                "stream": True}
        seen, ended = set(), {}
        for line in lines(self.server, "/generate", body):
            self.assertTrue(line.startswith("data:"))
            if line == "data: [DONE]":
                break
            data = json.loads(line[5:].strip("\n"))
            seen.add(data["index"])
            if data["meta_info"]["finish_reason"] is not None:
                ended[data["index"]] = data["meta_info"]["finish_reason"]["type"]
        self.assertEqual((seen, ended), ({0, 1, 2, 3}, {i: "length" for i in range(4)}))
        state = self.server.call("GET", "/server_info")[2]["internal_states"][0]
        self.assertGreaterEqual(state["last_gen_throughput"], 0)
        self.assertIn("memory_usage", state)

    def test_vllm_bench(self):
        first = self.server.call("GET", "/v1/models")[2]["data"][0]
        self.assertTrue(first["id"] and first["root"])
        self.assertEqual(self.server.call("POST", "/reset_prefix_cache")[0], 200)
        ids = self.server.post("/tokenize", {"model": first["id"], "prompt": QUESTION, "add_special_tokens": False})["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"model": first["id"], "tokens": ids})["prompt"], QUESTION)
        for path, more in (("/v1/completions", {"prompt": QUESTION}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]})):
            body = {"model": first["id"], "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 7, "logprobs": None, "stream": True,
                    "stream_options": {"include_usage": True}, "ignore_eos": True, **more}
            body["max_completion_tokens" if "messages" in more else "max_tokens"] = 7
            first_chunk, usage, text = False, None, ""
            for line in lines(self.server, path, body):
                if line.startswith(":"):
                    continue
                chunk = line.removeprefix("data: ")
                if chunk == "[DONE]":
                    continue
                data = json.loads(chunk)
                if choices := data.get("choices"):
                    content = choices[0]["delta"].get("content") if "messages" in more else choices[0].get("text")
                    first_chunk = first_chunk or content is not None
                    text += content or ""
                elif data.get("usage"):
                    usage = data["usage"]["completion_tokens"]
            self.assertEqual((first_chunk, usage, bool(text)), (True, 7, True), path)

    def test_perf_analyzer(self):
        # It parses what one HTTP chunk holds, looks for the header's exact beginning, and drops what shares a chunk with [DONE].
        body = json.dumps({"model": "tiny-gqa", "messages": MESSAGES, "max_tokens": 5, "stream": True, "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            raw = b""
            while part := s.recv(65536):
                raw += part
        head, rest = raw.split(b"\r\n\r\n", 1)
        self.assertIn(b"\r\nContent-Type: text/event-stream", head)
        content, done = "", 0
        while rest:
            size, rest = rest.split(b"\r\n", 1)
            chunk, rest = rest[:int(size, 16)], rest[int(size, 16) + 2:]
            if b"[DONE]" in chunk:
                self.assertEqual(chunk, b"data: [DONE]\n\n")
                done += 1
                continue
            for event in chunk.decode().split("\n\n")[:-1]:
                data = json.loads(event.removeprefix("data: "))
                self.assertEqual(data["object"], "chat.completion.chunk")
                content += data["choices"][0]["delta"].get("content", "")
        self.assertEqual(done, 1)
        self.assertTrue(content)

    def test_aiperf(self):
        body = {"model": "tiny-gqa", "messages": MESSAGES, "max_completion_tokens": 6, "stream": True, "stream_options": {"include_usage": True}}
        objects, usage = set(), None
        for line in lines(self.server, "/v1/chat/completions", body):
            self.assertFalse(line.startswith("event:"))
            if line == "data: [DONE]":
                continue
            data = json.loads(line.removeprefix("data: "))
            objects.add(data["object"])
            usage = data.get("usage") or usage
        self.assertEqual(objects, {"chat.completion.chunk"})
        self.assertEqual(usage["completion_tokens"], 6)
        self.assertIn("# TYPE sglang:num_running_reqs gauge", self.server.call("GET", "/metrics")[2])

    def test_lm_eval_completions(self):
        # tokenizer_backend=remote, then a prompt of tokens whose context and continuation are scored.
        info = self.server.call("GET", "/tokenizer_info")[2]
        self.assertIsInstance(info["eos_token"], str)
        context = self.server.post("/tokenize", {"prompt": "Rosa has 21 apples.", "add_special_tokens": False})["tokens"]
        rest = self.server.post("/tokenize", {"prompt": " Alice has 3.", "add_special_tokens": False})["tokens"]
        body = {"model": "default", "prompt": [context + rest, context + rest[:2]], "max_tokens": 1, "logprobs": 1, "seed": 1234, "temperature": 0,
                "echo": True}
        answer = self.server.post("/v1/completions", body)
        for choice in sorted(answer["choices"], key=lambda c: c["index"]):
            values = choice["logprobs"]["token_logprobs"][len(context):-1]
            tops = choice["logprobs"]["top_logprobs"][len(context):-1]
            self.assertEqual(len(values), [len(rest), 2][choice["index"]])
            self.assertLess(sum(values), 0)
            self.assertFalse(all(value == max(top.values()) for value, top in zip(values, tops)))  # this is no greedy text

    def test_lm_eval_chat(self):
        body = {"messages": MESSAGES, "model": "default", "max_tokens": 256, "temperature": 0, "stop": ["\n\n", "</s>", "Q:", "###x"], "seed": 1234}
        answer = self.server.post("/v1/chat/completions", body)
        for choice in answer["choices"]:
            self.assertEqual(choice["index"], 0)
            self.assertTrue(choice["message"]["content"].endswith("#### 105"))

    def bench(self, *flags: str, code: int = 0, url: str = ""):
        """`lathe bench serve` against this server: its JSON, or what it prints to stderr if it fails."""
        command = [LATHE, "bench", "serve", "--base-url", url or f"http://127.0.0.1:{self.server.port}/v1", "--json", *flags]
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout) if code == 0 else result.stderr

    def test_bench_serve(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "load.svg"
            load = self.bench("--num-prompts", "12", "--random-input-len", "30", "--random-output-len", "5", "--random-prefix-len", "8",
                              "--random-prefixes", "2", "--max-concurrency", "3", "--request-rate", "1000", "--save-detailed",
                              "--goodput", "e2el:600000", "--svg", str(picture))
            ElementTree.parse(picture)
        self.assertEqual((load["completed"], load["failed"], load["model_id"]), (12, 0, "tiny-gqa"))
        self.assertEqual((load["total_input_tokens"], load["total_output_tokens"]), (12 * 38, 12 * 5))
        self.assertLessEqual(load["max_concurrent_requests"], 3)
        self.assertEqual(load["request_goodput"], load["request_throughput"])
        self.assertAlmostEqual(load["output_throughput"], 60 / load["duration"])
        firsts, wholes, gaps = load["ttfts"], load["e2els"], [g for list_ in load["itls"] for g in list_]
        # A gap is between two events; tokens that end in half a character have none of their own.
        each = [(whole - first) / 4 for whole, first in zip(wholes, firsts)]
        for name, seconds in (("ttft", firsts), ("e2el", wholes), ("itl", gaps), ("tpot", each)):
            self.assertAlmostEqual(load[f"mean_{name}_ms"], 1e3 * statistics.fmean(seconds), 6)
            self.assertAlmostEqual(load[f"std_{name}_ms"], 1e3 * statistics.pstdev(seconds), 6)
            cuts = statistics.quantiles(seconds, n=100, method="inclusive")
            for percent in (50, 90, 99):
                self.assertAlmostEqual(load[f"p{percent}_{name}_ms"], 1e3 * cuts[percent - 1], 6)

    def test_bench_serve_marks_tasks(self):
        load = self.bench("--backend", "openai-chat", "--dataset-name", "tasks", "--task", "arithmetic,copy", "--num-prompts", "16",
                          "--random-output-len", "400")
        items = []
        for task in ("arithmetic", "copy"):
            out = subprocess.run([LATHE, "eval", "--model", "models/tiny-gqa", "--task", task, "--limit", "8", "--json"], capture_output=True,
                                 text=True, cwd=ROOT, check=True).stdout
            items.append(json.loads(out)["tasks"][task]["right"])
        self.assertEqual((load["marked"], load["right"]), (16, sum(items)))

    def test_bench_serve_reads_files(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"prompt": "Rosa has", "output_tokens": 3}\n\n{"input_length": 20, "output_length": 7}\n')
            file.flush()
            load = self.bench("--dataset-name", "custom", "--dataset-path", file.name, "--num-prompts", "4", "--save-detailed")
            self.assertEqual(load["output_lens"], [3, 7, 3, 7])
            self.assertEqual(load["input_lens"][1], 20)
            file.write("3\n")
            file.flush()
            self.assertIn(":4: wanted a JSON object", self.bench("--dataset-name", "custom", "--dataset-path", file.name, code=2))
            for line, message in (('{"prompt": "a", "prompt": "b"}', ':2: wanted a JSON object, got "prompt" twice'),
                                  ('{"input_length": -1}', ':2: wanted {"prompt": TEXT')):
                file.seek(0)
                file.truncate()
                file.write("\n" + line + "\n")
                file.flush()
                self.assertIn(message, self.bench("--dataset-name", "custom", "--dataset-path", file.name, code=2))

    def test_bench_serve_says_what_is_wrong(self):
        self.assertIn("HTTP 404", self.bench("--model", "gpt", code=2))
        self.assertIn("--goodput: wanted ttft:MS", self.bench("--goodput", "ttft", code=2))
        self.assertIn("--request-rate: wanted", self.bench("--request-rate", "fast", code=2))
        self.assertIn("--tokenizer: wanted", self.bench("--backend", "openai-chat", code=2))
        self.assertIn("--base-url: wanted http://", self.bench(url="https://example.com", code=2))


if __name__ == "__main__":
    unittest.main(verbosity=1)
