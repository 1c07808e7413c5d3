import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

import lathe

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
PROMPTS = ["Ada has 3 apples and buys 4. How many apples?", "copy: k7 q2", "Hello", "1 2 3"]


@pytest.fixture(scope="module")
def engine():
    with lathe.Engine(str(MODELS / "tiny-v32"), device="cpu", context_length=512) as engine:
        yield engine


def test_says_what_it_is(engine):
    assert engine.info["architecture"] == "DeepseekV32ForCausalLM" and engine.info["device"] == "cpu"
    assert engine.info["context_length"] == 512
    assert engine.info["plan"]["caches"]


@pytest.mark.skipif("LATHE_COMMAND" not in os.environ, reason="LATHE_COMMAND names no lathe")
def test_answers_as_the_command_does(engine):
    command = [os.environ["LATHE_COMMAND"], "generate", "--model", str(MODELS / "tiny-v32")]
    command += ["--device", "cpu", "--temperature", "0", "--max-tokens", "24", "--quiet", "--json"]
    for prompt in PROMPTS:
        out = subprocess.run([*command, "--prompt", prompt], capture_output=True, check=True)
        assert json.loads(out.stdout)["text"] == str(
            engine.generate(prompt, temperature=0, max_new_tokens=24)
        )


def test_a_list_runs_together_and_answers_as_each_alone(engine):
    params = {"temperature": 0.8, "seed": 5, "max_new_tokens": 20, "logprobs": 2}
    together = engine.generate(PROMPTS, **params)
    assert len(together) == len(PROMPTS)
    for prompt, answer in zip(PROMPTS, together):
        alone = engine.generate(prompt, **params)
        assert (alone.text, alone.tokens, alone.logprobs) == (answer.text, answer.tokens, answer.logprobs)
        assert len(answer.tokens) == len(answer.logprobs) == len(answer.top)
        assert all(p <= 0 for p in answer.logprobs)
        assert all(len(t) == 2 and t[0].logprob >= t[1].logprob for t in answer.top)
        assert answer.prompt_tokens == len(engine.encode(prompt))
    assert engine.generate([]) == []


def test_tokens_are_a_prompt_too(engine):
    text = engine.generate(PROMPTS[0], temperature=0, max_new_tokens=8)
    tokens = engine.generate(engine.encode(PROMPTS[0]), temperature=0, max_new_tokens=8)
    assert tokens.tokens == text.tokens
    assert len(engine.generate([engine.encode(p) for p in PROMPTS], max_new_tokens=2)) == 4


def test_a_streams_pieces_are_the_answer(engine):
    params = {"temperature": 0, "max_new_tokens": 24, "logprobs": 1}
    answer = engine.generate(PROMPTS[0], **params)
    pieces = list(engine.stream(PROMPTS[0], **params))
    assert "".join(p.text for p in pieces) == answer.text
    assert [p.token for p in pieces[:-1]] == answer.tokens
    assert [p.logprob for p in pieces[:-1]] == answer.logprobs
    assert pieces[-1].token is None and pieces[-1].finish_reason == answer.finish_reason
    # Greedy: each token is the likeliest.
    assert all(p.top[0].token == p.token for p in pieces[:-1])


def test_a_stop_string_is_not_in_the_text(engine):
    whole = engine.generate(PROMPTS[0], temperature=0, max_new_tokens=24, ignore_eos=True).text
    stop = whole[3:5]
    cut = engine.generate(PROMPTS[0], temperature=0, max_new_tokens=24, ignore_eos=True, stop=stop)
    assert cut.text == whole[: whole.index(stop)] and cut.finish_reason == "stop"


def test_requests_of_one_salt_share_the_prefix_cache():
    prompt = "copy: " + "k7 q2 " * 60
    with lathe.Engine(str(MODELS / "tiny-v32"), device="cpu", scheduling_policy="priority", context_length=1024) as engine:
        params = {"temperature": 0, "max_new_tokens": 4}
        first, other, again, none = (
            engine.generate(prompt, **params, **more)
            for more in ({"cache_salt": "a"}, {"cache_salt": "b", "priority": 2}, {"cache_salt": "a", "priority": -1}, {})
        )
        assert (first.cached_tokens, other.cached_tokens, none.cached_tokens) == (0, 0, 0) and again.cached_tokens > 0
        assert first.tokens == other.tokens == again.tokens == none.tokens
    with lathe.Engine(str(MODELS / "tiny-v32"), device="cpu", context_length=512) as engine:
        with pytest.raises(lathe.LatheError, match="scheduling_policy priority"):
            engine.generate("x", priority=1)


def _seen(answer):
    return answer.text, answer.tokens, answer.logprobs, answer.finish_reason


def test_drafts_change_no_answer(engine):
    model = str(MODELS / "tiny-v32")
    repeats = "copy: k7 q2 k7 q2 k7 q2 k7 q2"
    with lathe.Engine(
        model, device="cpu", context_length=512, draft="ngram", draft_tokens=3
    ) as drafts:
        for params in ({"temperature": 0}, {"temperature": 0.9, "seed": 3}):
            params = {**params, "max_new_tokens": 40, "ignore_eos": True, "logprobs": 2}
            before, plain = drafts.stats()["steps"], engine.stats()["steps"]
            answer = engine.generate(repeats, **params)
            assert _seen(drafts.generate(repeats, **params)) == _seen(answer)
            # Bursts, or there is nothing to see here.
            assert drafts.stats()["steps"] - before < engine.stats()["steps"] - plain
            counted = drafts.stats()["drafts"]
            assert sum(counted["accepted"]) == pytest.approx(
                (counted["acceptance_length"] - 1) * counted["checks"]
            )
            assert counted["drafted"][0] == counted["checks"] > 0
            # Every stop string: some end in the middle of a burst.
            for at in range(2, len(answer.text) - 3, 5):
                stop = answer.text[at : at + 2]
                cut = engine.generate(repeats, **params, stop=stop)
                assert _seen(drafts.generate(repeats, **params, stop=stop)) == _seen(cut)
                assert cut.finish_reason == "stop"


@pytest.mark.parametrize(
    "options, says",
    [
        ({"draft": "eagle"}, "layers of EAGLE are not run"),
        ({"draft": "mtp"}, "a model whose draft layer runs"),
        ({"draft": "ngram", "draft_tokens": 16}, "1 to 15"),
        ({"draft_tokens": 2}, "a drafter with it"),
    ],
)
def test_drafts_that_do_not_run_are_refused(options, says):
    with pytest.raises(lathe.LatheError, match=says):
        lathe.Engine(str(MODELS / "tiny-gqa"), device="cpu", **options)


def test_a_dropped_stream_ends_its_request(engine):
    stream = engine.stream(PROMPTS[2], max_new_tokens=400, ignore_eos=True)
    next(stream)
    assert engine.stats()["running"] == 1
    del stream
    # The next pass takes it away.
    engine.generate(PROMPTS[2], max_new_tokens=1)
    assert engine.stats()["running"] == 0


def test_streams_of_one_thread_take_turns(engine):
    params = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    streams = [engine.stream(p, **params) for p in PROMPTS]
    texts = [""] * len(streams)
    for _ in range(13):
        for i, stream in enumerate(streams):
            texts[i] += next(stream).text
    assert texts == [a.text for a in engine.generate(PROMPTS, **params)]


def test_threads_share_an_engine(engine):
    params = {"temperature": 0, "max_new_tokens": 16}
    wanted = [a.text for a in engine.generate(PROMPTS, **params)]
    got = {}

    def ask(i):
        got[i] = [engine.generate(PROMPTS[i], **params).text for _ in range(5)]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(PROMPTS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == {i: [w] * 5 for i, w in enumerate(wanted)}


def test_e10_two_threads_on_one_stream_are_refused(engine):
    stream = engine.stream(PROMPTS[0], max_new_tokens=4, ignore_eos=True)
    pieces = []
    waiter = threading.Thread(target=lambda: pieces.extend(stream))
    with engine._lock:  # the thread waits inside its first call
        waiter.start()
        while not stream._busy.locked():
            pass
        with pytest.raises(lathe.LatheError) as caught:
            next(stream)
    waiter.join()
    assert caught.value.field == "stream" and "one thread at a time" in caught.value.wanted
    assert sum(piece.token is not None for piece in pieces) == 4


def test_e10_a_stream_that_another_thread_closes_ends(engine):
    stream = engine.stream(PROMPTS[0], max_new_tokens=400, ignore_eos=True)
    pieces = []
    waiter = threading.Thread(target=lambda: pieces.extend(stream))
    with engine._lock:
        waiter.start()
        while not stream._busy.locked():
            pass
        stream.close()
    waiter.join()
    assert not pieces and list(stream) == []


@pytest.mark.parametrize("work", ("load", "generate", "stream"))
def test_e10_a_daemon_thread_at_exit(work):
    """The interpreter ends while a daemon thread is inside a call: that call ends, nothing aborts."""
    code = """
import sys, threading, lathe
inside = threading.Event()
def load(**more):
    return lathe.Engine(sys.argv[1], device="cpu", context_length=512, **more)
def loads():
    while True:
        load(progress=lambda loaded, total: inside.set())
def generates():
    engine = load()
    while True:
        next(engine.stream("1 2 3", max_new_tokens=400, ignore_eos=True))
        inside.set()
        engine.generate("1 2 3", max_new_tokens=400, ignore_eos=True)
def streams():
    for piece in load().stream("1 2 3", max_new_tokens=450, ignore_eos=True):
        inside.set()
work = {"load": loads, "generate": generates, "stream": streams}[sys.argv[2]]
threading.Thread(target=work, daemon=True).start()
inside.wait()
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code, str(MODELS / "tiny-v32"), work], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_progress_is_told_and_may_stop_the_load():
    told = []
    with lathe.Engine(str(MODELS / "tiny-gqa"), device="cpu", progress=lambda *a: told.append(a)):
        assert told and told[-1][0] == told[-1][1] > 0

    def stop(loaded, total):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        lathe.Engine(str(MODELS / "tiny-gqa"), device="cpu", progress=stop)


def test_ranks():
    """Two ranks on the CPU; a fork of the process is refused and can end."""
    model = str(MODELS / "tiny-gqa")
    params = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    with lathe.Engine(model, device="cpu", tp=2) as engine:
        answer = engine.generate(PROMPTS[0], **params)
        assert len(answer.tokens) == 12
        assert _seen(engine.generate(PROMPTS[0], **params)) == _seen(answer)
        child = os.fork()
        if child == 0:
            try:
                engine.generate(PROMPTS[0], **params)
            except lathe.LatheError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lathe.Engine(model, device="cpu", tensor_parallel_size=2) as engine:
        assert _seen(engine.generate(PROMPTS[0], **params)) == _seen(answer)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"tp": 3}, "1, 2, 4 or 8"),
        ({"tp": 0}, "1, 2, 4 or 8"),
        ({"dp": 2}, "dp"),
        ({"pp_size": 2}, "pp"),
        ({"tp": 2, "gpus": "0,1"}, "gpus"),
        ({"tp": "2"}, "tp"),
        ({"tp": 2, "ep_size": 2, "expert_split": "width"}, "ep_size"),
        ({"exchange": "peer"}, "exchange"),
        ({"exchange_dtype": "f32"}, "exchange_dtype: wanted --tp 2, 4 or 8"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel: wanted --tp 2, 4 or 8"),
    ],
)
def test_ranks_that_cannot_be(options, says):
    with pytest.raises(lathe.LatheError, match=says):
        lathe.Engine(str(MODELS / "tiny-gqa"), device="cpu", **options)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"exchange": "nccl"}, "exchange: wanted GPUs"),
        ({"expert_split": "width"}, "expert_split: wanted a model with experts"),
        ({"ep_size": 2}, "ep_size: wanted a model with experts"),
    ],
)
def test_ranks_that_no_plan_has(options, says):
    with pytest.raises(lathe.PlanRefused, match=says):
        lathe.Engine(str(MODELS / "tiny-gqa"), device="cpu", tp=2, **options)


def test_generate_loads_and_frees():
    answer = lathe.generate(
        str(MODELS / "tiny-gqa"), "Hello", options={"device": "cpu"}, max_new_tokens=3, temperature=0
    )
    assert len(answer.tokens) <= 3 and answer.finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    "options, error, says",
    [
        ({"model": "/nowhere"}, lathe.LatheError, "/nowhere"),
        ({"colour": "red"}, lathe.LatheError, "colour"),
        ({"context_length": "long"}, lathe.LatheError, "context_length"),
        ({"device": 3}, TypeError, "device"),
        ({"kv_layout": object()}, TypeError, "options"),
        ({"kv_layout": "v4_fp8"}, lathe.PlanRefused, "v4_fp8"),
    ],
)
def test_options_that_cannot_be(options, error, says):
    with pytest.raises(error) as caught:
        lathe.Engine(**{"model": str(MODELS / "tiny-v32"), "device": "cpu", **options})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "prompt, params, error, says",
    [
        ("Hi", {"max_new_tokens": -1}, lathe.LatheError, "max_new_tokens"),
        ("Hi", {"colour": "red"}, lathe.LatheError, "colour"),
        ("Hi", {"stop": object()}, TypeError, "params"),
        ([2**40], {}, lathe.LatheError, "prompt[0]"),
        (["Hi", [1, "a"]], {}, TypeError, "prompt[1]"),
        ([10**6], {}, lathe.LatheError, "prompt"),
        ([1] * 600, {}, lathe.LatheError, "512"),
        (["Hi", [1] * 600], {}, lathe.LatheError, "512"),
    ],
)
def test_requests_that_cannot_be(engine, prompt, params, error, says):
    with pytest.raises(error) as caught:
        engine.generate(prompt, **params)
    assert says in str(caught.value)
    engine.generate("Hi", max_new_tokens=1)
    assert engine.stats()["running"] == engine.stats()["waiting"] == 0


def test_a_closed_engine_says_so():
    engine = lathe.Engine(str(MODELS / "tiny-gqa"), device="cpu")
    stream = engine.stream("Hello", max_new_tokens=50, ignore_eos=True)
    next(stream)
    engine.close()
    for use in (lambda: next(stream), lambda: engine.generate("Hello"), engine.stats):
        with pytest.raises(lathe.LatheError, match="closed"):
            use()
    engine.close()
