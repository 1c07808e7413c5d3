#!/usr/bin/env python3
"""Asks lathe serve as clients do, over sockets, on the shipped checkpoints."""

import json
import pathlib
import re
import tempfile
import unittest

from serve_util import ANSWER, MESSAGES, QUESTION, Server, ServeCase


class Answers(ServeCase):
    def test_chat_whole(self):
        answer = self.server.post("/v1/chat/completions", {"model": "tiny-gqa", "messages": MESSAGES})
        self.assertRegex(answer["id"], "^chatcmpl-[0-9a-f]{32}$")
        self.assertEqual((answer["object"], answer["model"]), ("chat.completion", "tiny-gqa"))
        (choice,) = answer["choices"]
        self.assertEqual(choice["message"], {"role": "assistant", "content": ANSWER, "refusal": None})
        self.assertEqual((choice["finish_reason"], choice["logprobs"]), ("stop", None))
        usage = answer["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        tokens = self.server.post("/tokenize", {"messages": MESSAGES})
        self.assertEqual(usage["prompt_tokens"], tokens["count"])
        self.assertGreater(answer["timings"]["predicted_per_second"], 0)

    def test_chat_stream_is_the_whole_answer_in_parts(self):
        body = {"messages": MESSAGES, "n": 3, "seed": 5, "temperature": 0.8, "logprobs": True, "top_logprobs": 2,
                "stream_options": {"include_usage": True}}
        whole = self.server.post("/v1/chat/completions", {k: v for k, v in body.items() if k != "stream_options"})
        events = self.server.stream("/v1/chat/completions", body)
        usage = events.pop()
        self.assertEqual((usage["choices"], usage["usage"]["completion_tokens"]), ([], whole["usage"]["completion_tokens"]))
        self.assertEqual({e["object"] for e in events}, {"chat.completion.chunk"})
        seen = []
        for e in events:
            (choice,) = e["choices"]
            if choice["index"] not in seen:
                self.assertEqual(choice["delta"], {"role": "assistant", "content": ""})
                seen.append(choice["index"])
        self.assertEqual(seen, [0, 1, 2])
        for want in whole["choices"]:
            mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == want["index"]]
            self.assertEqual("".join(c["delta"].get("content", "") for c in mine), want["message"]["content"])
            entries = [x for c in mine if c["logprobs"] for x in c["logprobs"]["content"]]
            self.assertEqual(entries, want["logprobs"]["content"])
            self.assertEqual([c["finish_reason"] for c in mine[:-1]], [None] * (len(mine) - 1))
            self.assertEqual((mine[-1]["delta"], mine[-1]["finish_reason"]), ({}, want["finish_reason"]))

    def test_choices_draw_differently_and_repeat(self):
        body = {"prompt": "Rosa has", "max_tokens": 24, "n": 4, "seed": -9, "temperature": 2.0, "ignore_eos": True}
        first = [c["text"] for c in self.server.post("/v1/completions", body)["choices"]]
        self.assertEqual(len(set(first)), 4)
        self.assertEqual([c["text"] for c in self.server.post("/v1/completions", body)["choices"]], first)
        self.assertEqual(self.server.post("/v1/completions", {**body, "n": 1})["choices"][0]["text"], first[0])

    def test_a_shared_prompt_is_computed_once(self):
        prompt = [(7 * i) % 900 + 300 for i in range(2000)]
        before = self.server.metric("lathe_step_seconds_count")
        answer = self.server.post("/v1/completions", {"prompt": prompt, "n": 8, "max_tokens": 2, "ignore_eos": True})
        self.assertEqual(answer["usage"]["prompt_tokens"], 2000)
        self.assertLess(self.server.metric("lathe_step_seconds_count") - before, 8)

    def test_completions_of_several_prompts(self):
        tokens = self.server.post("/tokenize", {"prompt": ["Rosa has 21", "Alice"]})["tokens"]
        texts = self.server.post("/v1/completions", {"prompt": ["Rosa has 21", "Alice"], "n": 2, "temperature": 0, "max_tokens": 5})
        ids = self.server.post("/v1/completions", {"prompt": tokens, "n": 2, "temperature": 0, "max_tokens": 5})
        self.assertEqual([c["index"] for c in texts["choices"]], [0, 1, 2, 3])
        self.assertEqual([c["text"] for c in texts["choices"]], [c["text"] for c in ids["choices"]])
        self.assertEqual(texts["choices"][0]["text"], texts["choices"][1]["text"])

    def test_echo(self):
        body = {"prompt": "Rosa has 21", "echo": True, "temperature": 0, "max_tokens": 4, "ignore_eos": True}
        plain = self.server.post("/v1/completions", {**body, "echo": False})["choices"][0]["text"]
        self.assertEqual(self.server.post("/v1/completions", body)["choices"][0]["text"], "Rosa has 21" + plain)
        events = self.server.stream("/v1/completions", body)
        self.assertEqual(events[0]["choices"][0]["text"], "Rosa has 21")
        self.assertEqual("".join(e["choices"][0]["text"] for e in events), "Rosa has 21" + plain)
        nothing = self.server.post("/v1/completions", {**body, "max_tokens": 0})
        self.assertEqual((nothing["choices"][0]["text"], nothing["usage"]["completion_tokens"]), ("Rosa has 21", 0))
        self.refused("/v1/completions", {**body, "max_tokens": 0, "echo": False}, "max_tokens")

    def test_stop_strings(self):
        body = {"messages": MESSAGES}
        cut = self.server.post("/v1/chat/completions", {**body, "stop": ["zz", "126"]})
        choice = cut["choices"][0]
        self.assertEqual(choice["message"]["content"], ANSWER.split("126")[0])
        self.assertEqual((choice["finish_reason"], choice["matched_stop"]), ("stop", "126"))
        kept = self.server.post("/v1/chat/completions", {**body, "stop": "126", "include_stop_str_in_output": True})
        self.assertEqual(kept["choices"][0]["message"]["content"], ANSWER.split("126")[0] + "126")
        # An answer that ends with the beginning of a stop string keeps it.
        tail = self.server.post("/v1/chat/completions", {**body, "stop": "#### 1056"})
        self.assertEqual(tail["choices"][0]["message"]["content"], ANSWER)
        events = self.server.stream("/v1/chat/completions", {**body, "stop": "126"})
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), ANSWER.split("126")[0])
        self.server.is_alive()

    def test_bad_words(self):
        """The answer has none of a word's tokens in a row, at its start or after a space, however many they are."""
        body = {"messages": MESSAGES, "return_token_ids": True, "temperature": 0, "max_tokens": 60}
        def rows(word):
            return [self.server.post("/tokenize", {"prompt": before + word, "add_special_tokens": False})["tokens"] for before in ("", " ")]
        def has(choice, row):
            ids = choice["token_ids"]
            return any(ids[i:i + len(row)] == row for i in range(len(ids)))
        plain = self.server.post("/v1/chat/completions", body)["choices"][0]
        words = [w for w in sorted(set(re.findall(r"\w+", ANSWER))) if any(has(plain, row) for row in rows(w))]
        self.assertGreater(len(words), 2)
        self.assertTrue(any(len({len(row) for row in rows(w)}) == 2 for w in words), words)
        for bad in ([words[0]], words[:3]):
            choice = self.server.post("/v1/chat/completions", {**body, "bad_words": bad})["choices"][0]
            for word in bad:
                for row in rows(word):
                    self.assertFalse(has(choice, row), (word, choice))
        self.assertEqual(self.server.post("/v1/chat/completions", {**body, "bad_words": []})["choices"][0], plain)
        self.refused("/v1/chat/completions", {**body, "bad_words": ["  "]}, "bad_words[0]")
        self.refused("/v1/chat/completions", {**body, "bad_words": ["a", 3]}, "bad_words[1]")

    def test_allowed_token_ids(self):
        ids = sorted({t for word in ("0", "7", " apples") for t in self.server.post("/tokenize", {"prompt": word, "add_special_tokens": False})["tokens"]})
        body = {"prompt": "Rosa has", "max_tokens": 30, "temperature": 1.5, "seed": 4, "return_token_ids": True, "allowed_token_ids": ids}
        choice = self.server.post("/v1/completions", body)["choices"][0]
        self.assertLessEqual(set(choice["token_ids"]), set(ids))
        self.assertEqual((len(choice["token_ids"]), choice["finish_reason"]), (30, "length"))  # no end token is allowed
        # Together with a constraint both hold.
        regex = self.server.post("/v1/completions", {**body, "regex": "[0-9]{4}"})["choices"][0]
        self.assertRegex(regex["text"], "^[07]{4}$")
        self.assertLessEqual(set(regex["token_ids"]), set(ids))
        self.refused("/v1/completions", {**body, "allowed_token_ids": []}, "allowed_token_ids")
        self.refused("/v1/completions", {**body, "allowed_token_ids": [3, 10**7]}, "allowed_token_ids[1]")

    def test_truncate_prompt_tokens(self):
        ids = [(7 * i) % 900 + 300 for i in range(50)]
        body = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
        want = self.server.post("/v1/completions", {**body, "prompt": ids[-20:]})
        got = self.server.post("/v1/completions", {**body, "prompt": ids, "truncate_prompt_tokens": 20})
        self.assertEqual((got["choices"][0]["text"], got["usage"]["prompt_tokens"]), (want["choices"][0]["text"], 20))
        for most in (50, 4000, -1):
            got = self.server.post("/v1/completions", {**body, "prompt": ids, "truncate_prompt_tokens": most})
            self.assertEqual(got["usage"]["prompt_tokens"], 50)
        echo = {"prompt": "Rosa has 21 apples", "truncate_prompt_tokens": 1, "echo": True, "max_tokens": 0}
        self.assertTrue("Rosa has 21 apples".endswith(self.server.post("/v1/completions", echo)["choices"][0]["text"]))
        chat = {"messages": MESSAGES, "max_tokens": 4, "truncate_prompt_tokens": 5}
        self.assertEqual(self.server.post("/v1/chat/completions", chat)["usage"]["prompt_tokens"], 5)
        for wrong in (0, -2, 10**8):
            self.refused("/v1/completions", {**body, "prompt": ids, "truncate_prompt_tokens": wrong}, "truncate_prompt_tokens")

    def test_b2_large_enums_are_followed_the_same_way_each_time(self):
        words = [f"{'abcdefghij'[i % 10]}{i * 7919 % 10007:05d}{'klmnopqrst'[i * 3 % 10] * (i % 4)}" for i in range(1000)]
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": words}}}
        body = {"messages": MESSAGES, "response_format": form, "max_tokens": 60, "seed": 3, "temperature": 1}
        answers = {self.server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"] for _ in range(4)}
        self.assertEqual(len(answers), 1)
        self.assertIn(json.loads(answers.pop()), words)

    def test_text_logprobs(self):
        answer = self.server.post("/v1/completions", {"prompt": "Rosa has", "max_tokens": 6, "temperature": 0, "logprobs": 3, "ignore_eos": True,
                                                      "skip_special_tokens": False})
        choice = answer["choices"][0]
        lists = choice["logprobs"]
        self.assertEqual({len(v) for v in lists.values()}, {6})
        self.assertEqual("".join(lists["tokens"]), choice["text"])
        for token, value, top, offset in zip(*(lists[k] for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))):
            self.assertEqual(choice["text"][offset:offset + len(token)], token)
            self.assertEqual(top[token], value)
            self.assertEqual(max(top.values()), value)  # greedy

    def test_prompts_have_logprobs(self):
        ids = self.server.post("/tokenize", {"prompt": QUESTION})["tokens"]
        body = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
        answer = self.server.post("/v1/completions", body)["choices"][0]
        lists = answer["logprobs"]
        self.assertEqual({len(v) for v in lists.values()}, {len(ids) + 1})
        self.assertEqual((lists["token_logprobs"][0], lists["top_logprobs"][0]), (None, None))
        self.assertEqual("".join(lists["tokens"]), answer["text"])
        for token, offset in zip(lists["tokens"], lists["text_offset"]):
            self.assertEqual(answer["text"][offset:offset + len(token)], token)
        # What the model says of a prompt's token is what it says of it as an answer.
        for at in (1, 5, len(ids) - 1):
            alone = self.server.post("/v1/completions", {"prompt": ids[:at], "logprobs": 1, "max_tokens": 1, "temperature": 0, "ignore_eos": True,
                                                         "logit_bias": {str(ids[at]): 100}})["choices"][0]["logprobs"]
            self.assertEqual(alone["tokens"][0], lists["tokens"][at])
            self.assertEqual(alone["token_logprobs"][0], lists["token_logprobs"][at])
            self.assertEqual(alone["top_logprobs"][0], lists["top_logprobs"][at])
        # An answer of the likeliest tokens is greedy, as its evaluators see it.
        own = self.server.post("/v1/completions", {**body, "prompt": ids, "echo": False, "max_tokens": 4, "return_token_ids": True})["choices"][0]
        again = self.server.post("/v1/completions", {**body, "prompt": ids + own["token_ids"]})["choices"][0]["logprobs"]
        for i in range(len(ids), len(ids) + 4):
            self.assertEqual(again["token_logprobs"][i], max(again["top_logprobs"][i].values()))
        # vLLM's lists of a prompt, with the same values, beside the answer's own.
        plain = self.server.post("/v1/completions", {**body, "echo": False, "logprobs": 0, "prompt_logprobs": 2})["choices"][0]
        self.assertEqual([len(t) for t in plain["logprobs"]["top_logprobs"]], [1])
        listed = plain["prompt_logprobs"]
        self.assertEqual((len(listed), listed[0]), (len(ids), None))
        for at in range(1, len(ids)):
            ranks = [e["rank"] for e in listed[at].values()]
            self.assertIn(ranks, ([1, 2], [1, 2, None]))
            own = listed[at][str(ids[at])]
            self.assertEqual((own["logprob"], own["decoded_token"]), (lists["token_logprobs"][at], lists["tokens"][at]))
            self.assertEqual(list(listed[at].values())[0]["logprob"], max(lists["top_logprobs"][at].values()))
        self.refused("/v1/completions", {**body, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs")
        self.refused("/v1/completions", {**body, "prompt_logprobs": 21}, "prompt_logprobs")
        events = self.server.stream("/v1/completions", body)
        joined = {k: sum((e["choices"][0]["logprobs"][k] for e in events if e["choices"][0]["logprobs"]), []) for k in lists}
        self.assertEqual(joined, lists)
        nothing = self.server.post("/v1/completions", {**body, "max_tokens": 0})["choices"][0]["logprobs"]
        self.assertEqual(nothing["token_logprobs"], lists["token_logprobs"][:-1])
        several = self.server.post("/v1/completions", {**body, "prompt": [ids, ids[:7]], "n": 2})["choices"]
        self.assertEqual([c["logprobs"]["token_logprobs"][:7] for c in several], [lists["token_logprobs"][:7]] * 4)
        for start in (0, 1, 6, len(ids)):
            info = self.server.post("/generate", {"input_ids": ids, "return_logprob": True, "logprob_start_len": start, "top_logprobs_num": 1,
                                                  "sampling_params": {"max_new_tokens": 1}})["meta_info"]
            self.assertEqual([e[:2] for e in info["input_token_logprobs"]],
                             [[v, t] for v, t in zip(lists["token_logprobs"], ids)][start:])
            self.assertEqual(len(info["input_top_logprobs"]), len(ids) - start)
        self.refused("/generate", {"input_ids": ids, "return_logprob": True, "logprob_start_len": len(ids) + 1}, "logprob_start_len")
        self.refused("/v1/completions", {**body, "prompt": [ids] * 256, "n": 128, "logprobs": 20, "max_tokens": 100}, "logprobs")
        self.server.is_alive()

    def test_generate(self):
        body = {"text": "Rosa has", "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}}
        whole = self.server.post("/generate", {**body, "rid": "mine"})
        self.assertEqual(whole["meta_info"]["id"], "mine")
        self.assertEqual(whole["meta_info"]["finish_reason"], {"type": "length", "length": 6})
        self.assertEqual(len(whole["output_ids"]), 6)
        events = self.server.stream("/generate", body)
        for before, after in zip(events, events[1:]):
            self.assertTrue(after["text"].startswith(before["text"]))
            self.assertIsNone(before["meta_info"]["finish_reason"])
        self.assertEqual((events[-1]["text"], events[-1]["output_ids"]), (whole["text"], whole["output_ids"]))
        parts = self.server.stream("/generate", {**body, "incremental": True})
        self.assertEqual("".join(e["text"] for e in parts), whole["text"])
        self.assertEqual(sum((e["output_ids"] for e in parts), []), whole["output_ids"])
        batch = self.server.post("/generate", {**body, "text": ["Rosa has", "Alice"]})
        self.assertEqual((len(batch), batch[0]["text"]), (2, whole["text"]))
        streamed = self.server.stream("/generate", {**body, "text": ["Rosa has", "Alice"]})
        self.assertEqual({e["index"] for e in streamed}, {0, 1})
        logprobs = self.server.post("/generate", {**body, "return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True})
        info = logprobs["meta_info"]
        self.assertEqual([e[1] for e in info["output_token_logprobs"]], logprobs["output_ids"])
        self.assertEqual([len(e) for e in info["output_top_logprobs"]], [2] * 6)

    def test_parameters_for_each_prompt(self):
        def with_params(params, text):
            return {"text": text, "sampling_params": params}
        each = [{"max_new_tokens": 5, "temperature": 0, "ignore_eos": True},
                {"max_new_tokens": 9, "temperature": 1.3, "sampling_seed": 7, "ignore_eos": True, "top_k": 40},
                {"max_new_tokens": 7, "temperature": 0, "logit_bias": {"40": 100}, "ignore_eos": True}]
        texts = ["Rosa has", "Alice has", "Rosa has"]
        alone = [self.server.post("/generate", with_params(p, t)) for p, t in zip(each, texts)]
        batch = self.server.post("/generate", with_params(each, texts))
        self.assertEqual([b["output_ids"] for b in batch], [a["output_ids"] for a in alone])
        self.assertEqual(batch[2]["output_ids"], [40] * 7)
        stopped = self.server.post("/generate", with_params([{**each[0], "stop": alone[0]["text"][2:4]}, each[0]], ["Rosa has"] * 2))
        self.assertEqual([b["text"] for b in stopped], [alone[0]["text"][:2], alone[0]["text"]])
        self.refused("/generate", with_params(each, texts[:2]), "sampling_params")
        self.refused("/generate", with_params([each[0], each[0]], "Rosa has"), "sampling_params")
        self.refused("/generate", with_params([], texts), "sampling_params")
        self.refused("/generate", with_params([each[0], 3], texts[:2]), "sampling_params[1]")
        self.refused("/generate", with_params([each[0], {"top_p": 7}], texts[:2]), "sampling_params[1].top_p")
        self.refused("/generate", with_params([{"n": 2}, {"n": 1}], texts[:2]), "sampling_params[1].n")
        self.refused("/generate", with_params([{}, {"max_new_tokens": 10**9}], texts[:2]), "sampling_params[1].max_new_tokens",
                     "context_length_exceeded")
        self.server.is_alive()

    def test_logprobs_of_given_tokens(self):
        body = {"text": "Rosa has", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 20,
                "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
        top = self.server.post("/generate", body)["meta_info"]
        ids = [top["output_top_logprobs"][0][19][1], 5, top["output_top_logprobs"][1][0][1]]
        for answer in [self.server.post("/generate", {**body, "token_ids_logprob": ids}),
                       self.server.stream("/generate", {**body, "token_ids_logprob": ids})[-1]]:
            info = answer["meta_info"]
            self.assertEqual(info["output_top_logprobs"], top["output_top_logprobs"])
            for side in ("input", "output"):
                asked = info[f"{side}_token_ids_logprobs"]
                self.assertEqual(len(asked), len(info[f"{side}_token_logprobs"]))
                for entries, likeliest in zip(asked, top[f"{side}_top_logprobs"]):
                    if likeliest is None:
                        self.assertIsNone(entries)
                        continue
                    self.assertEqual([e[1] for e in entries], ids)
                    known = {e[1]: e[0] for e in likeliest}
                    least = min(known.values())
                    for value, token, _ in entries:
                        self.assertTrue(value == known[token] if token in known else value <= least, (value, token))
        self.assertEqual(top["output_token_ids_logprobs"], [])
        self.refused("/generate", {**body, "token_ids_logprob": [-1]}, "token_ids_logprob[0]")
        self.refused("/generate", {**body, "token_ids_logprob": [1, 10**6]}, "token_ids_logprob[1]")
        self.refused("/generate", {**body, "token_ids_logprob": list(range(2000)) * 400}, "token_ids_logprob")

    def test_tokens_and_text(self):
        answer = self.server.post("/tokenize", {"prompt": QUESTION, "return_token_strs": True})
        self.assertEqual("".join(answer["token_strs"]), QUESTION)
        self.assertEqual(answer["count"], len(answer["tokens"]))
        text = self.server.post("/detokenize", {"tokens": answer["tokens"]})
        self.assertEqual((text["prompt"], text["text"]), (QUESTION, QUESTION))
        self.refused("/detokenize", {"tokens": [99999999]}, "tokens[0]")
        self.refused("/tokenize", {}, "prompt", "missing_field")
        info = self.server.call("GET", "/tokenizer_info")[2]
        self.assertEqual((info["eos_token"], info["bos_token"]), ("<eos>", "<bos>"))

    def test_what_is_served(self):
        status, _, models = self.server.call("GET", "/v1/models")
        self.assertEqual((status, models["object"], models["data"][0]["id"]), (200, "list", "tiny-gqa"))
        self.assertEqual(self.server.call("GET", "/v1/models/tiny-gqa")[2], models["data"][0])
        self.assertEqual(self.server.call("GET", "/v1/models/other")[0], 404)
        version = self.server.call("GET", "/version")[2]
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(version["commit"] or "0" * 12, r"^[0-9a-f]{12}$")
        self.assertEqual(self.server.call("GET", "/health")[2], {"status": "ok"})
        self.assertEqual(self.server.call("GET", "/ready")[0], 200)
        self.assertEqual(self.server.call("GET", "/health_generate")[0], 200)
        self.assertTrue(self.server.call("GET", "/model_info")[2]["is_generation"])
        info = self.server.call("GET", "/server_info")[2]
        self.assertIn("inplace", info["plan"])
        self.assertEqual(info["max_logprobs"], "20")
        plan = self.server.call("GET", "/plan")[2]
        self.assertTrue(plan["plan"]["legal"])
        self.assertTrue(any(not cell["legal"] and cell["reasons"] for cell in plan["groups"][0]["matrix"]))


class Markup(unittest.TestCase):
    def test_reasoning_and_tools_by_the_template(self):
        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder) / "template.jinja"
            template.write_text("{{ bos_token }}{# <tool_call> #}{% if tools %}{% endif %}{% for m in messages %}<user>{{ m.content }}{% endfor %}<assistant>"
                                "{% if thinking %}{{ '<think>' }}{% else %}{# </think> #}{% endif %}")
            tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
            with Server("--chat-template", str(template)) as server:
                self.assertEqual(server.call("GET", "/model_info")[2]["tool_call_parser"], "tag")
                self.assertEqual(server.call("GET", "/model_info")[2]["reasoning_parser"], "think")
                body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12}
                plain = server.post("/v1/chat/completions", {**body, "tools": [tool]})["choices"][0]["message"]
                self.assertEqual(plain["content"], ANSWER[:len(plain["content"])])
                # The prompt ends inside reasoning, and the answer never leaves it.
                inside = {**body, "chat_template_kwargs": {"thinking": True}}
                whole = server.post("/v1/chat/completions", inside)
                message = whole["choices"][0]["message"]
                self.assertIsNone(message["content"])
                self.assertEqual(message["reasoning"], message["reasoning_content"])
                self.assertEqual(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], whole["usage"]["completion_tokens"])
                events = server.stream("/v1/chat/completions", inside)
                self.assertEqual("".join(e["choices"][0]["delta"].get("reasoning", "") for e in events), message["reasoning"])
                self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), "")
                raw = server.post("/v1/chat/completions", {**inside, "separate_reasoning": False})["choices"][0]["message"]
                self.assertEqual((raw["content"], "reasoning" in raw), (message["reasoning"], False))
                for tools, param in [([{}], "tools[0].type"), ([{"type": "function"}], "tools[0].function"),
                                     ([{"type": "function", "function": {}}], "tools[0].function.name"), ({}, "tools")]:
                    self.assertEqual(server.post("/v1/chat/completions", {**body, "tools": tools}, 400)["error"]["param"], param)
            forced = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {
                "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}}}
            with Server("--chat-template", str(template), "--reasoning-parser", "none") as none:
                choice = none.post("/v1/chat/completions", {**body, "max_tokens": 800, "tools": [forced], "tool_choice": "required",
                                                            "parallel_tool_calls": False})["choices"][0]
                self.assertEqual(choice["finish_reason"], "tool_calls")
                call = choice["message"]["tool_calls"][0]["function"]
                self.assertEqual((call["name"], json.loads(call["arguments"]) in ({"x": 1}, {"x": 2})), ("f", True))
            log = "".join(server.log)
            self.assertIn("reasoning think: the chat template has </think>\n", log)
            self.assertIn("tools     tag: the chat template has <tool_call>\n", log)
            with Server("--chat-template", str(template), "--tool-call-parser", "deepseek") as server:
                self.assertIn("warning   --tool-call-parser deepseek, but the chat template asks for tag: calls may stay text\n", "".join(server.log))
        with Server() as server:
            error = server.post("/v1/chat/completions", {"messages": MESSAGES, "tools": [tool]}, 400)["error"]
            self.assertEqual((error["param"], error["code"]), ("tools", "unsupported_field"))

    def test_b9_tools_that_the_template_ignores_are_refused(self):
        # Also where a flag says how calls look: the model would not see the tools.
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        with Server("--tool-call-parser", "tag") as server:
            error = server.post("/v1/chat/completions", {"messages": MESSAGES, "tools": [tool]}, 400)["error"]
            self.assertEqual((error["param"], error["code"]), ("tools", "unsupported_field"))
            self.assertIn("the model's chat template never reads `tools`", error["message"])
            body = {"messages": MESSAGES, "tools": [tool], "tool_choice": "none", "max_tokens": 1}
            server.post("/v1/chat/completions", body)


class LatentModel(unittest.TestCase):
    def test_a_sparse_model_answers_the_same_way(self):
        with Server(model="models/tiny-v32") as server:
            whole = server.post("/v1/chat/completions", {"messages": MESSAGES})["choices"][0]["message"]["content"]
            self.assertTrue(whole.endswith("#### 105"), whole)
            events = server.stream("/v1/chat/completions", {"messages": MESSAGES})
            self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), whole)


if __name__ == "__main__":
    unittest.main(verbosity=1)
