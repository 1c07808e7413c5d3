#!/usr/bin/env python3
"""Puts a server under mixed load: answers that must not change, clients that leave or read slowly, hostile requests. Not part of the suite.

tests/serve_load.py build/lathe --minutes 60 --rss-limit 4096
"""

import argparse
import collections
import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time

from serve_util import ANSWER, MESSAGES, QUESTION, Server

NUMBERS = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
           "required": ["name", "n"], "additionalProperties": False}


def whole_requests() -> list:
    """Requests with one right answer: greedy, or with a seed."""
    out = [("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0})]
    for i in range(12):
        text = f"{QUESTION} Tom has {i} apples. " + "They walk home. " * (i * 3)
        out.append(("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 20 + i, "seed": i, "temperature": 0.7}))
        out.append(("/v1/completions", {"prompt": text, "max_tokens": 8 + i, "n": 1 + i % 3, "seed": i, "logprobs": i % 4}))
        out.append(("/generate", {"text": text, "sampling_params": {"max_new_tokens": 10 + i, "temperature": 0}, "return_logprob": i % 2 == 0}))
        out.append(("/v1/completions", {"prompt": text, "json_schema": NUMBERS, "max_tokens": 200, "seed": i}))
        out.append(("/v1/completions", {"prompt": text, "structured_outputs": {"choice": [f"v{k * 37 % 1009}" for k in range(1 + i * 50)]}, "seed": i}))
    return out


def hostile_requests(rng: random.Random) -> list:
    """Bodies that must get 200 or 4xx, at small cost."""
    deep = "[" * 3000 + "]" * 3000
    schema = {"type": "integer"}
    for _ in range(rng.randrange(1, 90)):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    few = [rng.randrange(2000) for _ in range(3)]
    regexes = ["(.{1,80}){1,80}", "(a?){1,2000}b(a|ab){3000}", "(a|b)*a(a|b){200}", "((a{1,999}){1,999}){1,999}", "[^x]*a(bc|[^x]){9000}", "(?=a)", "("]
    bodies = [
        {"prompt": "a", "regex": rng.choice(regexes), "max_tokens": 20},
        {"prompt": "a", "json_schema": schema, "max_tokens": 20},
        {"prompt": "a", "json_schema": {"enum": [f"{rng.randrange(10**9)}" for _ in range(rng.randrange(1, 4000))]}, "max_tokens": 20},
        {"prompt": "a", "json_schema": NUMBERS, "allowed_token_ids": few, "max_tokens": 20},
        {"prompt": "a", "structured_outputs": {"choice": ["cat", "dog"]}, "stop_token_ids": few, "bad_words": ["c", "d", "o"], "max_tokens": 20},
        {"prompt": "a", "allowed_token_ids": few, "bad_words": ["a"], "max_tokens": 20},
        {"prompt": "a", "logit_bias": {str(i): -100 for i in range(2048)}, "max_tokens": 20},
        {"prompt": " " * rng.randrange(300_000), "max_tokens": 1},
        {"prompt": "x" * rng.randrange(300_000), "truncate_prompt_tokens": 20, "max_tokens": 2},
        {"prompt": ["a"] * 300, "max_tokens": 1},
        {"prompt": "a", "n": 2048, "max_tokens": 4},
        {"prompt": "a", "stop": ["x" * 1024] * 33},
        {"prompt": "a", "unknown": [{} for _ in range(rng.randrange(50_000))], "max_tokens": 1},
        {"prompt": "a", "temperature": 1e300},
        {"prompt": list(range(rng.randrange(9000))), "max_tokens": 1},
    ]
    texts = [json.dumps(b) for b in bodies] + [deep, '{"prompt":' * 400, '{"prompt": "\\ud800"}', "{" + '"a":1,' * 100_000 + '"a":1}', ""]
    return texts


class Load:
    def __init__(self, server: Server, seed: int):
        self.server = server
        self.seed = seed
        self.known: list = []
        self.counts = collections.Counter()
        self.wrong: list = []
        self.waits: list = []  # seconds that /health took
        self.stop = threading.Event()

    def fail(self, what: str):
        self.wrong.append(what[:600])
        self.stop.set()

    def parts(self, path: str, answer: dict) -> list:
        """What must be equal in each answer to a request."""
        if path == "/generate":
            return [answer["text"], answer["output_ids"]]
        return [[c.get("text"), c.get("message"), c["finish_reason"], c["logprobs"]] for c in answer["choices"]]

    def learn(self):
        for path, body in whole_requests():
            self.known.append((path, body, self.parts(path, self.server.post(path, body))))

    def connect(self, body: str, path: str = "/v1/completions") -> socket.socket:
        s = socket.create_connection(("127.0.0.1", self.server.port), timeout=120)
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body.encode())}\r\n\r\n".encode())
        s.sendall(body.encode())
        return s

    # One turn of each kind of client.

    def whole(self, rng: random.Random):
        path, body, right = rng.choice(self.known)
        status, _, answer = self.server.call("POST", path, body)
        if status == 503:
            self.counts["overloaded"] += 1
        elif status != 200 or self.parts(path, answer) != right:
            self.fail(f"{path} {json.dumps(body)[:300]}: wanted {right}, got {status} {answer}")

    def stream(self, rng: random.Random):
        body = {"messages": MESSAGES, "temperature": 0}
        events = self.server.stream("/v1/chat/completions", body)
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events)
        if text != ANSWER:
            self.fail(f"a stream: wanted {ANSWER!r}, got {text!r}")

    def leave(self, rng: random.Random):
        """Goes away at any point of a request or of its answer."""
        body = json.dumps({"prompt": QUESTION * rng.randrange(1, 6), "max_tokens": 2000, "ignore_eos": True, "stream": rng.random() < 0.7, "n": rng.randrange(1, 5)})
        with self.connect(body) as s:
            s.settimeout(rng.choice([0.001, 0.05, 0.3, 1]))
            try:
                for _ in range(rng.randrange(6)):
                    if not s.recv(2048):
                        break
            except TimeoutError:
                pass

    def half(self, rng: random.Random):
        """Sends part of a request."""
        text = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(text[:rng.randrange(len(text))])
            time.sleep(rng.random())

    def slow(self, rng: random.Random):
        """Reads a few bytes at a time, for some seconds."""
        body = json.dumps({"prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True, "stream": True, "logprobs": 5})
        with self.connect(body) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            until = time.monotonic() + 5 * rng.random()
            while time.monotonic() < until and s.recv(16):
                time.sleep(0.02)

    def hostile(self, rng: random.Random):
        body = rng.choice(hostile_requests(rng))
        with self.connect(body) as s:
            line = s.makefile("rb").readline().decode()
        status = int(line.split()[1]) if line else 0
        self.counts[f"hostile {status}"] += 1
        if status not in (200, 400, 413, 503):
            self.fail(f"{body[:300]}: got {line!r}")

    def abort(self, rng: random.Random):
        name = f"load-{rng.getrandbits(60):x}"
        body = json.dumps({"prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True, "rid": name})
        with self.connect(body) as s:
            time.sleep(rng.random())
            self.server.call("POST", "/abort_request", {"rid": name})
            s.settimeout(60)
            s.recv(64)

    def watch(self, limit: int):
        """/health answers all the time, and memory stays below the limit."""
        while not self.stop.wait(0.5):
            start = time.monotonic()
            status = self.server.call("GET", "/health")[0]
            self.waits.append(time.monotonic() - start)
            with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as file:
                rss = next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmRSS"))
            self.counts["most MiB"] = max(self.counts["most MiB"], rss)
            if status != 200 or rss > limit:
                self.fail(f"/health {status}, {rss} MiB of at most {limit}")

    def client(self, number: int):
        rng = random.Random(f"{self.seed} {number}")
        kinds = [self.whole] * 5 + [self.stream] * 2 + [self.leave] * 3 + [self.half, self.slow, self.hostile, self.hostile, self.hostile, self.abort]
        while not self.stop.is_set():
            kind = rng.choice(kinds)
            try:
                kind(rng)
            except (OSError, http.client.HTTPException) as error:  # closed by the server: a limit of time or bytes
                self.counts[f"{kind.__name__}: {type(error).__name__}"] += 1
                if self.server.process.poll() is not None:
                    self.fail(f"the server ended with {self.server.process.returncode}")
            except Exception as error:  # pylint: disable=broad-except
                self.fail(f"{kind.__name__}: {error!r}")
            self.counts[kind.__name__] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--model", default="models/tiny-gqa")
    parser.add_argument("--rss-limit", type=int, default=2048, help="MiB of memory that the server may have")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that an answer may take, more with sanitizers on a busy machine")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    os.environ["ASAN_OPTIONS"] = f"hard_rss_limit_mb={options.rss_limit}:" + os.environ.get("ASAN_OPTIONS", "")
    # Short chunks: a step of 2,048 rows behind 4,000 others takes minutes with sanitizers.
    with Server("--max-total-tokens", "16384", "--max-bodies-bytes", "67108864", "--chunked-prefill-size", "256",
                model=options.model) as server:
        server.timeout = options.timeout
        load = Load(server, options.seed)
        load.learn()
        threads = [threading.Thread(target=load.client, args=(i,)) for i in range(options.clients)]
        threads.append(threading.Thread(target=load.watch, args=(options.rss_limit,)))
        for t in threads:
            t.start()
        load.stop.wait(60 * options.minutes)
        load.stop.set()
        for t in threads:
            t.join()
        for name, count in sorted(load.counts.items()):
            print(f"{count:8} {name}")
        waits = sorted(load.waits) or [0]
        print(f"/health: median {waits[len(waits) // 2] * 1e3:.1f} ms, most {waits[-1] * 1e3:.1f} ms")
        if not load.wrong:
            server.is_alive()
            server.process.send_signal(signal.SIGTERM)
            if (code := server.process.wait(60)) != 0:
                load.wrong.append(f"exit code {code} after SIGTERM")
        for line in load.wrong:
            print("WRONG", line)
        print("".join(server.log[-40:]) if load.wrong else "nothing lost, nothing wrong")
    return 1 if load.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
