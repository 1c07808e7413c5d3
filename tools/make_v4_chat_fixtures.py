#!/usr/bin/env python3
"""Writes tests/data/templates/deepseek_v4.json: DeepSeek V4's prompts, written by DeepSeek's own program.

The program is encoding/encoding_dsv4.py in a checkpoint's repository; its two generations differ. The conversations are here. SHAPES
has the shapes of the program's own tests, which are written in every combination of mode, tools, dropping and effort.

    python3 tools/make_v4_chat_fixtures.py --preview V4-FLASH/encoding/encoding_dsv4.py \\
        --official V4-FLASH-0731/encoding/encoding_dsv4.py
"""

import argparse
import copy
import importlib.util
import itertools
import json
import pathlib

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/templates/deepseek_v4.json"

TOOLS = [
    {"type": "function", "function": {
        "name": "tide", "description": "High water at a harbour — in mètres",
        "parameters": {"type": "object", "required": ["harbour"], "properties": {
            "harbour": {"type": "string"}, "days": {"type": "integer", "default": 1},
            "limit": {"type": "number", "maximum": 2.50}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def answer(text, reasoning=None, **more):
    return {"role": "assistant", "content": text, **({"reasoning_content": reasoning} if reasoning else {}), **more}


def result(id, text):
    return {"role": "tool", "tool_call_id": id, "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
CALLS = [call("b", "now", "{}"),
         call("a", "tide", '{"harbour": "Saint-Malo \\"Vieux\\"", "days": 2, "limit": 1.50, "deep": {"x": [1, null, "é"]}}')]
CONVERSATIONS = {
    "one": [user("Hi")],
    "turns": [SYSTEM, user("Hi"), answer("Hello", "greet"), user("2+2?")],
    "two users": [user("a"), user("b")],
    "empty system": [{"role": "system", "content": ""}, user("a")],
    "reminder": [user("a"), {"role": "latest_reminder", "content": "r"}],
    "reminder before": [SYSTEM, {"role": "latest_reminder", "content": "today"}, user("a"), answer("b", "c"), user("d")],
    "developer": [SYSTEM, {"role": "developer", "content": "old"}, answer("x", "y"),
                  {"role": "developer", "content": "new", "tools": TOOLS}],
    "developer dropped": [{"role": "developer", "content": "old"}, answer("x", "y"), user("z")],
    "schema": [{"role": "system", "content": "s", "response_format": {"type": "object", "é": [1, 2.0]}}, user("a")],
    "unfinished": [user("a"), answer("b", "c", wo_eos=True)],
    "calls": [SYSTEM, user("When is high water?"), answer("", "ask", tool_calls=CALLS), result("a", "05:40"),
              result("b", "12:05"), user("And?"), answer("Soon.", "so"), user("Thanks")],
    "results end": [user("t"), answer("Let me see.", "r", tool_calls=CALLS[:1]), result("b", "12:05")],
    "text as arguments": [user("t"), answer("", tool_calls=[call("c", "tide", "not JSON")]), result("", "?")],
    **{task: [user("first"), answer("x", "y"), user("a", task=task)]
       for task in ("action", "query", "authority", "domain", "title", "read_url")},
    "task answered": [user("a", task="title"), answer("A title"), user("b"), user("c")],
}
SHAPES = {
    "agent": [SYSTEM, user("When is high water at Ystad?"),
              answer(None, "A question about tides; the tool knows.",
                     tool_calls=[call("t1", "tide", '{"harbour": "Ystad", "days": 1}')]),
              result("t1", '{"high": ["05:40", "18:05"], "metres": 0.3}'),
              answer("At 05:40 and at 18:05, of some 30 cm — “högvatten”.", "Two times; give both.")],
    "small talk": [SYSTEM, user("Good morning"), answer("Good morning! What shall we do?", "A greeting."),
                   user("Which is the longest river of Sweden?"), answer("The Klarälven–Göta älv.", "Klarälven and Göta älv.")],
    "research": [{"role": "system", "content": "Svara kort.\n你好"}, {"role": "latest_reminder", "content": "2026-11-26,torsdag,Malmö,App"},
                 {"role": "developer", "content": "Får man meta här?\n\nCite as 【{id}†L{line}】", "tools": TOOLS},
                 answer("", "Sök först.", tool_calls=[{"type": "function", "function": {
                     "name": "tide", "arguments": '{"harbour": "Malmö || Öresund"}'}}]),
                 {"role": "tool", "content": "[0]"}, answer("Ja, med kort.", "Nu svaret.", tool_calls=[])],
    "quick task": [{"role": "system", "content": "You help travellers.\nIt is Thursday."},
                   {"role": "latest_reminder", "content": "2026-11-26,Malmö"}, user("Is Kullaberg worth a day?"),
                   answer("Yes.\n\n| what | time |\n| :--- | ---: |\n| caves | 2 h |\n\n### Note\n\n- **Wind**: take a coat 🧥.", mask=1),
                   user("Which other cliffs are there?", task="action"), answer("Search")],
}
EFFORTS = {"preview": (None, "high", "max"), "official": (None, "low", "high", "max")}
MODES = [{"thinking": False}, {"thinking": True}, {"thinking": True, "drop_thinking": False}]


def load(path):
    spec = importlib.util.spec_from_file_location("encoding", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prompt(encoding, messages, variables):
    messages = copy.deepcopy(messages)
    if "tools" in variables:
        system = next((m for m in messages if m["role"] == "system"), None)
        if system is None:
            system = {"role": "system", "content": ""}
            messages.insert(0, system)
        system["tools"] = variables["tools"]
    return encoding.encode_messages(messages, thinking_mode="thinking" if variables["thinking"] else "chat",
                                    drop_thinking=variables.get("drop_thinking", True),
                                    reasoning_effort=variables.get("reasoning_effort"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preview", required=True)
    parser.add_argument("--official", required=True)
    args = parser.parse_args()
    encodings = {"preview": load(args.preview), "official": load(args.official)}
    cases, lines, prompts = [], [], []

    def number(value, known):
        if value not in known:
            known.append(value)
        return known.index(value)

    def add(generation, name, messages, variables):
        text = prompt(encodings[generation], messages, variables)
        cases.append({"encoding": generation, "conversation": name, "tools": "tools" in variables,
                      "variables": {k: v for k, v in variables.items() if k != "tools"},
                      "prompt": number([number(line, lines) for line in text.split("\n")], prompts)})

    for generation in encodings:
        for name, messages in CONVERSATIONS.items():
            runs = list(MODES)
            if name in ("one", "calls", "results end"):
                runs += [{**mode, "tools": TOOLS} for mode in MODES[:2]]
            if name in ("one", "turns"):
                efforts = ("high", "max") if generation == "preview" else ("low", "high", "max")
                runs += [{**mode, "reasoning_effort": e} for mode in MODES[:2] for e in efforts]
            elif generation == "official":
                runs = runs[1:2]
            for variables in runs:
                add(generation, name, messages, variables)
        for name, messages in SHAPES.items():
            for thinking, tools, drop, effort in itertools.product((False, True), ({}, {"tools": TOOLS}), (True, False), EFFORTS[generation]):
                more = {"reasoning_effort": effort} if effort else {}
                add(generation, name, messages, {"thinking": thinking, "drop_thinking": drop, **tools, **more})
    # One value or case to a line. A prompt is the numbers of its lines, as prompts share most of theirs.
    rows = {"tools": TOOLS, "lines": lines, "prompts": prompts, "cases": cases}
    parts = [f'"{key}": [\n' + ",\n".join(json.dumps(v, ensure_ascii=False) for v in values) + "\n]" for key, values in rows.items()]
    told = ",\n".join(f"{json.dumps(n)}: {json.dumps(v, ensure_ascii=False)}" for n, v in (CONVERSATIONS | SHAPES).items())
    OUT.write_text("{\n" + ",\n".join([*parts, '"conversations": {\n' + told + "\n}"]) + "\n}\n")
    print(f"{OUT}: {len(cases)} cases, {len(prompts)} prompts")


if __name__ == "__main__":
    main()
