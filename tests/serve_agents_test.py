#!/usr/bin/env python3
"""Codex and Claude Code: requests with the fields, tools and headers that these programs send, in tool loops, read as they read answers.

Their fields are from Codex's sources (github.com/openai/codex: codex-rs/codex-api/src/common.rs, protocol/src/models.rs) and from reports of
what Claude Code sends to servers other than Anthropic's. The model has scripted answers.
"""

import http.client
import json
import pathlib
import tempfile
import unittest

from scripted_checkpoint import make
from serve_util import Server

# A piece has one successor in all scripts, and constrained answers have pieces of at most 32 bytes.
SCRIPTS = {
    "one": ["<think>", "Look fir", "st.", "</think>", '<tool_call>\n{"name": "she', 'll", "arguments": ', '{"command": ["ls"]}',
            '}\n</tool_call>'],
    "two": ["A patch", ":\n", '<tool_call>\n{"name": "apply_', r'patch", "arguments": {"input": "*** Begin Patch\n*** End Patch\n"}}' + "\n</tool_call>"],
    "three": ['<tool_call>\n{"name": "mcp__', 'docs__search", ', '"arguments": {"q": "ten"}', '}\n</tool_call>'],
    "four": ["It is", " ten", "!"],
    "title": ['{"title":"Sums"}'],
}
TEMPLATE = ("{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}"
            "{% if tools %}{# <tool_call> #}{% endif %}{# <think></think> #}")
LARK = 'start: "*** Begin Patch" LF "*** End Patch" LF?\n%import common.LF\n'


def events(server: Server, path: str, body: dict, headers: dict) -> list[dict]:
    """The data of a stream's events, whose types are those of their event lines."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Accept": "text/event-stream", **headers})
    response = connection.getresponse()
    text = response.read().decode()
    assert response.status == 200, text
    ignored = response.headers.get("X-Lathe-Ignored", "")
    connection.close()
    out = []
    for event in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in event.splitlines() if line)
        if lines:
            out.append(json.loads(lines["data"]))
            assert out[-1]["type"] == lines["event"], event
    return out, [name for name in ignored.split(",") if name]


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        make(pathlib.Path(cls.folder.name), SCRIPTS, special=("<think>", "</think>"), template=TEMPLATE)
        cls.server = Server(model=cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def codex(self, items: list, **more) -> tuple[list, dict, list]:
        """The items of an answer, its end, and what was ignored."""
        body = {
            "model": "default", "instructions": "You are a coding agent.", "input": items,
            "tools": [
                {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": {
                    "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "timeout_ms": {"type": "number"}},
                    "required": ["command"], "additionalProperties": False}},
                {"type": "custom", "name": "apply_patch", "description": "Edits files.",
                 "format": {"type": "grammar", "syntax": "lark", "definition": LARK}},
                {"type": "web_search", "external_web_access": False},
                {"type": "namespace", "name": "mcp__docs__", "description": "Tools of a server.", "tools": [
                    {"type": "function", "name": "search", "description": "Finds.", "strict": False,
                     "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}]},
                {"type": "image_generation", "output_format": "png"}],
            "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
            "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0198c1d2-0000-7000-8000-000000000000",
            "text": {"verbosity": "low"}, "client_metadata": {"x-codex-installation-id": "i"}, **more}
        got, ignored = events(self.server, "/v1/responses", body,
                              {"originator": "codex_cli_rs", "session_id": "s", "version": "0.154.0", "OpenAI-Beta": "responses=experimental",
                               "User-Agent": "codex_cli_rs/0.154.0", "Authorization": "Bearer none", "x-codex-turn-metadata": "{}"})
        self.assertEqual([e["sequence_number"] for e in got], list(range(len(got))))
        self.assertEqual((got[0]["type"], got[-1]["type"]), ("response.created", "response.completed"))
        done = [e["item"] for e in got if e["type"] == "response.output_item.done"]
        self.assertEqual(done, got[-1]["response"]["output"])
        # The deltas of an item make its text or input.
        for i, item in enumerate(done):
            deltas = "".join(e["delta"] for e in got if e.get("output_index") == i and e["type"].endswith(".delta"))
            whole = item.get("arguments", item.get("input", "".join(part["text"] for part in item.get("content", []))))
            self.assertEqual(deltas, whole)
        return done, got[-1]["response"], ignored

    def test_codex_in_a_tool_loop(self):
        history = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>none</permissions>"}]},
                   {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<one>"}]}]
        outputs = {"shell": "<two>", "apply_patch": "<three>", "search": [{"type": "input_text", "text": "<four>"}]}
        said, calls, prompts = [], [], []
        while not said or said[-1] != "It is ten!":
            items, end, ignored = self.codex(history)
            prompts.append(end["usage"]["input_tokens"])
            self.assertLessEqual({"tools[1].format", "tools[2]", "tools[4]", "text.verbosity", "reasoning.summary", "client_metadata"}, set(ignored))
            for item in items:
                item = {k: v for k, v in item.items() if k != "id"}
                if item["type"] == "reasoning":
                    self.assertEqual(item.pop("content")[0]["text"], "Look first.")  # which Codex does not send back
                history.append(item)
                if item["type"] == "message":
                    said.append(item["content"][0]["text"])
                if item["type"].endswith("_call"):
                    calls.append((item["type"], item.get("namespace"), item["name"], item.get("arguments", item.get("input"))))
                    history.append({"type": item["type"] + "_output", "call_id": item["call_id"], "output": outputs[item["name"]]})
        self.assertEqual(calls, [("function_call", None, "shell", '{"command":["ls"]}'),
                                 ("custom_tool_call", None, "apply_patch", "*** Begin Patch\n*** End Patch\n"),
                                 ("function_call", "mcp__docs__", "search", '{"q":"ten"}')])
        self.assertEqual([text.strip() for text in said], ["A patch:", "It is ten!"])
        # The reasoning that came back is in the prompt.
        reasoning = next(item for item in history if item["type"] == "reasoning")
        without = self.codex([item for item in history if item is not reasoning])[1]["usage"]["input_tokens"]
        whole = {**reasoning, "encrypted_content": None, "content": [{"type": "reasoning_text", "text": "Look first."}]}
        same = self.codex([whole if item is reasoning else item for item in history])[1]["usage"]["input_tokens"]
        last = self.codex(history)[1]["usage"]["input_tokens"]
        self.assertEqual(last, same)
        self.assertGreater(last, without)

    SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": False}

    def test_codex_with_an_output_schema(self):
        """`codex exec --output-schema FILE`: the model calls tools, and its last message follows the schema."""
        text = {"verbosity": "low", "format": {"type": "json_schema", "strict": True, "schema": self.SCHEMA, "name": "codex_output_schema"}}
        history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<one>"}]}]
        outputs = {"shell": "<three>", "search": "<title>"}
        said, calls = [], []
        while not said:
            items, end, _ = self.codex(history, text=text)
            self.assertEqual(end["text"]["format"]["name"], "codex_output_schema")
            for item in items:
                history.append({k: v for k, v in item.items() if k not in ("id", "content") or item["type"] == "message"})
                if item["type"] == "message":
                    said.append(item["content"][0]["text"])
                if item["type"].endswith("_call"):
                    calls.append((item["name"], item["arguments"]))
                    history.append({"type": item["type"] + "_output", "call_id": item["call_id"], "output": outputs[item["name"]]})
        self.assertEqual(calls, [("shell", '{"command":["ls"]}'), ("search", '{"q":"ten"}')])
        self.assertEqual(said, ['{"title":"Sums"}'])

    def test_other_clients_with_a_schema_and_tools(self):
        """response_format of chat, and Anthropic's output_config: calls, then a text that follows the schema, whole and streamed."""
        shell = {"name": "shell", "description": "d", "parameters": {"type": "object", "properties": {"command": {
            "type": "array", "items": {"type": "string"}}}, "required": ["command"], "additionalProperties": False}}
        chat = {"tools": [{"type": "function", "function": {**shell, "strict": True}}], "max_tokens": 200, "response_format": {
            "type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": self.SCHEMA}}}
        for text, content in (("<one>", None), ("<title>", '{"title":"Sums"}')):
            answer = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **chat})["choices"][0]
            self.assertEqual((answer["message"]["content"], answer["finish_reason"]), (content, "tool_calls" if content is None else "stop"))
            if content is None:
                self.assertEqual(answer["message"]["tool_calls"][0]["function"], {"name": "shell", "arguments": '{"command":["ls"]}'})
            # The model would say other words than the schema's.
            config = {"effort": "medium", "format": {"type": "json_schema", "schema": self.SCHEMA}}
            blocks, end, _ = self.claude([{"role": "user", "content": text}], output_config=config)
            self.assertEqual(end["delta"]["stop_reason"], "tool_use" if content is None else "end_turn")
            self.assertEqual([b.get("text", b.get("input")) for b in blocks if b["type"] != "thinking"],
                             [content] if content else [{"command": ["ls"]}])

    def test_codex_is_refused_by_name(self):
        user = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<four>"}]}]
        for more, param in (({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                            ({"tools": [{"type": "local_shell"}, {"type": "image_generation"}]}, "tools[0].type"),
                            ({"previous_response_id": "resp_1"}, "previous_response_id"),
                            ({"input": user + [{"type": "compaction", "encrypted_content": "x"}]}, "input[1].type"),
                            ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
                             "input[0].content[0].type")):
            answer = self.server.post("/v1/responses", {"input": user, "store": False, **more}, 400)
            self.assertEqual(answer["error"]["param"], param)
        # Items of a session with another server's reasoning.
        status, headers, _ = self.server.call("POST", "/v1/responses", {"input": user + [
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"}] + user})
        self.assertEqual((status, headers["X-Lathe-Ignored"]), (200, "input[1].encrypted_content"))
        self.assertEqual(self.server.call("GET", "/v1/models?client_version=0.154.0")[0], 200)

    HEADERS = {"anthropic-version": "2023-06-01", "x-app": "cli", "anthropic-dangerous-direct-browser-access": "true",
               "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,prompt-caching-scope-2026-01-05",
               "User-Agent": "claude-cli/2.1.63 (external, cli)", "x-stainless-lang": "js", "x-stainless-retry-count": "0", "x-api-key": "none"}

    @staticmethod
    def claude_body(messages: list, **more) -> dict:
        def tool(name, properties, **rest):
            return {"name": name, "description": "A tool.", "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": properties,
                "required": list(properties), "additionalProperties": False}, **rest}

        return {"model": "default", "messages": messages, "max_tokens": 32000, "stream": True,
                "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.63"},
                           {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
                "tools": [tool("shell", {"command": {"type": "array", "items": {"type": "string"}}}, eager_input_streaming=True),
                          tool("apply_patch", {"input": {"type": "string"}}), tool("mcp__docs__search", {"q": {"type": "string"}}),
                          {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
                "metadata": {"user_id": '{"device_id":"d","session_id":"s"}'}, "thinking": {"type": "adaptive"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "output_config": {"effort": "medium"}, **more}

    def claude(self, messages: list, **more) -> tuple[list, dict, list]:
        """The blocks of an answer, as Anthropic's client builds them, the last message_delta, and what was ignored."""
        got, ignored = events(self.server, "/v1/messages?beta=true", self.claude_body(messages, **more), self.HEADERS)
        self.assertEqual((got[0]["type"], got[-2]["type"], got[-1]["type"]), ("message_start", "message_delta", "message_stop"))
        blocks, inputs = [], {}
        for event in got:
            if event["type"] == "content_block_start":
                self.assertEqual(event["index"], len(blocks))
                blocks.append(event["content_block"])
            if event["type"] == "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                else:
                    name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[delta["type"]]
                    blocks[event["index"]][name] = blocks[event["index"]].get(name, "") + delta[name]
        for i, text in inputs.items():
            blocks[i]["input"] = json.loads(text)
        return blocks, got[-2], ignored

    def test_claude_code_in_a_tool_loop(self):
        messages = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>Be short.</system-reminder>"},
                                                 {"type": "text", "text": "<one>", "cache_control": {"type": "ephemeral"}}]}]
        outputs = {"shell": "<two>", "apply_patch": [{"type": "text", "text": "<three>"}], "mcp__docs__search": "<four>"}
        calls, reasons = [], []
        while not reasons or reasons[-1] == "tool_use":
            blocks, end, ignored = self.claude(messages)
            self.assertLessEqual({"context_management", "tools[3]", "tools[0].eager_input_streaming"}, set(ignored))
            reasons.append(end["delta"]["stop_reason"])
            messages.append({"role": "assistant", "content": blocks})
            results = [{"tool_use_id": b["id"], "type": "tool_result", "content": outputs[b["name"]], "is_error": False,
                        "cache_control": {"type": "ephemeral"}} for b in blocks if b["type"] == "tool_use"]
            calls += [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
            if results:
                messages.append({"role": "user", "content": results})
        self.assertEqual(calls, [("shell", {"command": ["ls"]}), ("apply_patch", {"input": "*** Begin Patch\n*** End Patch\n"}),
                                 ("mcp__docs__search", {"q": "ten"})])
        self.assertEqual(reasons, ["tool_use"] * 3 + ["end_turn"])
        self.assertEqual(messages[1]["content"][0]["thinking"], "Look first.")
        self.assertTrue(messages[1]["content"][0]["signature"])
        self.assertEqual(messages[-1]["content"], [{"type": "text", "text": "It is ten!"}])

    def test_what_else_claude_code_asks(self):
        user = [{"role": "user", "content": "<four>"}]
        counted = self.claude_body(user)
        for name in ("max_tokens", "stream", "metadata", "output_config"):
            del counted[name]
        status, _, body = self.server.call("POST", "/v1/messages/count_tokens?beta=true", counted, self.HEADERS)
        self.assertEqual(status, 200)
        usage = self.claude(user)[1]["usage"]
        self.assertEqual(body["input_tokens"], usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))
        # The probe of a quota, and a title by schema.
        probe = self.server.post("/v1/messages?beta=true", {"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}],
                                                            "metadata": {"user_id": "u"}})
        self.assertEqual(probe["type"], "message")
        schema = {"type": "json_schema", "schema": self.SCHEMA}
        for more in ({"output_config": {"format": schema}}, {"output_format": schema}):
            title = self.server.post("/v1/messages?beta=true", {"model": "default", "max_tokens": 50, "thinking": {"type": "disabled"},
                                                                "messages": [{"role": "user", "content": "<title>"}], **more})
            self.assertEqual(json.loads(title["content"][-1]["text"]), {"title": "Sums"})
        # A session that began elsewhere.
        redacted = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"},
                                                                                       {"type": "text", "text": "b"}]}, *user]
        self.assertEqual(self.claude(redacted)[0][-1]["text"], "It is ten!")
        # What only Anthropic has is refused, in its shape of errors.
        for more, path in (({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]}, "tools[0].type"),
                           ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers"),
                           ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]}, "messages[0].content[0].type"),
                           ({"context_management": 3}, "context_management")):
            error = self.server.post("/v1/messages?beta=true", {"model": "default", "max_tokens": 9, "messages": user, **more}, 400)
            self.assertEqual((error["type"], error["error"]["type"]), ("error", "invalid_request_error"))
            self.assertIn(path, error["error"]["message"])
        self.assertEqual(self.server.call("POST", "/v1/messages?beta=true", {**self.claude_body(user), "model": "claude-x"}, self.HEADERS)[0], 404)


if __name__ == "__main__":
    unittest.main()
