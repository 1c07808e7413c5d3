#!/usr/bin/env python3
"""Calls and reasoning in every format, as a real server reads them from a scripted model with the format's special tokens."""

import json
import re
import unittest

import serve_answers_test as answers
from serve_util import Server

WEATHER = answers.tool("weather", city={"type": "string"}, days={"type": "integer"})
TOOLS = [WEATHER, answers.tool("now")]
BOTH = [("weather", {"city": "Oslo", "days": 3}), ("now", {})]


def template(*marks: str) -> str:
    """Shows the messages, and has the marks by which the format is found."""
    return ("{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{# " + " ".join(marks) + " #}{% endif %}")


class Format(answers.Scripted):
    FORMAT = ""
    REASONING: str | None = None

    def setUp(self):
        info = self.server.call("GET", "/model_info")[2]
        self.assertEqual((info["tool_call_parser"], info["reasoning_parser"]), (self.FORMAT, self.REASONING))

    def stream(self, name: str, **more) -> dict:
        """The message that a stream's events make, and how it ended."""
        body = {"messages": [{"role": "user", "content": f"<{name}>"}], "temperature": 0, **more}
        out = {"content": "", "reasoning": "", "finish": None}
        for event in self.server.stream("/v1/chat/completions", body):
            choice = event["choices"][0]
            out["content"] += choice["delta"].get("content") or ""
            out["reasoning"] += choice["delta"].get("reasoning") or ""
            out["finish"] = choice["finish_reason"] or out["finish"]
        return out

    def events(self, path: str, body: dict) -> list:
        """The data of a stream's named events."""
        status, _, text = self.server.call("POST", path, {**body, "stream": True})
        self.assertEqual(status, 200, text)
        return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]

    def responses(self, name: str) -> tuple:
        """Content, reasoning and calls of the whole answer; the stream's events add up to them."""
        tools = [{"type": "function", **t["function"]} for t in TOOLS]
        body = {"input": f"<{name}>", "temperature": 0, "tools": tools}
        texts, calls = {"message": "", "reasoning": ""}, []
        for item in self.server.post("/v1/responses", body)["output"]:
            if item["type"] == "function_call":
                calls.append((item["name"], json.loads(item["arguments"])))
            else:
                texts[item["type"]] += "".join(p["text"] for p in item["content"])
        deltas = {"response.output_text.delta": "", "response.reasoning_text.delta": "", "response.function_call_arguments.delta": ""}
        for event in self.events("/v1/responses", body):
            if event["type"] in deltas:
                deltas[event["type"]] += event["delta"]
        arguments = "".join(json.dumps(a, separators=(",", ":")) for _, a in calls)
        self.assertEqual(list(deltas.values()), [texts["message"], texts["reasoning"], arguments])
        return texts["message"], texts["reasoning"], calls

    def messages(self, name: str) -> tuple:
        """As responses(), of /v1/messages."""
        tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
        body = {"messages": [{"role": "user", "content": f"<{name}>"}], "temperature": 0, "max_tokens": 1000, "tools": tools}
        blocks = self.server.post("/v1/messages", body)["content"]
        content, reasoning = ("".join(b[k] for b in blocks if b["type"] == k) for k in ("text", "thinking"))
        calls = [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        deltas = {"text_delta": "", "thinking_delta": "", "input_json_delta": ""}
        for event in self.events("/v1/messages", body):
            delta = event.get("delta", {})
            if delta.get("type") in deltas:
                deltas[delta["type"]] += "".join(v for k, v in delta.items() if k != "type")
        arguments = "".join(json.dumps(a, separators=(",", ":")) for _, a in calls)
        self.assertEqual(list(deltas.values()), [content, reasoning, arguments])
        return content, reasoning, calls

    def both(self, name: str, content: str = "", reasoning: str = "", calls=BOTH):
        """The whole answer has these parts, and the stream the same, in each protocol."""
        self.assertEqual(self.calls(name, TOOLS) if calls else [], list(calls))
        choice = self.chat(name, tools=TOOLS)
        message = choice["message"]
        self.assertEqual((message["content"] or "", message.get("reasoning") or ""), (content, reasoning))
        end = "tool_calls" if calls else "stop"
        self.assertEqual(choice["finish_reason"], end)
        self.assertEqual(self.stream(name, tools=TOOLS), {"content": content, "reasoning": reasoning, "finish": end})
        for protocol in (self.responses, self.messages):
            self.assertEqual(protocol(name), (content, reasoning, list(calls)))

    def ids(self, name: str) -> list:
        return [c["id"] for c in self.chat(name, tools=TOOLS)["message"]["tool_calls"]]


class Harmony(Format):
    FORMAT = REASONING = "harmony"
    TEMPLATE = template("<|channel|>")
    SPECIAL = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
    SCRIPTS = {
        "final": ["<|channel|>", "analysis", "<|message|>", "We need", " four.", "<|end|>", "<|start|>", "assistant"],
    }

    def test_a_header_that_the_end_cuts_is_no_text(self):
        self.both("final", reasoning="We need four.", calls=())

    def test_built_in_tools_are_refused_by_name(self):
        for type in ("browser", "code_interpreter", "web_search"):
            error = self.chat("final", 400, tools=[{"type": type}])
            self.assertEqual(error["param"], "tools[0].type")
            self.assertIn(type, error["message"])


class HarmonySchema(Format):
    """The model would end its message within a string of it."""

    FORMAT = REASONING = "harmony"
    TEMPLATE, SPECIAL = Harmony.TEMPLATE, Harmony.SPECIAL
    SCRIPTS = {
        "quote": ["<|channel|>", "final", "<|message|>", '{"title":"a', "<|end|>"],
    }

    def test_marks_that_are_tokens_are_in_no_string(self):
        schema = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 9}}, "required": ["title"], "additionalProperties": False}
        format = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
        for more in ({}, {"tools": TOOLS}):
            choice = self.chat("quote", response_format=format, max_tokens=100, **more)
            self.assertEqual(choice["finish_reason"], "stop", choice)
            title = json.loads(choice["message"]["content"])["title"]
            self.assertTrue(title.startswith("a") and len(title) <= 9, title)


class HarmonyCalls(Format):
    """A call whose string would end with a mark, by the grammars of strict tools, forced calls and of a text or calls."""

    FORMAT = REASONING = "harmony"
    TEMPLATE, SPECIAL = Harmony.TEMPLATE, Harmony.SPECIAL
    SCRIPTS = {
        "call": ["<|channel|>", "commentary to=functions.", "weather ", "<|constrain|>", "json", "<|message|>", '{"city":"Oslo', "<|end|>"],
    }

    def test_arguments_follow_the_schema(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": schema, "strict": True}}]
        format = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"type": "object"}}}
        for more in ({}, {"tool_choice": "required"}, {"response_format": format}):
            choice = self.chat("call", tools=tools, max_tokens=100, **more)
            self.assertEqual(choice["finish_reason"], "tool_calls", choice)
            (call,) = choice["message"]["tool_calls"]
            city = json.loads(call["function"]["arguments"])["city"]
            self.assertTrue(city.startswith("Oslo") and len(city) <= 9, city)


class HarmonyPlain(Format):
    """A model that writes no channels, as one does that was fine-tuned without them."""

    FORMAT = REASONING = "harmony"
    TEMPLATE, SPECIAL = Harmony.TEMPLATE, Harmony.SPECIAL
    SCRIPTS = {"plain": ["Just", " words."]}

    def test_text_without_channels_is_content(self):
        self.both("plain", content="Just words.", calls=())
        response = self.server.post("/v1/responses", {"input": "<plain>", "temperature": 0})
        self.assertEqual([p["text"] for i in response["output"] for p in i["content"]], ["Just words."])
        body = {"messages": [{"role": "user", "content": "<plain>"}], "temperature": 0, "max_tokens": 20}
        self.assertEqual([b["text"] for b in self.server.post("/v1/messages", body)["content"]], ["Just words."])

    def test_text_is_no_mark(self):
        # The bytes of the model's vocabulary are as likely as its marks, which a constrained answer needs.
        format = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"type": "object"}}}
        for more in ({"response_format": format}, {"tools": TOOLS, "tool_choice": "required"}):
            message = self.chat("plain", max_tokens=40, **more)["message"]
            for text in (message["content"] or "", message.get("reasoning") or ""):
                self.assertNotIn("<|channel|>", text)


class HarmonyFewMarks(HarmonyPlain):
    """A tokenizer that lacks a mark: marks are text, and the constraints are still followed."""

    SPECIAL = ("<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")

    def test_text_is_no_mark(self):
        enum = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"enum": [7]}}}
        for more in ({"response_format": enum}, {"tools": TOOLS, "tool_choice": "required"}, {"tools": TOOLS, "response_format": enum}):
            self.assertIn(self.chat("plain", max_tokens=60, **more)["finish_reason"], ("length", "stop", "tool_calls"))


class HarmonyText(Format):
    """Without special tokens the marks are text."""

    FORMAT = REASONING = "harmony"
    TEMPLATE = template("<|channel|>")
    SCRIPTS = {
        "four": ["<|chan", "nel|>analysis<|message|>We need", " four.<|e", "nd|><|start|>assist", "ant<|channel|>final<|mess", "age|>four", " <|end|>", "."],
        "call": ["<|channel|>analysis<|message|>Use it.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
                 '{"city": "Oslo",', ' "days": 3}'],
        "python": ["<|channel|>analysis to=python code<|message|>", "print(1)"],
    }

    def test_channels_say_what_a_text_is(self):
        self.both("four", content="four <|end|>.", reasoning="We need four.", calls=())
        self.both("call", reasoning="Use it.", calls=BOTH[:1])
        self.both("python", content="<|channel|>analysis to=python code<|message|>print(1)", calls=())
        plain = self.chat("four", separate_reasoning=False)["message"]
        self.assertTrue(plain["content"].startswith("<|channel|>analysis<|message|>We need four.<|end|>"), plain)


class Llama(Format):
    FORMAT = "llama"
    TEMPLATE = template("<|python_tag|>")
    SPECIAL = ("<|python_tag|>",)
    SCRIPTS = {
        "two": ['{"name": "weather", "param', 'eters": {"city": "Oslo", "days": 3}}; {"name"', ': "now", "parameters": {}}'],
        "tag": ["<|python_tag|>", 'weather.call(city="Os', 'lo", days=3)'],
        "json": ['{"name": "Rosa", ', '"age": 3}\n'],
    }

    def test_calls(self):
        self.both("two")
        self.both("tag", calls=BOTH[:1])
        self.both("json", content='{"name": "Rosa", "age": 3}\n', calls=())


class Mistral(Format):
    FORMAT, REASONING = "mistral", "mistral"
    TEMPLATE = template("[TOOL_CALLS]", "[THINK]", "[/THINK]")
    SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
    SCRIPTS = {
        "old": ["[TOOL_CALLS]", ' [{"name": "weather", "arguments": {"city": "Oslo", "days": 3}, "id": "abcdefghi"},', ' {"name": "now", "arguments": {}}]'],
        "new": ["[THINK]", "why", "[/THINK]", "weather", "[ARGS]", '{"city": "Oslo"', ', "days": 3}'],
    }

    def test_calls(self):
        self.both("old")
        first, second = self.ids("old")
        self.assertEqual(first, "abcdefghi")
        self.assertRegex(second, "^[a-z0-9]{9}$")
        # Without its mark a name and [ARGS] are text.
        self.both("new", content='weather[ARGS]{"city": "Oslo", "days": 3}', reasoning="why", calls=())


class MistralIds(Format):
    """Ids that the model's template would refuse, and one that comes twice."""

    FORMAT = "mistral"
    TEMPLATE = template("[TOOL_CALLS]")
    SPECIAL = ("[TOOL_CALLS]",)
    SCRIPTS = {
        "short": ["[TOOL_CALLS]", ' [{"name": "now", "arguments": {}, "id": "x"}, {"name": "now", "arguments": {}, "id": "abcdefghi"},',
                  ' {"name": "now", "arguments": {}, "id": "abcdefghi"}]'],
    }

    def test_ids_are_the_servers_where_they_must(self):
        said = {"role": "user", "content": "<short>"}
        response = self.server.post("/v1/responses", {"input": "<short>", "temperature": 0, "tools": [{"type": "function", "name": "now"}]})
        body = {"messages": [said], "temperature": 0, "max_tokens": 60, "tools": [{"name": "now", "input_schema": {"type": "object"}}]}
        message = self.server.post("/v1/messages", body)
        for ids in (self.ids("short"), [i["call_id"] for i in response["output"]], [b["id"] for b in message["content"]]):
            self.assertEqual((len(set(ids)), ids[1]), (3, "abcdefghi"))
            for id in ids:
                self.assertRegex(id, "^[a-z0-9]{9}$")
        results = [{"type": "tool_result", "tool_use_id": b["id"], "content": "r"} for b in message["content"]]
        turn = [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": [*results, {"type": "text", "text": "<short>"}]}]
        again = self.server.post("/v1/messages", {**body, "messages": [said, *turn]})
        self.assertFalse({b["id"] for b in again["content"]} & {b["id"] for b in message["content"]})


class Gemma(Format):
    FORMAT, REASONING = "gemma", "gemma"
    TEMPLATE = template("<|tool_call>", "<|channel>", "<channel|>")
    SPECIAL = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
    SCRIPTS = {
        "call": ["<|channel>", "thought\n", "why\n", "<channel|>", "<|tool_call>", "call:weather{days:3,city:", '<|"|>', "Oslo"],
    }

    def test_a_call_without_its_end_is_text(self):
        self.both("call", content='<|tool_call>call:weather{days:3,city:<|"|>Oslo', reasoning="why\n", calls=())


class Kimi(Format):
    FORMAT = "kimi"
    TEMPLATE = template("<|tool_call_begin|>")
    SPECIAL = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>")
    SCRIPTS = {
        "call": ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.weather:0", "<|tool_call_argument_begin|>",
                 '{"city": "Oslo", "da', 'ys": 3}', "<|tool_call_end|>", "<|tool_calls_section_end|>"],
    }

    def test_calls_keep_their_ids(self):
        self.both("call", calls=BOTH[:1])
        self.assertEqual(self.ids("call"), ["functions.weather:0"])
        body = {"messages": [{"role": "user", "content": "<call>"}], "temperature": 0, "max_tokens": 60, "tools": [{"name": "weather", "input_schema": {}}]}
        self.assertEqual([b["id"] for b in self.server.post("/v1/messages", body)["content"]], ["functions.weather:0"])


class MiniMax(Format):
    FORMAT = "minimax"
    TEMPLATE = template("<minimax:tool_call>")
    SPECIAL = ("<minimax:tool_call>", "</minimax:tool_call>")
    SCRIPTS = {
        "two": ["<minimax:tool_call>", '\n<invoke name="weather">\n<parameter name="city">Os', 'lo</parameter>\n<parameter name="days">3</parameter>\n',
                '</invoke>\n<invoke name="now">\n</inv', "oke>\n", "</minimax:tool_call>"],
    }

    def test_calls(self):
        self.both("two")


class Forced(unittest.TestCase):
    def test_a_model_without_a_format_can_be_made_to_call(self):
        one = {"type": "function", "function": {"name": "pick", "parameters": {
            "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}}}
        body = {"messages": [{"role": "user", "content": "Pick."}], "temperature": 0, "max_tokens": 800, "tools": [one]}
        with Server() as server:
            for choice in ("required", {"type": "function", "function": {"name": "pick"}}):
                out = server.post("/v1/chat/completions", {**body, "tool_choice": choice, "parallel_tool_calls": False})["choices"][0]
                self.assertEqual(out["finish_reason"], "tool_calls", out)
                call = out["message"]["tool_calls"][0]["function"]
                self.assertEqual(call["name"], "pick")
                self.assertIn(json.loads(call["arguments"]), ({"x": 1}, {"x": 2}))
            error = server.post("/v1/chat/completions", body, 400)["error"]
            self.assertEqual((error["param"], error["code"]), ("tools", "unsupported_field"))

    def test_other_servers_names(self):
        with Server("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "deepseek_r1") as server:
            log = "".join(server.log)
            self.assertTrue(re.search(r"reasoning think: --reasoning-parser\n", log), log)
            self.assertTrue(re.search(r"tools     tag: --tool-call-parser\n", log), log)


if __name__ == "__main__":
    unittest.main(verbosity=1)
