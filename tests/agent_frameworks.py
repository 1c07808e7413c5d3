#!/usr/bin/env python3
"""Agents of other projects, unmodified, in tool loops of three turns against a model with scripted answers. Not part of the suite.

    tools/try_clients.py agents build/lathe     installs openai-agents, langchain, langgraph, pydantic-ai, mcp, instructor and litellm, and
                                                runs this

mcp's tools come from a server of that package, this file with the argument --mcp.
"""

import asyncio
import json
import os
import pathlib
import sys
import tempfile
import traceback

import anthropic
import openai
import pydantic

from scripted_checkpoint import make
from serve_util import Server


# Constrained answers have no tokens of more than 32 bytes, and a piece has one successor in all scripts.
FIRST = ['<tool_call>\n{"name": "a', 'dd", "arguments": {"a": 1, ', '"b": 2}}\n</tool_call>']
SECOND = ['<tool_call>\n{"name"', ': "add", "arguments": {"a": 3', ', "b": 4}}\n</tool_call>']
SCRIPTS = {"one": FIRST, "two": ["Let me", " see.\n", *SECOND], "three": ["It is", " ten", "!"], "json": ['{"name":"Rosa","n":21}'],
           "person": ['[{"name": "Per', 'son", "parameters": {', '"name": "Rosa",', ' "n": 21}}]']}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{# <tool_call> #}{% endif %}"
ANSWER = "It is ten!"


class Person(pydantic.BaseModel):
    name: str
    n: int


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return {3: "<two>", 7: "<three>"}[a + b]  # the prompts that lead to the next scripts


def agents_sdk(base: str):
    import agents  # pylint: disable=import-outside-toplevel
    agents.set_tracing_disabled(True)

    async def run(model) -> list:
        async with openai.AsyncOpenAI(base_url=base + "/v1", api_key="k") as client:
            served = model(model="default", openai_client=client)
            adder = agents.Agent(name="adder", instructions="Add.", model=served, tools=[agents.function_tool(add)])
            whole = (await agents.Runner.run(adder, "<one>")).final_output
            streamed = agents.Runner.run_streamed(adder, "<one>")
            async for _ in streamed.stream_events():
                pass
            reader = agents.Agent(name="reader", model=served, output_type=Person)
            return [whole, streamed.final_output, (await agents.Runner.run(reader, "<json>")).final_output]

    for model in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        for what, got, wanted in zip(("", " streamed", " output_type"), asyncio.run(run(model)), (ANSWER, ANSWER, Person(name="Rosa", n=21))):
            yield model.__name__ + what, got, wanted


def langchain(base: str):
    from langchain_anthropic import ChatAnthropic  # pylint: disable=import-outside-toplevel
    from langchain_openai import ChatOpenAI  # pylint: disable=import-outside-toplevel
    from langgraph.prebuilt import create_react_agent  # pylint: disable=import-outside-toplevel
    models = {"ChatOpenAI": ChatOpenAI(model="default", base_url=base + "/v1", api_key="k"),
              "ChatOpenAI responses": ChatOpenAI(model="default", base_url=base + "/v1", api_key="k", use_responses_api=True),
              "ChatAnthropic": ChatAnthropic(model="default", base_url=base, api_key="k", max_tokens=200)}
    for name, model in models.items():
        agent = create_react_agent(model, [add])
        answer = agent.invoke({"messages": [("user", "<one>")]})["messages"][-1]
        yield name, answer.text if isinstance(answer.text, str) else answer.text(), ANSWER
        last = ""
        for message, _ in agent.stream({"messages": [("user", "<one>")]}, stream_mode="messages"):
            if message.type == "AIMessageChunk":
                last += message.text if isinstance(message.text, str) else message.text()
        yield name + " streamed", last.endswith(ANSWER), True
        yield name + " structured", model.with_structured_output(Person, method="json_schema").invoke("<json>"), Person(name="Rosa", n=21)


def pydantic_ai(base: str):
    from pydantic_ai import Agent, NativeOutput  # pylint: disable=import-outside-toplevel
    from pydantic_ai.models.anthropic import AnthropicModel  # pylint: disable=import-outside-toplevel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # pylint: disable=import-outside-toplevel
    from pydantic_ai.providers.anthropic import AnthropicProvider  # pylint: disable=import-outside-toplevel
    from pydantic_ai.providers.openai import OpenAIProvider  # pylint: disable=import-outside-toplevel
    own = OpenAIProvider(base_url=base + "/v1", api_key="k")
    claude = AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=base, api_key="k"))
    models = (OpenAIChatModel("default", provider=own), OpenAIResponsesModel("default", provider=own), AnthropicModel("default", provider=claude))

    async def run(agent):
        answer = (await agent.run("<one>")).output
        async with agent.run_stream("<one>") as stream:
            return answer, await stream.get_output()

    for model in models:
        name = type(model).__name__
        whole, streamed = asyncio.run(run(Agent(model, tools=[add])))
        yield name, whole, ANSWER
        # A stream ends at the first text, which is in the second turn.
        yield name + " streamed", streamed in (ANSWER, "Let me see."), True
        if not isinstance(model, AnthropicModel):
            yield name + " native output", Agent(model, output_type=NativeOutput(Person)).run_sync("<json>").output, Person(name="Rosa", n=21)


def serve_mcp():
    try:  # the name since mcp 2
        from mcp.server.mcpserver import MCPServer as Made  # pylint: disable=import-outside-toplevel
    except ImportError:
        from mcp.server.fastmcp import FastMCP as Made  # pylint: disable=import-outside-toplevel
    made = Made("sums")
    made.tool()(add)
    made.run()


def mcp_client(base: str):
    from mcp import ClientSession, StdioServerParameters  # pylint: disable=import-outside-toplevel
    from mcp.client.stdio import stdio_client  # pylint: disable=import-outside-toplevel
    import agents  # pylint: disable=import-outside-toplevel
    command = {"command": sys.executable, "args": [__file__, "none", "--mcp"]}

    async def loop(ask) -> str:
        """An agent loop: the tools of the session, and ask(tools) that gets their results by calls."""
        async with stdio_client(StdioServerParameters(**command)) as (read, write), ClientSession(read, write) as session:
            await session.initialize()

            async def call(name: str, arguments: dict) -> str:
                return (await session.call_tool(name, arguments)).content[0].text

            return await ask((await session.list_tools()).tools, call)

    def schema(tool) -> dict:
        return tool.input_schema if hasattr(tool, "input_schema") else tool.inputSchema

    async def by_chat(tools, call) -> str:
        async with openai.AsyncOpenAI(base_url=base + "/v1", api_key="k") as client:
            offered = [{"type": "function", "function": {"name": t.name, "description": t.description, "parameters": schema(t)}} for t in tools]
            messages = [{"role": "user", "content": "<one>"}]
            while True:
                answer = (await client.chat.completions.create(model="default", messages=messages, tools=offered)).choices[0].message
                if not answer.tool_calls:
                    return answer.content
                messages.append(answer)
                for c in answer.tool_calls:
                    result = await call(c.function.name, json.loads(c.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": c.id, "content": result})

    async def by_messages(tools, call) -> str:
        async with anthropic.AsyncAnthropic(base_url=base, api_key="k") as client:
            offered = [{"name": t.name, "description": t.description, "input_schema": schema(t)} for t in tools]
            messages = [{"role": "user", "content": "<one>"}]
            while True:
                answer = await client.messages.create(model="default", max_tokens=100, messages=messages, tools=offered)
                calls = [b for b in answer.content if b.type == "tool_use"]
                if not calls:
                    return answer.content[-1].text
                results = [{"type": "tool_result", "tool_use_id": c.id, "content": await call(c.name, c.input)} for c in calls]
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]

    async def by_agent() -> str:
        async with agents.mcp.MCPServerStdio(params=command, client_session_timeout_seconds=60) as tools, \
                   openai.AsyncOpenAI(base_url=base + "/v1", api_key="k") as client:
            model = agents.OpenAIResponsesModel(model="default", openai_client=client)
            adder = agents.Agent(name="adder", instructions="Add.", model=model, mcp_servers=[tools])
            return (await agents.Runner.run(adder, "<one>")).final_output

    yield "chat completions", asyncio.run(loop(by_chat)), ANSWER
    yield "messages", asyncio.run(loop(by_messages)), ANSWER
    yield "Agents SDK, responses", asyncio.run(by_agent()), ANSWER


def instructor_client(base: str):
    import instructor  # pylint: disable=import-outside-toplevel
    with openai.OpenAI(base_url=base + "/v1", api_key="k") as client:
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.TOOLS):
            prompt = "<person>" if mode == instructor.Mode.TOOLS else "<json>"
            got = instructor.from_openai(client, mode=mode).chat.completions.create(
                model="default", response_model=Person, max_retries=0, messages=[{"role": "user", "content": prompt}])
            yield str(mode), (got.name, got.n), ("Rosa", 21)  # of a class that instructor makes


def litellm_client(base: str):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download of prices
    import litellm  # pylint: disable=import-outside-toplevel
    litellm.suppress_debug_info = True
    tools = [{"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}]
    for name, where in (("openai/default", base + "/v1"), ("hosted_vllm/default", base + "/v1"), ("anthropic/default", base)):
        def ask(messages, **more):
            return litellm.completion(model=name, api_base=where, api_key="k", messages=messages, max_tokens=100, **more)  # pylint: disable=cell-var-from-loop

        messages = [{"role": "user", "content": "<one>"}]
        while calls := (answer := ask(messages, tools=tools).choices[0].message).tool_calls:
            messages.append(answer)
            messages += [{"role": "tool", "tool_call_id": c.id, "content": add(**json.loads(c.function.arguments))} for c in calls]
        yield name, answer.content, ANSWER
        streamed = ask([{"role": "user", "content": "<three>"}], stream=True)
        yield name + " streamed", "".join(part.choices[0].delta.content or "" for part in streamed), ANSWER
    responses = litellm.responses(model="openai/default", api_base=base + "/v1", api_key="k", input="<three>")
    yield "responses", responses.output[-1].content[0].text, ANSWER


def main() -> int:
    if "--mcp" in sys.argv:
        serve_mcp()
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        make(pathlib.Path(folder), SCRIPTS, template=TEMPLATE)
        with Server("--api-key", "k", model=folder) as server:
            for framework in (agents_sdk, langchain, pydantic_ai, mcp_client, instructor_client, litellm_client):
                try:
                    for name, got, wanted in framework(f"http://127.0.0.1:{server.port}"):
                        wrong += got != wanted
                        print(f"{framework.__name__:18} {name:40} {'right' if got == wanted else f'WRONG: {got!r}'}", flush=True)
                except Exception:  # pylint: disable=broad-except
                    wrong += 1
                    print(f"{framework.__name__:18} FAILED", flush=True)
                    traceback.print_exc(limit=-4)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
