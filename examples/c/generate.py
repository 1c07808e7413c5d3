"""Answers prompts with a model through liblathe's C interface, by ctypes alone: what a server in another language needs.

usage: generate.py LIBLATHE MODEL PROMPT...

All prompts run as one batch. Each answer is printed as it ends, with its tokens counted.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, Iterator, NamedTuple


class ErrorView(ctypes.Structure):
    """lathe_error"""

    _fields_ = [
        ("size", c_int64),
        ("status", c_int),
        ("text", c_char_p),
        ("field", c_char_p),
        ("wanted", c_char_p),
        ("offered", c_char_p),
        ("hint", c_char_p),
    ]


class EventView(ctypes.Structure):
    """lathe_event"""

    _fields_ = [
        ("size", c_int64),
        ("request", c_uint64),
        ("kind", c_int),
        ("token", c_int32),
        ("position", c_int64),
        ("logprob", c_double),
        ("logprobs_json", c_char_p),
        ("text", c_void_p),
        ("text_bytes", c_int64),
        ("finish_reason", c_char_p),
        ("error", c_char_p),
        ("prompt_tokens", c_int64),
        ("answer_tokens", c_int64),
        ("cached_tokens", c_int64),
    ]


class LatheError(Exception):
    """A call that failed; `field` names the argument."""

    def __init__(self, status: int, view: ErrorView) -> None:
        super().__init__(view.text.decode())
        self.status, self.field, self.hint = status, view.field.decode(), view.hint.decode()


class Event(NamedTuple):
    request: int
    text: str
    finish_reason: str | None
    answer_tokens: int


class Engine:
    """A model, and the requests that it answers."""

    def __init__(self, library: str, **options: Any) -> None:
        self.lib = lib = ctypes.CDLL(library)
        lib.lathe_last_error.restype = POINTER(ErrorView)
        lib.lathe_engine_json.restype = c_char_p
        lib.lathe_engine_json.argtypes = [c_void_p]
        lib.lathe_engine_idle.argtypes = lib.lathe_engine_free.argtypes = [c_void_p]
        lib.lathe_engine_free.restype = None
        tokens_out = [POINTER(POINTER(c_int32)), POINTER(c_int64)]
        for name, arguments in {
            "lathe_engine_load": [c_char_p, c_void_p, c_void_p, POINTER(c_void_p)],
            "lathe_engine_encode_chat": [c_void_p, c_char_p, *tokens_out],
            "lathe_engine_submit": [c_void_p, POINTER(c_int32), c_int64, c_char_p, POINTER(c_uint64)],
            "lathe_engine_cancel": [c_void_p, c_uint64],
            "lathe_engine_step": [c_void_p, POINTER(c_int64)],
            "lathe_engine_event": [c_void_p, c_int64, POINTER(EventView)],
        }.items():
            getattr(lib, name).argtypes = arguments
        self.handle = c_void_p()
        self._call("lathe_engine_load", json.dumps(options).encode(), None, None, byref(self.handle))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.lib.lathe_engine_free(self.handle)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            raise LatheError(status, self.lib.lathe_last_error().contents)

    @property
    def description(self) -> dict[str, Any]:
        return json.loads(self.lib.lathe_engine_json(self.handle))

    def submit(self, messages: list[dict[str, str]], **params: Any) -> int:
        """Queues a conversation and returns the request's number."""
        tokens, count = POINTER(c_int32)(), c_int64()
        chat = json.dumps(messages).encode()
        self._call("lathe_engine_encode_chat", self.handle, chat, byref(tokens), byref(count))
        request = c_uint64()
        wanted = json.dumps(params).encode()
        self._call("lathe_engine_submit", self.handle, tokens, count, wanted, byref(request))
        return request.value

    def cancel(self, request: int) -> None:
        self._call("lathe_engine_cancel", self.handle, request)

    def events(self) -> Iterator[Event]:
        """Steps until every request has ended, and gives what happens to them."""
        while not self.lib.lathe_engine_idle(self.handle):
            count = c_int64()
            self._call("lathe_engine_step", self.handle, byref(count))
            for index in range(count.value):
                view = EventView(size=ctypes.sizeof(EventView))
                self._call("lathe_engine_event", self.handle, index, byref(view))
                reason = view.finish_reason.decode() if view.finish_reason else None
                text = ctypes.string_at(view.text, view.text_bytes).decode()
                yield Event(view.request, text, reason, view.answer_tokens)


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    library, model, *prompts = sys.argv[1:]
    try:
        with Engine(library, model=model, device="cpu") as engine:
            answers: dict[int, str] = {}
            for prompt in prompts:
                messages = [{"role": "user", "content": prompt}]
                answers[engine.submit(messages, max_new_tokens=200)] = ""
            for event in engine.events():
                answers[event.request] += event.text
                if event.finish_reason is not None:
                    print(f"{event.request}: {answers[event.request]}")
                    print(f"   ({event.finish_reason}, {event.answer_tokens} tokens)")
    except LatheError as error:
        print(f"{error.field}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
