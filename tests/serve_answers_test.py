#!/usr/bin/env python3
"""What a real server makes of answers that a scripted model writes: calls, reasoning, stop strings, constraints, prompts."""

import json
import pathlib
import tempfile
import unittest

from scripted_checkpoint import make
from serve_util import Server

TAG_TEMPLATE = ("{% for m in messages %}{{ m.content }}{% endfor %}"
                "{% if tools %}{# <tool_call> <function=f> #}{% endif %}")
DSML_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{# <｜DSML｜invoke #}{% endif %}"
THINK_TEMPLATE = TAG_TEMPLATE + "{# <think> </think> #}"


def tool(name: str, **properties) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def function(name: str, *parameters: str) -> str:
    return f"<function={name}>\n" + "".join(parameters) + "</function>\n"


def parameter(name: str, value: str, end: str = "</parameter>\n") -> str:
    return f"<parameter={name}>\n{value}\n{end}"


class Scripted(unittest.TestCase):
    """A server whose model has SCRIPTS, by name."""

    SCRIPTS: dict = {}
    SPECIAL: tuple = ()
    TEMPLATE: str | list = TAG_TEMPLATE

    @classmethod
    def change(cls, folder: pathlib.Path):
        """Changes files of the checkpoint."""

    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        make(pathlib.Path(folder), cls.SCRIPTS, cls.SPECIAL, cls.TEMPLATE)
        cls.change(pathlib.Path(folder))
        cls.server = cls.enterClassContext(Server(model=folder))

    def chat(self, name: str, status: int = 200, **more):
        body = {"messages": [{"role": "user", "content": f"<{name}>"}], "temperature": 0, **more}
        answer = self.server.post("/v1/chat/completions", body, status)
        return answer["choices"][0] if status == 200 else answer["error"]

    def calls(self, name: str, tools: list) -> list:
        """(name, arguments) of each call; the stream has the same."""
        message = self.chat(name, tools=tools)["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
        body = {"messages": [{"role": "user", "content": f"<{name}>"}], "temperature": 0, "tools": tools}
        streamed: dict = {}
        for event in self.server.stream("/v1/chat/completions", body):
            for part in event["choices"][0]["delta"].get("tool_calls", []):
                known = streamed.setdefault(part["index"], ["", ""])
                known[0] += part["function"].get("name", "")
                known[1] += part["function"].get("arguments", "")
        self.assertEqual([tuple(c) for c in streamed.values()], calls)
        return [(n, json.loads(a)) for n, a in calls]


class Calls(Scripted):
    SCRIPTS = {
        "text": ["<tool_call>\n" + function("f", parameter("a", "555")), "</tool_call>"],
        "flag": ["<tool_call>\n" + function("f", parameter("b", "True"), parameter("c", "None")), "</tool_call> "],
        "two": ["<tool_call>\n" + function("read", parameter("p", "a.txt")) + function("delete", parameter("p", "b.txt")), "\n</tool_call>"],
        "open": ["<tool_call>\n" + function("f", parameter("a", "one", end=""), parameter("b", "true")), "</tool_call>\n"],
        "tag": ["<tool_call>\n" + function("f", parameter("a", "x</parameter>y")), "</tool_call>\n\n"],
        "lost": ["<tool_call>\nnot a call", "</tool_call>\t", " and more"],
        "big": ['<tool_call>\n{"name": "f", "arguments": {"a": 18446744073709551616, "b": 0.1234567890123456789}}', "\n\n</tool_call>"],
    }

    def test_b3_a_schema_says_what_a_value_is(self):
        either = {"anyOf": [{"type": "string"}, {"type": "null"}]}
        self.assertEqual(self.calls("text", [tool("f", a=either)]), [("f", {"a": "555"})])
        self.assertEqual(self.calls("text", [tool("f", a={"type": ["integer", "null"]})]), [("f", {"a": 555})])
        self.assertEqual(self.calls("text", [tool("f", a={"enum": ["555", "556"]})]), [("f", {"a": "555"})])
        self.assertEqual(self.calls("flag", [tool("f", b={"type": "boolean"}, c=either)]), [("f", {"b": True, "c": None})])
        self.assertEqual(self.calls("flag", [tool("f", b={"type": "string"}, c={"type": "string"})]), [("f", {"b": "True", "c": "None"})])

    def test_b4_every_call_and_parameter_ends_at_the_next_tag(self):
        text = {"type": "string"}
        self.assertEqual(self.calls("two", [tool("read", p=text), tool("delete", p=text)]), [("read", {"p": "a.txt"}), ("delete", {"p": "b.txt"})])
        self.assertEqual(self.calls("open", [tool("f", a=text, b={"type": "boolean"})]), [("f", {"a": "one", "b": True})])
        self.assertEqual(self.calls("tag", [tool("f", a=text)]), [("f", {"a": "x</parameter>y"})])
        kept = self.chat("lost", tools=[tool("f")])["message"]
        self.assertEqual(kept["content"], "<tool_call>\nnot a call</tool_call>\t and more")

    def test_a8_numbers_keep_their_digits(self):
        message = self.chat("big", tools=[tool("f")])["message"]
        self.assertEqual(message["tool_calls"][0]["function"]["arguments"], '{"a":18446744073709551616,"b":0.1234567890123456789}')


class Reasoning(Scripted):
    CALL = "<tool_call>\n" + function("f") + "</tool_call>"
    SCRIPTS = {"drafted": ["<think>", "perhaps " + CALL, "</think>", "I will not."],
               "meant": ["<think>\n", "it is.", "</think>\n", CALL],
               "open": ["it was open", "</think>\n\n", "done"]}
    TEMPLATE = THINK_TEMPLATE

    def test_b5_calls_count_after_reasoning(self):
        message = self.chat("drafted", tools=[tool("f")])["message"]
        self.assertFalse(message.get("tool_calls"))
        self.assertEqual((message["reasoning_content"], message["content"]), ("perhaps " + self.CALL, "I will not."))
        self.assertEqual([c["function"]["name"] for c in self.chat("meant", tools=[tool("f")])["message"]["tool_calls"]], ["f"])



class ReasoningMarks(Scripted):
    """Marks that are special tokens, which detokenising skips."""

    SCRIPTS = {"x": ["<think>", "perhaps", "</think>", "no."]}
    SPECIAL = ("<think>", "</think>")
    TEMPLATE = THINK_TEMPLATE

    def test_b5_marks_stay_where_reasoning_is_not_separate(self):
        self.assertEqual(self.chat("x", separate_reasoning=False)["message"]["content"], "<think>perhaps</think>no.")
        message = self.chat("x")["message"]
        self.assertEqual((message["reasoning_content"], message["content"]), ("perhaps", "no."))


class Dsml(Scripted):
    BEGIN, END = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n', "</｜DSML｜invoke>\n</｜DSML｜function_calls>"

    @staticmethod
    def argument(name: str, string: str, value: str) -> str:
        return f'<｜DSML｜parameter name="{name}" string="{string}">{value}</｜DSML｜parameter>\n'

    SCRIPTS = {"input": [BEGIN + argument("input", "false", '{"a": 1}'), END],
               "arguments": [BEGIN + argument("arguments", "false", '{"a": 2}'), END + "\n"],
               "bare": [BEGIN + argument("arguments", "true", "some text"), END + "\n\n"]}
    TEMPLATE = DSML_TEMPLATE

    def test_b10_a_wrapper_is_no_argument(self):
        self.assertEqual(self.calls("input", [tool("f", a={"type": "integer"})]), [("f", {"a": 1})])
        self.assertEqual(self.calls("arguments", [tool("f", a={"type": "integer"})]), [("f", {"a": 2})])
        self.assertEqual(self.calls("bare", [tool("f", query={"type": "string"})]), [("f", {"query": "some text"})])


class Texts(Scripted):
    SCRIPTS = {"names": ["Bob", " and", " Alice", " and Tom", " with", " Alice's", " aunt", " Ann", " came", " home", " at", " ten"],
               "eos": ["a", "b"]}
    TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

    def complete(self, name: str, **more):
        return self.server.post("/v1/completions", {"prompt": f"<{name}>", "temperature": 0, "max_tokens": 20, **more})["choices"][0]

    def test_b6_stop_strings_wait_for_min_tokens(self):
        self.assertEqual(self.complete("names", stop="Alice")["text"], "Bob and ")
        later = self.complete("names", stop="Alice", min_tokens=5)
        self.assertEqual((later["text"], later["matched_stop"]), ("Bob and Alice and Tom with ", "Alice"))
        past = self.complete("names", stop="Alice", min_tokens=10)
        self.assertEqual((past["matched_stop"] == "Alice", past["text"].endswith("ten")), (False, True))

    def test_b1_a_message_is_continued_where_it_ends(self):
        for text in ("def f():\n    ", "<", "|im_end|>"):
            messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
            got = self.server.post("/tokenize", {"messages": messages, "continue_final_message": True})
            shown = self.server.post("/detokenize", {"tokens": got["tokens"]})["prompt"]
            self.assertEqual(shown, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n" + text)

    def test_a9_offsets_index_the_text(self):
        for stream in (False, True):
            body = {"prompt": "a<eos>b", "echo": True, "max_tokens": 2, "logprobs": 0, "ignore_eos": True}
            if stream:
                events = self.server.stream("/v1/completions", body)
                choices = [e["choices"][0] for e in events]
                offsets = [o for c in choices if c["logprobs"] for o in c["logprobs"]["text_offset"]]
            else:
                offsets = self.server.post("/v1/completions", body)["choices"][0]["logprobs"]["text_offset"]
            self.assertEqual(offsets[:4], [0, 1, 6, 7])

    def test_b14_messages_name_what_is_wrong(self):
        error = self.server.post("/v1/completions", {"prompt": "x" * 5000}, 400)["error"]
        self.assertEqual((error["param"], "max_tokens" in error["message"]), ("prompt", False))
        error = self.server.post("/v1/completions", {"prompt": "x", "temperature": 1e300}, 400)["error"]
        self.assertEqual(error["param"], "temperature")

    def test_b11_seed_minus_one_is_no_seed(self):
        # The script leaves no choice; with equal logits of all tokens each seed has its own answer.
        free = {"prompt": "z", "max_tokens": 12, "temperature": 1, "ignore_eos": True}
        texts = {self.server.post("/v1/completions", {**free, "seed": -1})["choices"][0]["text"] for _ in range(4)}
        same = {self.server.post("/v1/completions", {**free, "seed": 5})["choices"][0]["text"] for _ in range(4)}
        self.assertEqual((len(texts) > 1, len(same)), (True, 1))


class Constraints(Scripted):
    """Constrained answers of a model that would write something else."""

    SCRIPTS = {"other": ["I", " would", " rather", " not"]}

    def test_b2_tokens_that_cannot_write_the_constraint_are_refused(self):
        choice = {"structured_outputs": {"choice": ["cat", "cab"]}}
        a, b, c, t = (ord(x) for x in "abct")
        self.assertEqual(self.chat("other", allowed_token_ids=[a, c, t], **choice)["message"]["content"], "cat")
        self.assertEqual(self.chat("other", stop_token_ids=[t], **choice)["message"]["content"], "cab")
        self.assertEqual(self.chat("other", bad_words=["b"], **choice)["message"]["content"], "cat")
        for field, value in (("allowed_token_ids", [a, c]), ("stop_token_ids", [a]), ("bad_words", ["a"]), ("allowed_token_ids", [a, b])):
            self.assertEqual(self.chat("other", status=400, **{field: value}, **choice)["param"], field)

    def test_b12_histories_of_calls_are_taken_back(self):
        for arguments in ("", " ", None, "{}", '{"a": 1, "a": 2}'):
            messages = [{"role": "user", "content": "q"}, {"role": "tool", "content": "r"},
                        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
                        {"role": "user", "content": "<other>"}]
            answer = self.server.post("/v1/chat/completions", {"messages": messages, "temperature": 0})
            self.assertEqual(answer["choices"][0]["message"]["content"], "I would rather not")


class LargeTokenizer(Scripted):
    """A tokenizer with marks beyond the model's vocabulary."""

    SCRIPTS = {"a": ["Hi", "!"]}
    TEMPLATE = THINK_TEMPLATE.replace("<function=f>", '{\\"name\\": x, \\"arguments\\": y}')
    MARKS = ["</think>", "<think>", "<tool_call>", "</tool_call>"]

    @classmethod
    def change(cls, folder: pathlib.Path):
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        for i, mark in enumerate(cls.MARKS):
            tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 200_000 + 7 * i, "content": mark})
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    def test_b2_marks_beyond_the_vocabulary_are_text_or_refused(self):
        strict = tool("f", a={"type": "integer"})
        strict["function"]["strict"] = True
        self.assertEqual(self.chat("a")["message"]["content"], "Hi!")
        self.assertIn(self.chat("a", tools=[strict])["finish_reason"], ("stop", "tool_calls"))
        self.chat("a", json_schema={"type": "object"}, max_tokens=5)
        said = [{"role": "user", "content": "x </think>"}]
        for path, body, field in (("/v1/chat/completions", {"messages": said}, "messages"), ("/v1/completions", {"prompt": "</think>"}, "prompt"),
                                  ("/generate", {"text": ["a", "<tool_call>"]}, "text[1]"), ("/v1/completions", {"prompt": [1, 200_000]}, "prompt[1]")):
            error = self.server.post(path, body, status=400)["error"]
            self.assertEqual(error["param"], field)
            self.assertIn("200000" if field != "text[1]" else "200014", error["message"])
        for path, body in (("/v1/messages", {"messages": said, "max_tokens": 5}), ("/v1/responses", {"input": "x </think>"})):
            self.assertIn("</think>", self.server.post(path, body, status=400)["error"]["message"])


class Templates(Scripted):
    SCRIPTS = {"x": ["fine"]}
    TEMPLATE = [{"name": "default", "template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
                {"name": "tool_use", "template": "TOOLS {{ tools | length }} <tool_call>{% for m in messages %}{{ m.content }}{% endfor %}"}]

    def test_b9_tools_have_their_own_template(self):
        def shown(**more):
            tokens = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "q"}], **more})["tokens"]
            return self.server.post("/detokenize", {"tokens": tokens})["prompt"]

        self.assertEqual(shown(), "q")
        self.assertEqual(shown(tools=[tool("f"), tool("g")]), "TOOLS 2 <tool_call>q")

    def test_b13_every_route_counts_alike(self):
        body = {"messages": [{"role": "user", "content": "<x>"}], "tools": [tool("f")]}
        counted = self.server.post("/tokenize", body)["count"]
        used = self.server.post("/v1/chat/completions", {**body, "temperature": 0})["usage"]["prompt_tokens"]
        self.assertEqual(counted, used)


if __name__ == "__main__":
    unittest.main()
