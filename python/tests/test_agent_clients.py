"""The openai and anthropic packages against /v1/responses and /v1/messages of a model with scripted answers."""

import json
import pathlib
import sys

import anthropic
import openai
import pydantic
import pytest

from serving import serve

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from scripted_checkpoint import make  # pylint: disable=wrong-import-position

# Constrained answers have no tokens of more than 32 bytes, and a piece has one successor in all scripts.
FIRST = ['<tool_call>\n{"name": "a', 'dd", "arguments": {"a": 1, ', '"b": 2}}\n</tool_call>']
SECOND = ['<tool_call>\n{"name"', ': "add", "arguments": {"a": 3', ', "b": 4}}\n</tool_call>']
SCRIPTS = {"hello": ["Hello", " there", ", é", "."], "one": FIRST, "two": ["Let me", " see.\n", *SECOND], "three": ["It is", " ten", "!"],
           "json": ['{"name":"Rosa","n":21}'], "ponder": ["<think>", "why", " not", "</think>", "so", " be it"]}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{# <tool_call> #}{% endif %}{# <think> </think> #}"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
              "additionalProperties": False}
RESULTS = ["<two>", "<three>"]  # of the calls in turn: they lead to the next script


class Person(pydantic.BaseModel):
    name: str
    n: int


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted")
    make(folder, SCRIPTS, template=TEMPLATE)
    with serve(folder) as out:
        yield out


@pytest.fixture(scope="module")
def client(port):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as out:
        yield out


@pytest.fixture(scope="module")
def claude(port):
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0) as out:
        yield out


def responses_turn(client, stream: bool, **request):
    if not stream:
        return client.responses.create(model="default", temperature=0, **request)
    with client.responses.stream(model="default", temperature=0, **request) as events:
        for _ in events:
            pass
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_responses(client, stream):
    response = responses_turn(client, stream, input="<hello>")
    assert (response.output_text, response.status, response.error) == ("Hello there, é.", "completed", None)
    assert response.usage.output_tokens == 5 and response.usage.total_tokens == response.usage.input_tokens + 5
    # The helper gives no final response of an answer that was cut.
    request = {"model": "default", "input": "<hello>", "max_output_tokens": 2}
    cut = list(client.responses.create(**request, stream=True))[-1].response if stream else client.responses.create(**request)
    assert (cut.output_text, cut.status, cut.incomplete_details.reason) == ("Hello there", "incomplete", "max_output_tokens")
    thought = responses_turn(client, stream, input=[{"role": "user", "content": "<ponder>"}], reasoning={"effort": "low"})
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert (thought.output[0].content[0].text, thought.output_text) == ("why not", "so be it")


def test_responses_parse(client):
    response = client.responses.parse(model="default", input="<json>", text_format=Person)
    assert response.output_parsed == Person(name="Rosa", n=21)
    with client.responses.stream(model="default", input="<json>", text_format=Person) as events:
        for _ in events:
            pass
        assert events.get_final_response().output_parsed == Person(name="Rosa", n=21)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_responses_tool_loop(client, stream, strict):
    tools = [{"type": "function", "name": "add", "parameters": PARAMETERS, "strict": strict}]
    history = [{"role": "user", "content": "<one>"}]
    sums = []
    for turn in range(3):
        response = responses_turn(client, stream, input=history, tools=tools, instructions="Add.")
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        history += response.output
        values = json.loads(calls[0].arguments)
        sums.append(values["a"] + values["b"])
        history.append({"type": "function_call_output", "call_id": calls[0].call_id, "output": RESULTS[turn]})
    assert (sums, response.output_text) == ([3, 7], "It is ten!")
    # The second turn had text before its call.
    assert [i.type for i in history if not isinstance(i, dict)] == ["function_call", "message", "function_call"]


def test_responses_events(client):
    types = [e.type for e in client.responses.create(model="default", input="<two>", stream=True, tools=[
        {"type": "function", "name": "add", "parameters": PARAMETERS}])]
    assert types == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                     "response.output_text.delta", "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                     "response.output_item.done", "response.output_item.added", "response.function_call_arguments.delta",
                     "response.function_call_arguments.done", "response.output_item.done", "response.completed"]


def test_responses_errors(client):
    for field, value in (("previous_response_id", "resp_1"), ("store", True), ("background", True), ("tools", [{"type": "web_search"}])):
        with pytest.raises(openai.BadRequestError) as bad:
            client.responses.create(model="default", input="<hello>", **{field: value})
        assert bad.value.param.startswith(field) and bad.value.code == "unsupported_field"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt", input="a")
    raw = client.responses.with_raw_response.create(model="default", input="<hello>", extra_body={"odd": 1, "text": {"verbosity": "low"}})
    assert raw.headers["X-Lathe-Ignored"] == "odd,text.verbosity"


def messages_turn(claude, stream: bool, **request):
    request = {"model": "default", "max_tokens": 100, **request}
    if not stream:
        return claude.messages.create(**request)
    with claude.messages.stream(**request) as events:
        for _ in events:
            pass
        return events.get_final_message()


def user(text: str) -> list:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("stream", [False, True])
def test_messages(claude, stream):
    message = messages_turn(claude, stream, messages=user("<hello>"), system=[{"type": "text", "text": "Be kind."}])
    assert ([b.text for b in message.content], message.stop_reason, message.role) == (["Hello there, é."], "end_turn", "assistant")
    usage = message.usage
    counted = claude.messages.count_tokens(model="default", messages=user("<hello>"), system="Be kind.").input_tokens
    assert (usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens) == (counted, 5)
    cut = messages_turn(claude, stream, messages=user("<hello>"), max_tokens=2)
    assert (cut.content[0].text, cut.stop_reason) == ("Hello there", "max_tokens")
    stopped = messages_turn(claude, stream, messages=user("<hello>"), stop_sequences=["the"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("Hello ", "stop_sequence", "the")
    thought = messages_turn(claude, stream, messages=user("<ponder>"), thinking={"type": "adaptive"})
    assert [b.type for b in thought.content] == ["thinking", "text"]
    assert (thought.content[0].thinking, thought.content[1].text) == ("why not", "so be it")


@pytest.mark.parametrize("stream", [False, True])
def test_messages_tool_loop(claude, stream):
    tools = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}]
    history = user("<one>")
    sums = []
    for turn in range(3):
        message = messages_turn(claude, stream, messages=history, tools=tools, tool_choice={"type": "auto"})
        calls = [b for b in message.content if b.type == "tool_use"]
        if not calls:
            break
        assert message.stop_reason == "tool_use"
        history.append({"role": "assistant", "content": message.content})
        sums.append(calls[0].input["a"] + calls[0].input["b"])
        history.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": calls[0].id, "content": RESULTS[turn]}]})
    assert (sums, message.content[0].text) == ([3, 7], "It is ten!")
    assert [b.type for b in history[3]["content"]] == ["text", "tool_use"]


def test_messages_parse(claude):
    message = claude.messages.parse(model="default", max_tokens=100, messages=user("<json>"), output_format=Person)
    assert message.parsed_output == Person(name="Rosa", n=21)


def test_messages_events(claude):
    types = [e.type for e in claude.messages.create(model="default", max_tokens=100, messages=user("<two>"), stream=True, tools=[
        {"name": "add", "input_schema": PARAMETERS}])]
    assert types == ["message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
                     "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]


def test_messages_errors(claude):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(model="default", max_tokens=9, messages=[{"role": "user", "content": [image]}])
    assert bad.value.body["error"]["type"] == "invalid_request_error" and "content[0].type" in bad.value.body["error"]["message"]
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="wrong").messages.create(model="default", max_tokens=9, messages=user("a"))
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude", max_tokens=9, messages=user("a"))
