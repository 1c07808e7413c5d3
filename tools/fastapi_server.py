#!/usr/bin/env python3
"""A streaming server on FastAPI and uvicorn without a model, to compare with: `lathe bench server --peer`.

Needs fastapi, uvicorn, uvloop and httptools from PyPI. Prints its port.
"""

import asyncio
import json
import socket
import time

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

STEP = 0.03  # seconds, as in the benchmark's own steps
app = FastAPI()


class Steps:
    """The engine: wakes every stream once a step."""

    def __init__(self):
        self.waiting = []

    async def run(self):
        while True:
            await asyncio.sleep(STEP)
            waiting, self.waiting = self.waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def next(self):
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future


steps = Steps()


@app.on_event("startup")
async def start():
    app.state.task = asyncio.create_task(steps.run())


@app.post("/v1/chat/completions")
async def chat(request: Request):
    body = await request.json()

    def event(delta, end=None):
        return "data: " + json.dumps({"id": "chatcmpl-0123456789abcdef0123456789abcdef", "object": "chat.completion.chunk", "created": int(time.time()),
                                      "model": "scripted", "system_fingerprint": "none",
                                      "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}) + "\n\n"

    async def answer():
        yield event({"role": "assistant", "content": ""})
        for i in range(body["max_tokens"]):
            await steps.next()
            yield event({"content": f" w{i % 64}"})
        yield event({}, "length")
        yield "data: [DONE]\n\n"

    return StreamingResponse(answer(), media_type="text/event-stream")


def main():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)  # before the port is told
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="error", access_log=False, backlog=4096)
    asyncio_server = uvicorn.Server(config)
    asyncio_server.run(sockets=[listener])


main()
