#!/usr/bin/env python3
"""Grammars of answers against Python's own `re` and against `jsonschema` (PyPI): grammar_test.py CHECK LATHE [SEED]

Random regular expressions allow what `re` matches. Random schemas: texts that masks lead to are valid, valid
documents are allowed, and invalid ones are not. Then a real model behind a server, which is made to like newlines best. The seed is printed; LATHE_TEST_SEED
sets it.
"""

import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest

import jsonschema

CHECK = sys.argv.pop(1)
from serve_util import MESSAGES, Server  # takes the command's path

REAL_TOOLS = pathlib.Path(__file__).parent / "data/schemas/mcp_tools.json"
SEED = int(os.environ.get("LATHE_TEST_SEED", random.randrange(10**6)))
SCALE = float(os.environ.get("LATHE_TEST_SCALE", "1"))


class Checker:
    def __init__(self):
        self.process = subprocess.Popen([CHECK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Draw:
    """Random expressions, schemas and documents."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def regex(self, depth: int = 0) -> str:
        r = self.random
        kind = r.randrange(9 if depth < 4 else 3)
        if kind == 0:
            return r.choice("abc1")
        if kind == 1:
            return r.choice(["[ab]", "[^a]", ".", r"\d", r"\w", "[a-c]", r"\.", "é", r"\u00e9", r"\x61", r"\s", r"[\d-]", r"\D", r"[^\w]",
                             r"\S", "[€-😀]", "[^é-€]", r"\{", "[.]", r"\-", r"[\]a]"])
        if kind == 2:
            return r.choice(["a", "b", "-"])
        if kind in (3, 4):
            return self.regex(depth + 1) + self.regex(depth + 1)
        if kind == 5:
            return "(" + self.regex(depth + 1) + "|" + self.regex(depth + 1) + ")"
        if kind == 6:
            return "(?:" + self.regex(depth + 1) + ")" + r.choice(["*", "+", "?", "*?", "+?", "??"])
        if kind == 7:
            return "(" + self.regex(depth + 1) + "){%d,%d}" % (r.randrange(3), r.randrange(3, 5))
        return "(?P<n%d>" % r.randrange(10**9) + self.regex(depth + 1) + "){%d}" % r.randrange(1, 3)

    def text(self, most: int = 9) -> str:
        return "".join(self.random.choice("abc1 .é€😀\n-_{,]A") for _ in range(self.random.randrange(most)))

    def schema(self, depth: int = 0) -> object:
        r = self.random
        kind = r.choice(["string", "integer", "number", "boolean", "null", "enum", "const", "lengths", "bounds", "pattern", "format", "decimals",
                         "multiples", "rules"]
                        + ["object", "array", "anyOf", "oneOf", "tuple", "types", "ref", "names", "counted", "unique", "contains", "all", "not",
                           "if", "untyped", "unevaluated"] * (depth < 3))
        if kind in ("string", "integer", "number", "boolean", "null"):
            return {"type": kind}
        if kind == "enum":
            return {"enum": [self.value() for _ in range(r.randrange(1, 4))]}
        if kind == "const":
            return {"const": self.value()}
        if kind == "lengths":
            least = r.randrange(4)
            return {"type": "string", "minLength": least, "maxLength": least + r.randrange(60)}
        if kind == "bounds":
            least = r.choice([r.randrange(-200, 200), r.randrange(-10**12, 10**12)])
            out = {"type": "integer", r.choice(["minimum", "exclusiveMinimum"]): least}
            out[r.choice(["maximum", "exclusiveMaximum"])] = least + r.choice([3, 50, 12345])
            return out
        if kind == "pattern":
            return {"type": "string", "pattern": r.choice(["^[a-c]{2,5}$", "ab+", r"^\d{3}-\d{2}$", "^(x|yy)*$", "^[^\"\\\\]", "é$", "a|^b|c$"])}
        if kind == "format":
            return {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"])}
        if kind == "object":
            names = r.sample(["a", "b", "ab", "c d", "é", "q\"", "", "\n"], r.randrange(4))
            out = {"type": "object", "properties": {n: self.schema(depth + 1) for n in names}}
            out["required"] = [n for n in names if r.random() < 0.5]
            more = r.choice([False, False, True, None, "schema"])
            if more == "schema":
                out["additionalProperties"] = self.schema(depth + 1)
            elif more is not None:
                out["additionalProperties"] = more
            return out
        if kind == "array":
            out = {"type": "array", "items": self.schema(depth + 1)}
            if r.random() < 0.5:
                out["minItems"] = r.randrange(3)
            if r.random() < 0.5:
                out["maxItems"] = out.get("minItems", 0) + r.randrange(4)
            return out
        if kind == "tuple":
            return {"type": "array", "prefixItems": [self.schema(depth + 1) for _ in range(r.randrange(1, 3))], "items": r.choice([False, True])}
        if kind == "types":
            return {"type": r.sample(["string", "integer", "boolean", "null", "array"], 2), "maxItems": 2, "minLength": 1}
        if kind == "ref":
            return {"$ref": "#/$defs/shared"}
        if kind == "decimals":
            least = r.randrange(-300, 300) / 100
            out = {"type": "number", r.choice(["minimum", "exclusiveMinimum"]): least}
            out[r.choice(["maximum", "exclusiveMaximum"])] = round(least + r.choice([0.25, 3, 120.5]), 2)
            return out
        if kind == "multiples":
            return {"type": r.choice(["integer", "number"]), "multipleOf": r.choice([2, 3, 7, 0.5, 0.25, 12, 5000]), "minimum": -30}
        if kind == "rules":
            out = {"type": "string", "pattern": r.choice(["^[a-c]+$", "b", "^a", "c$"]), "maxLength": r.randrange(1, 60)}
            return out | r.choice([{"minLength": 1}, {"not": {"enum": ["a", "b", "ab"]}}, {"allOf": [{"pattern": "[ab]"}]}])
        if kind == "names":
            out = {"type": "object", "patternProperties": {"^a": self.schema(depth + 1), "b$": self.schema(depth + 1)}}
            return out | r.choice([{"additionalProperties": False}, {"propertyNames": {"maxLength": 2}}, {"properties": {"ab": True}}])
        if kind == "counted":
            least = r.randrange(3)
            return {"type": "object", "properties": {n: self.schema(depth + 1) for n in ("a", "b", "c")}, "minProperties": least,
                    "maxProperties": least + r.randrange(2), "additionalProperties": r.choice([False, True])}
        if kind == "unique":
            return {"type": "array", "items": r.choice([{"enum": ["a", 1, None, [1]]}, {"type": "boolean"},
                                                        {"type": "integer", "minimum": 0, "maximum": 3}]),
                    "uniqueItems": True, "minItems": r.randrange(2)}
        if kind == "contains":
            out = {"type": "array", "contains": r.choice([{"type": "integer"}, {"const": "a"}, {"minimum": 2}]), "maxItems": 4}
            out |= r.choice([{}, {"minContains": 2}, {"maxContains": 2}, {"minContains": 0, "maxContains": 1}])
            return out | r.choice([{}, {"unevaluatedItems": self.schema(depth + 2)}, {"prefixItems": [True], "unevaluatedItems": False}])
        if kind == "all":
            return {"allOf": [self.schema(depth + 1), r.choice([{"type": ["integer", "string", "object"]}, {"minLength": 1}, {"minimum": 0},
                                                                {"required": ["a"]}, {"maxItems": 2}, True])]}
        if kind == "not":
            return {"not": r.choice([{"enum": [1, "a", None, True]}, {"type": "string"}, {"type": ["object", "integer"]}, {"minimum": 1},
                                     {"required": ["a"]}, {"pattern": "b"}, {"maxItems": 1}, {"const": 0}, {"properties": {"a": {"type": "string"}}}, self.names()])}
        if kind == "if":
            return {"if": r.choice([{"type": "object"}, {"required": ["a"]}, {"properties": {"a": {"const": 1}}}, {"minimum": 3}, self.names()]),
                    "then": r.choice([{"required": ["b"]}, {"maximum": 9}, True]), "else": r.choice([{"type": ["array", "string"]}, {"maxLength": 2}])}
        if kind == "untyped":
            return r.choice([{"minLength": 2}, {"maximum": 4}, {"required": ["b"]}, {"items": {"type": "null"}}, {"pattern": "^b"},
                             {"dependentRequired": {"a": ["b"]}}, {"additionalProperties": {"type": "integer"}}])
        if kind == "unevaluated":
            return {"type": "object", "properties": {"a": self.schema(depth + 1)},
                    "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {"properties": {"c": True}}],
                    "unevaluatedProperties": False}
        return {kind: [self.schema(depth + 1) for _ in range(r.randrange(1, 4))]}

    def names(self) -> dict:
        """About members by their names."""
        r = self.random
        value = r.choice([False, {"type": "integer"}, {"type": ["string", "null"]}])
        return r.choice([{"additionalProperties": value}, {"properties": {"a": True, "b": {"type": "string"}}, "additionalProperties": value},
                         {"patternProperties": {"b$": value, "^a": {"type": "integer"}}}, {"propertyNames": {"maxLength": 1}},
                         {"propertyNames": {"enum": ["a", "ab"]}}, {"properties": {"ab": True}, "unevaluatedProperties": value},
                         {"patternProperties": {"^a": True}, "additionalProperties": value}])

    def root(self) -> dict:
        return {"anyOf": [self.schema()], "$defs": {"shared": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/shared"}, {"type": "null"}]},
                                                               "maxItems": 2}}}

    def small_value(self, depth: int = 0) -> object:
        """Such as the schemas speak of."""
        r = self.random
        kind = r.randrange(10 if depth < 2 else 6)
        if kind < 2:
            return r.choice([0, 1, 2, 3, -1, 12, 0.5, 2.25, -2.5, 7, 40])
        if kind < 4:
            return r.choice(["", "a", "b", "c", "ab", "bc", "abc", "cb", "aabb", "2024-02-29", "123-45"])
        if kind < 6:
            return r.choice([None, True, False, "a", 1])
        if kind < 8:
            return [self.small_value(depth + 1) for _ in range(r.randrange(4))]
        return {n: self.small_value(depth + 1) for n in r.sample(["a", "b", "c", "ab", "é"], r.randrange(4))}

    def value(self, depth: int = 0) -> object:
        r = self.random
        kind = r.randrange(8 if depth < 3 else 5)
        if kind == 0:
            return r.choice([None, True, False])
        if kind in (1, 2):
            return r.choice([0, -1, 7, 10**15, r.randrange(-300, 300)])
        if kind == 3:
            return r.choice([0.5, -2.25, 1e30, 1.5e-7])
        if kind == 4:
            return self.text(6) + r.choice(["", "\"", "\\", "\t"])
        if kind == 5:
            return [self.value(depth + 1) for _ in range(r.randrange(4))]
        return {self.text(4): self.value(depth + 1) for _ in range(r.randrange(4))}


def read(text):
    """The value, and whether an object has a name twice."""
    repeats = []

    def pairs(members):
        if len(dict(members)) != len(members):
            repeats.append(members)
        return dict(members)

    return json.loads(text, object_pairs_hook=pairs), bool(repeats)


def spellings(value):
    """A value in all orders of its members."""
    if isinstance(value, list):
        return ["[" + ", ".join(items) + "]" for items in itertools.product(*map(spellings, value))]
    if isinstance(value, dict):
        return ["{" + ", ".join(json.dumps(k, ensure_ascii=False) + ": " + v for k, v in zip(order, values)) + "}"
                for order in itertools.permutations(value) for values in itertools.product(*(spellings(value[k]) for k in order))]
    return [json.dumps(value, ensure_ascii=False)]


class Grammars(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"LATHE_TEST_SEED={SEED}", file=sys.stderr)
        cls.checker = Checker()

    @classmethod
    def tearDownClass(cls):
        cls.checker.close()

    def test_regular_expressions_are_python_s(self):
        draw = Draw(SEED)
        matches = 0
        for _ in range(int(700 * SCALE)):
            pattern = draw.regex()
            texts = [draw.text() for _ in range(30)]
            got = self.checker.ask(regex=pattern, texts=texts)
            if isinstance(got, dict):  # no text at all
                self.assertIn("none does", got["error"], (SEED, pattern))
                continue
            python = re.compile(pattern, re.ASCII)
            for text, allowed in zip(texts, got):
                self.assertEqual(allowed, python.fullmatch(text) is not None, (SEED, pattern, text))
                matches += allowed
        self.assertGreater(matches, 300 * SCALE)

    def test_walks_are_valid_and_valid_documents_are_allowed(self):
        draw = Draw(SEED + 1)
        walks = documents = 0
        for i in range(int(250 * SCALE)):
            schema = draw.root()
            one_of = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))  # as docs/server.md says
            validator = jsonschema.Draft202012Validator(one_of, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
            texts = self.checker.ask(schema=schema, walks=4, seed=SEED + i)
            if isinstance(texts, dict):
                self.assertRegex(texts["error"], "none does|allows none|items of at most 64 values", (SEED, schema))
                continue
            for text in texts:
                if text is None:
                    continue
                walks += 1
                value, repeats = read(text)
                if repeats:  # names that the schema does not have may repeat, and hide each other
                    continue
                validator.validate(value)
                # What json.dumps() makes of it is the same value, and allowed with its space.
                documents += 1
                for spelled in (json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":")), json.dumps(value, indent=2)):
                    if re.search(r"[0-9][eE]|\d{15}|\. ?\d{17}|\n {20}", spelled) or '"' + "\\u" in spelled:
                        continue  # numbers that Python spells in other digits; names in longer spellings
                    if not self.checker.ask(schema=schema, texts=[spelled])[0]:
                        self.assertRegex(spelled, r"\\u[0-9a-f]{4}", (SEED, schema, spelled))
        self.assertGreater(walks, 300 * SCALE)

    def test_tools_of_real_servers(self):
        tools = walks = 0
        for server in json.loads(REAL_TOOLS.read_text()).values():
            for name, schema in server["tools"].items():
                tools += 1
                texts = self.checker.ask(schema=schema, walks=4, seed=SEED + tools)
                self.assertNotIsInstance(texts, dict, (name, texts))
                for text in texts:
                    if text is None:
                        continue
                    walks += 1
                    value, repeats = read(text)
                    if not repeats:  # some lists of items are as in draft 7
                        jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER).validate(value)
        self.assertEqual(tools, 51)
        self.assertGreater(walks, 100)

    def test_values_are_judged_as_jsonschema_does(self):
        draw = Draw(SEED + 3)
        judged = {True: 0, False: 0}
        for _ in range(int(400 * SCALE)):
            schema = draw.root()
            if '"hostname"' in json.dumps(schema):  # jsonschema takes the empty text for one
                continue
            any_of = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))
            values = [draw.small_value() for _ in range(20)]
            orders = [spellings(v) for v in values]
            got = self.checker.ask(schema=schema, texts=[t for o in orders for t in o])
            if isinstance(got, dict):
                self.assertRegex(got["error"], "none does|allows none|items of at most 64 values", (SEED, schema))
                continue
            at = 0
            for value, order in zip(values, orders):
                accepted = any(got[at:at + len(order)])
                at += len(order)
                exact, loose = (jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).is_valid(value)
                                for s in (schema, any_of))
                if exact == loose or "not" not in json.dumps(schema):  # under `not`, more is less
                    self.assertFalse(exact and not accepted, (SEED, schema, value))
                    self.assertFalse(accepted and not (loose or exact), (SEED, schema, value))
                judged[exact] += 1
        self.assertGreater(min(judged.values()), 500 * SCALE)

    def test_any_json_is_an_object_or_not(self):
        draw = Draw(SEED + 2)
        for _ in range(int(300 * SCALE)):
            value = draw.value()
            spelled = json.dumps(value, ensure_ascii=draw.random.random() < 0.5, indent=draw.random.choice([None, 1]))
            spelled = spelled.replace("e+", "e")
            got = self.checker.ask(schema=True, texts=[spelled])[0], self.checker.ask(schema={"type": "object"}, texts=[spelled])[0]
            self.assertEqual(got, (True, isinstance(value, dict)), (SEED, spelled))


SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                      "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
     "required": ["name", "age"], "additionalProperties": False},
    {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 2, "maxItems": 3},
    {"anyOf": [{"const": {"k": [1, None]}}, {"type": "string", "pattern": "^[a-f]{4}$"}]},
]


class RealModel(unittest.TestCase):
    def test_a_model_that_likes_newlines_best(self):
        with Server(model="models/tiny-v32") as server:
            newlines = server.post("/tokenize", {"prompt": "\n", "add_special_tokens": False})["tokens"]
            for bias in ({}, {str(newlines[0]): 100}):
                for seed, schema in enumerate(SCHEMAS * 2):
                    answer = server.post("/v1/chat/completions", {
                        "messages": MESSAGES, "max_tokens": 1200, "temperature": 2, "seed": seed, "logit_bias": bias,
                        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}})
                    choice = answer["choices"][0]
                    self.assertEqual(choice["finish_reason"], "stop", choice)
                    jsonschema.validate(json.loads(choice["message"]["content"]), schema)
            for choice in server.post("/v1/completions", {"prompt": "Is it?", "n": 4, "max_tokens": 50, "temperature": 1.5,
                                                          "structured_outputs": {"choice": ["yes", "no"]}})["choices"]:
                self.assertIn(choice["text"], ("yes", "no"))


if __name__ == "__main__":
    unittest.main()
