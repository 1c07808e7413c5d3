#!/usr/bin/env python3
"""What lathe serve refuses, and what it does on HTTP's side: routes, raw requests, clients that leave, metrics."""

import contextlib
import http.client
import json
import re
import socket
import threading
import unittest

from serve_util import ANSWER, MESSAGES, QUESTION, ServeCase


class Requests(ServeCase):
    def test_bad_values_are_named(self):
        chat = {"messages": MESSAGES}
        for field, values in {
                "temperature": [-1, "1", True, []], "top_p": [0, 1.5, -1], "top_k": [-2, 1.5], "min_p": [2],
                "frequency_penalty": [3], "presence_penalty": [-3], "repetition_penalty": [0, 3], "n": [0, 129, 1.5],
                "max_tokens": [0, -1, 2**63, 1.5, "8"], "seed": [2**64, 0.5], "stream": [1, "true"],
                "logit_bias": [[], {"-1": 1}, {"x": 1}, {"1": 101}], "top_logprobs": [21, -1]}.items():
            for value in values:
                message = self.refused("/v1/chat/completions", {**chat, field: value}, f"{field}.1" if value == {"1": 101} else field)
                self.assertIn(": wanted ", message)
        self.refused("/v1/chat/completions", {**chat, "logit_bias": {"999999": 1}}, "logit_bias.999999")
        self.refused("/v1/chat/completions", {**chat, "stop": ""}, "stop")
        self.refused("/v1/chat/completions", {**chat, "stop": ["a", ""]}, "stop[1]")
        self.refused("/v1/chat/completions", {**chat, "stop": ["a"] * 33}, "stop")
        self.refused("/v1/chat/completions", {**chat, "top_logprobs": 2}, "top_logprobs")
        self.refused("/v1/chat/completions", {**chat, "stream_options": {}}, "stream_options")
        self.refused("/v1/chat/completions", {**chat, "max_tokens": 10**9}, "max_tokens", "context_length_exceeded")
        for more in ({}, {"max_tokens": 2}):
            self.refused("/v1/chat/completions", {**chat, **more, "max_completion_tokens": 10**9}, "max_completion_tokens",
                         "context_length_exceeded")
        for n, best_of in ((1, 2), (2, 1)):
            message = self.refused("/v1/completions", {"prompt": "a", "n": n, "best_of": best_of}, "best_of")
            self.assertIn(f"wanted n, {n}, got {best_of}", message)
        self.assertEqual(len(self.server.post("/v1/completions", {"prompt": "a", "n": 2, "best_of": 2, "max_tokens": 1})["choices"]), 2)
        self.refused("/v1/completions", {"prompt": "a", "max_tokens": 2, "min_tokens": 3}, "min_tokens")
        self.refused("/generate", {"text": "a", "sampling_params": {"top_p": 7}}, "sampling_params.top_p")
        self.refused("/generate", {"text": "a", "input_ids": [1]}, "input_ids")
        self.server.is_alive()

    def test_empty_prompts(self):
        for prompt, param in [("", "prompt"), ([], "prompt"), ([[]], "prompt[0]"), ([""], "prompt[0]"), (["a", 1], "prompt[1]"),
                              ([1, "a"], "prompt[1]"), ([999999], "prompt[0]"), ([[1], [-1]], "prompt[1][0]"), (7, "prompt")]:
            self.refused("/v1/completions", {"prompt": prompt}, param)
        self.refused("/v1/completions", {}, "prompt", "missing_field")
        self.refused("/v1/completions", {"prompt": None}, "prompt", "missing_field")
        self.refused("/v1/chat/completions", {"messages": []}, "messages")
        self.refused("/generate", {}, "text", "missing_field")

    def test_messages_are_checked(self):
        def chat(message, param, code="invalid_value"):
            self.refused("/v1/chat/completions", {"messages": [MESSAGES[0], message]}, param, code)
        chat("hello", "messages[1]")
        chat({"content": "a"}, "messages[1].role")
        chat({"role": "robot", "content": "a"}, "messages[1].role")
        chat({"role": "user"}, "messages[1].content")
        chat({"role": "user", "content": 7}, "messages[1].content")
        chat({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type")
        chat({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[1].content[0].text")
        chat({"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}]},
             "messages[1].tool_calls[0].function.arguments")
        parts = [{"type": "text", "text": part} for part in QUESTION.split(". ")]
        joined = [{"role": "user", "content": QUESTION.replace(". ", "\n")}]
        self.assertEqual(self.server.post("/tokenize", {"messages": [{"role": "user", "content": parts}]}),
                         self.server.post("/tokenize", {"messages": joined}))

    def test_the_last_message_goes_on(self):
        begun = ANSWER[:ANSWER.index(" Alice 126")]
        messages = [*MESSAGES, {"role": "assistant", "content": begun}]
        rest = self.server.post("/v1/chat/completions", {"messages": messages, "continue_final_message": True, "temperature": 0})
        self.assertEqual(begun + rest["choices"][0]["message"]["content"], ANSWER)

    def test_what_is_not_supported_is_refused(self):
        for field, value in [("functions", [{"name": "f"}]), ("priority", 3)]:
            self.refused("/v1/chat/completions", {"messages": MESSAGES, field: value}, field, "unsupported_field")
        self.refused("/generate", {"text": "a", "return_hidden_states": True}, "return_hidden_states", "unsupported_field")
        # Clients send such fields without meaning anything by them.
        self.server.post("/v1/chat/completions", {"messages": MESSAGES, "logprobs": None, "lora_path": None, "regex": None,
                                                  "response_format": {"type": "text"}, "max_tokens": 1, "user": "u", "store": False})

    def test_unknown_fields_are_told(self):
        _, headers, _ = self.server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "temprature": 1})
        self.assertEqual(headers["X-Lathe-Ignored"], "temprature")
        names = [f"f{i}" for i in range(9)]
        _, headers, _ = self.server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, **dict.fromkeys(names, 1)})
        self.assertEqual(headers["X-Lathe-Ignored"], ",".join([*names[:8], "..."]))

    def test_bodies_that_are_no_json(self):
        for body in ["", "{", "[]", "nul", '{"prompt": "a"} x', '{"prompt": NaN}', b'{"prompt": "\xff"}',
                     '{"prompt": "a", "prompt": "b"}', "[" * 100000]:
            self.refused("/v1/completions", body, None, "invalid_json")
        for end in ("\0", '\0{"a": 1}', "\0\0"):
            self.refused("/v1/completions", '{"prompt": "a", "max_tokens": 1}' + end, None, "invalid_json")
        status, _, answer = self.server.call("POST", "/v1/completions", '{"a":' * 600 + "1" + "}" * 600)
        self.assertEqual((status, answer["error"]["code"]), (400, "invalid_json"))
        self.assertTrue(answer["error"]["param"].startswith("a.a.a."), answer)
        self.assertIn("line 2, column 11", self.refused("/v1/completions", '{\n"prompt": x}', None, "invalid_json"))

    def test_routes_and_methods(self):
        self.assertEqual(self.server.call("GET", "/nothing")[2]["error"]["code"], "route_not_found")
        for path in ("//v1/models", "/V1/models", "/v1/%256dodels", "/v1"):
            self.assertEqual(self.server.call("GET", path)[0], 404, path)
        self.assertEqual(self.server.call("GET", "/v1/%6dodels")[0], 200)  # RFC 3986, 2.3: an unreserved letter
        status, headers, _ = self.server.call("GET", "/v1/chat/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        self.assertEqual(self.server.call("DELETE", "/health")[0], 405)
        self.assertEqual(self.server.call("GET", "/health/")[0], 200)
        status, headers, body = self.server.call("HEAD", "/v1/models")
        self.assertEqual((status, body), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 50)
        self.assertEqual(self.server.call("POST", "/v1/completions", "{}", {"Content-Type": "text/plain"})[0], 415)
        self.assertEqual(self.server.call("POST", "/v1/completions", "{}", {"Content-Type": "Application/JSON; charset=utf-8"})[0], 400)
        self.assertEqual(self.server.call("POST", "/v1/completions", "{}", {"Content-Encoding": "gzip"})[0], 415)

    def test_request_ids(self):
        self.assertEqual(self.server.call("GET", "/health", headers={"X-Request-Id": "abc"})[1]["X-Request-Id"], "abc")
        plain = "Az-09_.:/"
        self.assertEqual(self.server.call("GET", "/health", headers={"X-Request-Id": plain})[1]["X-Request-Id"], plain)
        for odd in ("a b", 'a"b<script>', "a;b", "a%20b", "x" * 129):
            self.assertRegex(self.server.call("GET", "/health", headers={"X-Request-Id": odd})[1]["X-Request-Id"], "^[0-9a-f]{32}$")
        # The same id many times at once is many requests.
        answers = [None] * 30
        def ask(i):
            answers[i] = self.server.call("POST", "/generate", {"input_ids": [300 + i] * 3, "rid": "same",
                                                                "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}},
                                          {"X-Request-Id": "same"})[2]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for i, answer in enumerate(answers):
            alone = self.server.post("/v1/completions", {"prompt": [300 + i] * 3, "temperature": 0, "max_tokens": 4, "ignore_eos": True})
            self.assertEqual(answer["text"], alone["choices"][0]["text"])

    def test_other_models_are_unknown(self):
        self.refused("/v1/chat/completions", {"messages": MESSAGES, "model": "gpt"}, "model", "model_not_found", 404)
        self.server.post("/v1/chat/completions", {"messages": MESSAGES, "model": "default", "max_tokens": 1})

    def test_pages_of_other_sites_are_refused(self):
        body = {"prompt": "a", "max_tokens": 1}
        own = f"http://127.0.0.1:{self.server.port}"
        for headers, status in [({"Origin": "https://evil.example"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
                                ({"Origin": "null"}, 403), ({"Host": "evil.example"}, 403), ({"Origin": own}, 200),
                                ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Host": "localhost:1"}, 200)]:
            self.assertEqual(self.server.call("POST", "/v1/completions", body, headers)[0], status, headers)

    def test_raw_http(self):
        def ask(raw: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    s.sendall(raw)
                out = b""
                with contextlib.suppress(ConnectionResetError):
                    while part := s.recv(65536):
                        out += part
                return out
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        body = b'{"prompt": "a", "max_tokens": 1}'
        close = b"Connection: close\r\n"
        sized = b"Content-Length: %d\r\n" % len(body)
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self.assertIn(b" 200 OK", ask(head + close + sized + b"\r\n" + body))
        self.assertIn(b" 200 OK", ask(head + close + b"Transfer-Encoding: chunked\r\n\r\n" + chunked))
        self.assertTrue(ask(head + close + sized + b"Expect: 100-continue\r\n\r\n" + body).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"))
        for bad in (sized + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
                    sized + b"Content-Length: 3\r\n\r\n" + body,
                    b"Content-Length : 5\r\n\r\nhello", b"Content-Length: -1\r\n\r\n", b"Content-Length: x\r\n\r\n",
                    b"Bad Name: 1\r\n\r\n"):
            answer = ask(head + bad)
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer[:60])
            self.assertIn(b"Connection: close", answer)
            self.assertEqual(answer.count(b"HTTP/1.1 400 "), 1)
        self.assertTrue(ask(b"HELLO\r\n\r\n").startswith(b"HTTP/1.1 400 "))
        self.assertTrue(ask(head + b"X: " + b"a" * 40000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 "))
        self.assertTrue(ask(head + b"A: b\r\n" * 200 + b"\r\n").startswith(b"HTTP/1.1 431 "))
        self.assertTrue(ask(head + b"Content-Length: 99999999\r\n\r\n").startswith(b"HTTP/1.1 413 "))
        streamed = body.replace(b"}", b', "stream": true}')
        old = ask(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(streamed) + streamed)
        self.assertNotIn(b"chunked", old)
        self.assertTrue(old.endswith(b"data: [DONE]\n\n"), old)
        two = ask(head + sized + b"\r\n" + body + b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + close + b"\r\n")
        self.assertEqual(two.count(b"HTTP/1.1 200 OK"), 2)
        self.assertIn(b'{"status":"ok"}', two)

    def test_done_has_a_chunk_of_its_own(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            body = b'{"prompt": "a", "max_tokens": 3, "stream": true, "ignore_eos": true}'
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                      b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            out = b""
            while part := s.recv(65536):
                out += part
        chunks = out.split(b"\r\n\r\n", 1)[1]
        parts = []
        while chunks:
            size, rest = chunks.split(b"\r\n", 1)
            parts.append(rest[:int(size, 16)])
            chunks = rest[int(size, 16) + 2:]
        self.assertEqual(parts[-2:], [b"data: [DONE]\n\n", b""])
        self.assertTrue(all(p.startswith(b"data: ") and p.endswith(b"\n\n") for p in parts[:-1]))

    def test_a_client_that_leaves_frees_its_pages(self):
        for stream in (True, False):
            before = self.server.metric("lathe_aborted_requests_total")
            body = json.dumps({"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": stream, "n": 3})
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            self.server.until(lambda: self.server.metric("lathe_num_running_reqs") > 0, "a running request")
            connection.close()
            self.server.until(lambda: self.server.metric("lathe_aborted_requests_total") == before + 1, "the abort")
            self.server.is_alive()

    def test_abort_by_name(self):
        result = []
        def ask():
            result.append(self.server.post("/generate", {"text": "a", "rid": "long", "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}}))
        thread = threading.Thread(target=ask)
        thread.start()
        self.server.until(lambda: self.server.metric("lathe_num_running_reqs") > 0, "a running request")
        self.server.post("/abort_request", {"rid": "nobody"})
        self.server.post("/abort_request", {"rid": "long"})
        thread.join()
        self.assertEqual(result[0]["meta_info"]["finish_reason"]["type"], "abort")
        self.server.is_alive()

    def test_E1_bodies_are_read_in_linear_time(self):
        objects = '{"prompt": "a", "unknown": [' + ",".join(["{}"] * 400_000) + "]}"
        names = '{"prompt": "a", "unknown": {' + ",".join(f'"{i}":0' for i in range(100_000)) + '}, "max_tokens": 1}'
        for path in ("/v1/completions", "/generate", "/tokenize", "/abort_request"):
            status, _, answer = self.server.call("POST", path, objects)
            self.assertEqual((status, answer["error"]["code"]), (413, "body_too_large"))
            self.assertTrue(answer["error"]["param"].startswith("unknown["), answer)
        self.assertEqual(self.server.post("/v1/completions", names)["usage"]["completion_tokens"], 1)
        kwargs = json.dumps({"messages": MESSAGES, "max_tokens": 1, "chat_template_kwargs": {f"a{i}": 0 for i in range(50_000)}})
        self.assertEqual(self.server.post("/v1/chat/completions", kwargs)["usage"]["completion_tokens"], 1)
        self.assertEqual(self.server.post("/abort_request", '{"rid": "x", "unknown": [' + ",".join(["{}"] * 60_000) + "]}"), {})
        self.server.is_alive()

    def test_flush_cache(self):
        body = {"prompt": [400] * 300, "max_tokens": 1}
        self.server.post("/v1/completions", body)
        self.assertGreater(self.server.post("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        status, _, answer = self.server.call("POST", "/flush_cache?timeuot=30")
        self.assertEqual((status, answer["error"]["param"]), (400, "?timeuot"))
        self.assertGreater(self.server.post("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(self.server.call("POST", "/flush_cache?timeout=30")[0], 200)
        self.assertEqual(self.server.post("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_unknown_names_in_a_query_are_named(self):
        chat = {"messages": MESSAGES, "max_tokens": 1}
        for path, body, names in (("/v1/chat/completions?api-version=1&strem=true", chat, "?api-version,?strem"),
                                  ("/v1/messages?beta=true", chat, None), ("/v1/messages?bta=true&&", chat, "?bta"),
                                  ("/v1/models?limit=1", None, "?limit"), ("/health?a%20b", None, "?a?b")):
            status, headers, _ = self.server.call("POST" if body else "GET", path, body)
            self.assertEqual((status, headers.get("X-Lathe-Ignored")), (200, names), path)

    def test_metrics(self):
        self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "ignore_eos": True})
        text = self.server.call("GET", "/metrics")[2]
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            name = re.match(r"([a-z0-9_:]+)", line)[1]
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            self.assertTrue(name in kinds or kinds.get(base) == "histogram", line)
            float(line.split()[-1])
        self.assertEqual(self.server.metric("lathe_num_running_reqs"), 0)


if __name__ == "__main__":
    unittest.main()
