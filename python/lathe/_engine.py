"""Whole models: text in, text out."""

from __future__ import annotations

import collections
import json
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Union, cast, overload

from . import _args, _lathe
from ._errors import LatheError

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}
Prompt = Union[str, Sequence[int], Sequence[Message]]

_STARTED, _TOKEN, _FINISHED = range(3)


@dataclass
class TopToken:
    """One of the most likely tokens at a position of an answer, and its natural log-probability."""

    token: int
    logprob: float


@dataclass
class Piece:
    """A token of an answer with its text; the last piece has a finish reason instead of a token.

    text: whole characters; may belong to several tokens, or be empty.
    logprob, top: None unless ``logprobs`` was given.
    """

    text: str
    token: Optional[int] = None
    logprob: Optional[float] = None
    top: Optional[List[TopToken]] = None
    finish_reason: Optional[str] = None


@dataclass
class Answer:
    """A whole answer.

    text: without a stop string; "" for a model without a tokenizer.
    tokens, logprobs, top: one entry per generated token; the last two only with ``logprobs``.
    finish_reason: "stop", "length", "cancelled" or "error", which `error` explains.
    prompt_tokens: `cached_tokens` of them were computed for an earlier request.
    """

    text: str = ""
    tokens: List[int] = field(default_factory=list)
    logprobs: Optional[List[float]] = None
    top: Optional[List[List[TopToken]]] = None
    finish_reason: str = ""
    error: Optional[str] = None
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def __str__(self) -> str:
        return self.text

    def _add(self, piece: Piece) -> None:
        self.text += piece.text
        if piece.token is not None:
            self.tokens.append(piece.token)
        if piece.logprob is not None and piece.top is not None:
            if self.logprobs is None or self.top is None:
                self.logprobs, self.top = [], []
            self.logprobs.append(piece.logprob)
            self.top.append(piece.top)


class Engine:
    """A model in this process that answers many requests at once.

    model: a folder with config.json, weights and tokenizer, as for ``lathe generate --model``.
    device: "auto" (a GPU that supports the model, else the CPU), "cpu", "cuda" or "ref".
    progress: called while weights load, with the bytes read so far and the total.
    options: dtype, threads, seed, prefix_cache, load_format ("auto" or "dummy"), draft ("none",
        "ngram" or "mtp", which change no answer), scheduling_policy ("fcfs": requests in order;
        "priority"), priority_aging (steps after which a waiting request counts as one priority
        lower), and the flags of ``lathe plan`` about cache,
        kernels, sizes and ranks with underscores: kv_layout, prefill_attention_backend,
        context_length, draft_tokens, tp (GPUs, or groups of a CPU's threads, that share the
        model; gpus="0,1" says which), ...

    Threads may share an engine: their requests run in the same steps. A fork of the process may not. ``with Engine(...) as engine``
    frees the model at the end; so does `close`.

    Errors: LatheError (an option, a file, memory); PlanRefused (no plan fits, with the reasons).
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        progress: Optional[Callable[[int, int], None]] = None,
        **options: Any,
    ) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            if isinstance(value, _lathe.Layout):
                given[name] = str(value)
        wanted = {"model": str(model), "device": _args.text("device", device), **given}
        # Reentrant: the garbage collector may drop a stream, which cancels, while this thread holds the lock.
        self._lock = threading.RLock()
        self._inboxes: dict[int, collections.deque[Any]] = {}
        self._engine = _lathe.Engine(_json("options", wanted), progress)
        self.info: dict[str, Any] = json.loads(self._engine.json())

    def __repr__(self) -> str:
        return f"<lathe.Engine {self.info['model']} on {self.info['device']}>"

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model; open streams end with an error."""
        with self._lock:
            self._engine.close()

    def encode(self, prompt: Prompt) -> List[int]:
        """The prompt's tokens; messages go through the model's chat template."""
        with self._open() as engine:
            if isinstance(prompt, str):
                return engine.encode(prompt)
            if _is_chat(prompt):
                return engine.encode_chat(_json("prompt", list(prompt)))
        return [_args.integer(f"prompt[{i}]", t) for i, t in enumerate(prompt)]

    @overload
    def generate(self, prompt: str, **params: Any) -> Answer: ...
    @overload
    def generate(self, prompt: Sequence[int], **params: Any) -> Answer: ...
    @overload
    def generate(self, prompt: Sequence[Message], **params: Any) -> Answer: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], **params: Any) -> List[Answer]: ...
    def generate(self, prompt: Any, **params: Any) -> Union[Answer, List[Answer]]:
        """Answers a prompt, or a list of prompts, which run together.

        prompt: a text, a list of tokens, or a list of messages for the model's chat template.
        params, each by default the model's: max_new_tokens, min_new_tokens,
            temperature (0: always the most likely token), top_k, top_p, min_p, seed,
            repetition_penalty, frequency_penalty, presence_penalty, stop (a string or a list of them),
            stop_token_ids, ignore_eos, logprobs (how many of the most likely tokens to report),
            cache_salt (only requests with an equal one share the prefix cache), priority (lower ones
            are served first; other than 0 only with scheduling_policy="priority").

        Errors: LatheError, before any prompt of the list runs.
        """
        if isinstance(prompt, str) or _is_chat(prompt) or _is_tokens(prompt):
            return self._answers([prompt], params)[0]
        return self._answers(list(prompt), params)

    def stream(self, prompt: Prompt, **params: Any) -> Iterator[Piece]:
        """Yields the answer to one prompt piece by piece; parameters and errors as for `generate`.

        The request starts at once. Closing or dropping the iterator cancels it, from any thread. If an
        answer fails, the iterator raises RuntimeError at that point. One thread at a time may ask it for
        a piece; another gets a LatheError.
        """
        return _Stream(self, self._submit([prompt], params)[0])

    def stats(self) -> dict[str, Any]:
        """steps, waiting, running, held_pages, total_pages, ..."""
        with self._open() as engine:
            return cast("dict[str, Any]", json.loads(engine.stats_json()))

    def _open(self) -> "_Locked":
        return _Locked(self._lock, self._engine)

    def _submit(self, prompts: Sequence[Prompt], params: Mapping[str, Any]) -> List[int]:
        text = _json("params", {k: v for k, v in params.items() if v is not None})
        tokens = [self.encode(p) for p in prompts]
        with self._open() as engine:
            requests: List[int] = []
            try:
                for t in tokens:
                    requests.append(engine.submit(t, text))
            except BaseException:
                for request in requests:
                    engine.cancel(request)
                raise
            for request in requests:
                self._inboxes[request] = collections.deque()
            return requests

    def _forget(self, request: int) -> None:
        with self._lock:
            if self._inboxes.pop(request, None) is not None and not self._engine.closed():
                self._engine.cancel(request)

    def _event(self, request: int) -> Any:
        """The request's next event; None after _forget(). A waiting thread runs the steps for all requests."""
        inbox = self._inboxes.get(request)
        while not inbox:
            with self._open() as engine:
                if inbox:
                    break
                if request not in self._inboxes:
                    return None
                for event in engine.step():
                    to = self._inboxes.get(event[0])
                    if to is not None:
                        to.append(event)
        return inbox.popleft()

    def _answers(self, prompts: Sequence[Prompt], params: Mapping[str, Any]) -> List[Answer]:
        requests = self._submit(prompts, params)
        answers = [Answer() for _ in requests]
        try:
            for request, answer in zip(requests, answers):
                while not answer.finish_reason:
                    event = self._event(request)
                    answer._add(_piece(event))
                    if event[1] == _FINISHED:
                        answer.finish_reason, answer.error = event[6], event[7]
                        answer.prompt_tokens, answer.cached_tokens = event[8], event[9]
        finally:
            for request in requests:
                self._forget(request)
        return answers


class _Locked:
    """Exclusive access to the engine."""

    def __init__(self, lock: Any, engine: Any) -> None:
        self._lock, self._engine = lock, engine

    def __enter__(self) -> Any:
        self._lock.acquire()
        if self._engine.closed():
            self._lock.release()
            raise LatheError("invalid_argument", "engine", "one that is open", "a closed one")
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Stream(Iterator[Piece]):
    """A class, because a generator would submit on first use, and cancel nothing if never used."""

    def __init__(self, engine: Engine, request: int) -> None:
        self._engine, self._request, self._ended = engine, request, False
        self._busy = threading.Lock()

    def __next__(self) -> Piece:
        if not self._busy.acquire(blocking=False):
            wanted = "one thread at a time, or a stream for each"
            raise LatheError("invalid_argument", "stream", wanted, "a call while another thread waits for a piece")
        try:
            return self._next()
        finally:
            self._busy.release()

    def _next(self) -> Piece:
        while not self._ended:
            event = self._engine._event(self._request)
            if event is None:  # closed by another thread
                break
            if event[1] == _FINISHED:
                self.close()
                if event[7] is not None:
                    raise RuntimeError(event[7])
            if event[1] != _STARTED:
                return _piece(event)
        raise StopIteration

    def close(self) -> None:
        """Cancels the rest of the answer."""
        if not self._ended:
            self._ended = True
            self._engine._forget(self._request)

    __del__ = close


def generate(
    model: str,
    prompt: Any,
    *,
    options: Optional[Mapping[str, Any]] = None,
    **params: Any,
) -> Any:
    """Loads a model, answers, and frees it: ``Engine(model, **options).generate(prompt, **params)``.

    Keep an `Engine` for more than one call.
    """
    with Engine(model, **dict(options or {})) as engine:
        return engine.generate(prompt, **params)


def _piece(event: Any) -> Piece:
    _, kind, token, logprob, top, text, finish_reason, *_ = event
    if kind != _TOKEN:
        return Piece(text, finish_reason=finish_reason)
    likeliest = None if top is None else [TopToken(**t) for t in json.loads(top)]
    return Piece(text, token, logprob, likeliest)


def _is_chat(prompt: Any) -> bool:
    return bool(prompt) and all(isinstance(m, Mapping) for m in prompt)


def _is_tokens(prompt: Any) -> bool:
    return len(prompt) > 0 and not isinstance(prompt[0], (str, Mapping)) and not hasattr(
        prompt[0], "__len__"
    )


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}") from None
