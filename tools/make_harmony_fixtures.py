#!/usr/bin/env python3
"""Writes tests/data/templates/harmony.json: gpt-oss's prompts, as the package openai-harmony renders them.

    pip install openai-harmony bpe-openai
    python3 tools/make_harmony_fixtures.py

openai-harmony downloads its vocabulary unless TIKTOKEN_ENCODINGS_BASE names a folder with o200k_base.tiktoken; bpe-openai has that file in its
data. The conversations are here, in the shape of chat requests; to_harmony() says which messages they are. The texts of special tokens in
the prompts give the package's token ids again, which is checked, so the tests compare texts.
"""

import gzip
import importlib.util
import json
import os
import pathlib
import tempfile

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/templates/harmony.json"
DATE = "2025-06-28"


def load_encoding():
    import openai_harmony

    if "TIKTOKEN_ENCODINGS_BASE" not in os.environ:
        package = importlib.util.find_spec("bpe_openai")
        if package is not None:
            folder = pathlib.Path(tempfile.mkdtemp())
            data = pathlib.Path(package.origin).parent / "data/o200k_base.tiktoken.gz"
            (folder / "o200k_base.tiktoken").write_bytes(gzip.decompress(data.read_bytes()))
            os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    return openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def user(text):
    return {"role": "user", "content": text}


def answer(text, reasoning=None):
    return {"role": "assistant", "content": text} | ({"reasoning_content": reasoning} if reasoning else {})


def calls(*functions, text=None, reasoning=None):
    return answer(text, reasoning) | {"tool_calls": [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}} for id, name, arguments in functions]}


def result(id, text):
    return {"role": "tool", "tool_call_id": id, "content": text}


def function(name, description=None, **more):
    return {"type": "function", "function": {"name": name} | ({"description": description} if description is not None else {}) | more}


WEATHER = function("get_weather", "Gets the current weather.\r\nOf one place.\n", parameters={
    "type": "object", "description": "Where and when.", "required": ["location"], "properties": {
        "location": {"type": "string", "description": "City and state, e.g. \"San Francisco, CA\"", "title": "Place", "examples": ["Oslo", 3, "Rome"]},
        "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "default": 1}, "exact": {"type": "boolean", "nullable": True, "default": False},
        "note": {"type": ["string", "null"], "default": "none"}, "scale": {"type": "number", "default": 0.5}}})
NESTED = function("plan", "Plans.", parameters={"type": "object", "properties": {
    "steps": {"type": "array", "items": {"type": "object", "properties": {"what": {"type": "string"}, "when": {"type": "array", "items": {"type": "number"}}},
                                         "required": ["what"], "description": "A step."}},
    "tags": {"type": "array"}, "any": {}, "odd": {"type": "custom"}, "inner": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "choice": {"oneOf": [{"type": "string", "description": "by name", "default": "a"}, {"type": "number", "nullable": True, "default": 2}],
               "description": "Which one.", "default": "b"},
    "same": {"oneOf": [{"type": "string", "enum": ["p", "q"], "default": "p", "description": "Same."}, {"type": "object", "properties": {"y": {"type": "string"}}}],
             "description": "Same."}}})
DEEP = function("deep", "", parameters={"oneOf": [{"type": "string", "description": "one", "default": "x"}, {"type": "object", "properties": {}}]})
PLAIN = function("get_location", "Gets the user's location.")
TOOLS = [WEATHER, PLAIN]

WEATHER_CALL = ("call_1", "get_weather", '{"location":"Tokyo"}')
CONVERSATIONS = {
    "question": [user("What is 2 + 2?")],
    "system": [{"role": "system", "content": "Answer in riddles."}, user("Who?")],
    "developer": [{"role": "developer", "content": "# Title\n\n- a"}, user("Who?"), {"role": "developer", "content": "Now plain."}, user("Who?")],
    "empty system": [{"role": "system", "content": ""}, user("Who?")],
    "two turns": [user("a"), answer("b", "because"), user("c")],
    "three turns": [user("a"), answer("b", "one"), user("c"), answer("d", "two"), user("e")],
    "answer last": [user("a"), answer("b", "because")],
    "called": [user("Weather in Tokyo?"), calls(WEATHER_CALL, reasoning="Use the tool."), result("call_1", '{"sunny": true}')],
    "called and told": [user("Weather?"), calls(WEATHER_CALL, text="I will look.", reasoning="Use it."), result("call_1", "20"), answer("20 degrees.", "Done.")],
    "asked again": [user("Weather?"), calls(WEATHER_CALL, reasoning="Use it."), result("call_1", "20"), answer("20 degrees.", "Done."), user("And now?")],
    "calls again": [user("a"), answer("b", "one"), user("Weather?"), calls(WEATHER_CALL, reasoning="two"), result("call_1", "20")],
    "two calls": [user("Both?"), calls(WEATHER_CALL, ("call_2", "get_location", "{}")), result("call_2", "Oslo"), result("call_1", "20")],
    "marks": [user("What does é mean, and 东京?"), answer("\n ok \n")],
}
CASES = [*((name, TOOLS if "call" in name or "asked" in name else [], {}) for name in CONVERSATIONS),
         *(("system", [], {"reasoning_effort": effort}) for effort in ("low", "medium", "high")),
         ("question", TOOLS, {}), ("system", TOOLS, {"reasoning_effort": "high"}), ("question", [NESTED], {}), ("question", [DEEP, PLAIN], {}),
         ("question", [], {"model_identity": "You are a bot.", "knowledge_cutoff": "2030-01"})]


def to_harmony(messages, tools, variables):
    import openai_harmony as h

    system = h.SystemContent.new().with_conversation_start_date(DATE)
    if "reasoning_effort" in variables:
        system = system.with_reasoning_effort(h.ReasoningEffort[variables["reasoning_effort"].upper()])
    if "model_identity" in variables:
        system = system.with_model_identity(variables["model_identity"])
    if "knowledge_cutoff" in variables:
        system = system.with_knowledge_cutoff(variables["knowledge_cutoff"])
    out = [h.Message.from_role_and_content(h.Role.SYSTEM, system)]
    described = [h.ToolDescription.new(t["function"]["name"], t["function"].get("description", ""), parameters=t["function"].get("parameters")) for t in tools]
    rest = list(messages)
    developer = h.DeveloperContent.new()
    if rest[0]["role"] in ("system", "developer"):
        developer = developer.with_instructions(rest.pop(0)["content"])
    if described:
        developer = developer.with_function_tools(described)
    if described or len(rest) < len(messages):
        out.append(h.Message.from_role_and_content(h.Role.DEVELOPER, developer))
    names = {}
    for m in rest:
        if m["role"] == "user":
            out.append(h.Message.from_role_and_content(h.Role.USER, m["content"]))
        elif m["role"] in ("system", "developer"):
            out.append(h.Message.from_role_and_content(h.Role.DEVELOPER, h.DeveloperContent.new().with_instructions(m["content"])))
        elif m["role"] == "tool":
            author = h.Author.new(h.Role.TOOL, "functions." + names[m["tool_call_id"]])
            out.append(h.Message.from_author_and_content(author, m["content"]).with_channel("commentary").with_recipient("assistant"))
        else:
            says = lambda channel, text: h.Message.from_role_and_content(h.Role.ASSISTANT, text).with_channel(channel)
            if m.get("reasoning_content"):
                out.append(says("analysis", m["reasoning_content"]))
            if "tool_calls" not in m:
                out.append(says("final", m["content"]))
            elif m["content"]:
                out.append(says("commentary", m["content"]))
            for c in m.get("tool_calls", []):
                f = c["function"]
                names[c["id"]] = f["name"]
                out.append(says("commentary", f["arguments"]).with_recipient("functions." + f["name"]).with_content_type("json"))
    return h.Conversation.from_messages(out)


def main():
    import openai_harmony as h

    encoding = load_encoding()
    cases = []
    for name, tools, variables in CASES:
        messages = CONVERSATIONS[name]
        ids = encoding.render_conversation_for_completion(to_harmony(messages, tools, variables), h.Role.ASSISTANT)
        prompt = encoding.decode_utf8(ids)
        assert encoding.encode(prompt, allowed_special="all") == ids, name
        cases.append({"name": name, "messages": messages, "tools": tools, "variables": variables, "prompt": prompt})
    OUT.write_text(json.dumps({"date": DATE, "cases": cases}, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(cases)} prompts, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
