"""OpenAI's own client against lathe serve."""

import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.request

import openai
import pytest

from serving import serve

COMMAND = os.environ["LATHE_COMMAND"]
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-v32"
QUESTION = "Rosa has 21 apples. Alice has 6 times as many apples as Rosa. How many more apples does Alice have than Rosa?"
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def client():
    with serve(MODEL) as port, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as out:
        yield out


@pytest.fixture(scope="module")
def answer(client):
    return client.chat.completions.create(model="tiny-v32", messages=MESSAGES).choices[0].message.content


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny-v32"]
    assert client.models.retrieve("tiny-v32").owned_by == "lathe"


def test_chat(client, answer):
    assert answer.endswith("#### 105")
    whole = client.chat.completions.create(model="tiny-v32", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2)
    assert [c.index for c in whole.choices] == [0, 1]
    assert whole.choices[0].finish_reason == "stop"
    assert len(whole.choices[0].logprobs.content) + len(whole.choices[1].logprobs.content) == whole.usage.completion_tokens


def test_streams(client, answer):
    events = list(client.chat.completions.create(model="tiny-v32", messages=MESSAGES, stream=True,
                                                 stream_options={"include_usage": True}))
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == answer
    assert events[-1].choices == [] and events[-1].usage.completion_tokens > 10
    # The helper gathers deltas: whatever is no part of a string would be repeated in what it gives.
    with client.chat.completions.stream(model="tiny-v32", messages=MESSAGES, n=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert [c.message.content for c in final.choices] == [answer, answer]
    assert final.choices[0].message.role == "assistant"


def test_completions(client):
    text = client.completions.create(model="tiny-v32", prompt="Rosa has", max_tokens=6, temperature=0, logprobs=2)
    parts = client.completions.create(model="tiny-v32", prompt="Rosa has", max_tokens=6, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in parts) == text.choices[0].text


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny-v32", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature" and bad.value.code == "invalid_value" and bad.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny-v32", messages=MESSAGES, max_tokens=10**9)


def test_a_stream_that_is_left(client, answer):
    stream = client.chat.completions.create(model="tiny-v32", messages=MESSAGES, stream=True)
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(model="tiny-v32", messages=MESSAGES).choices[0].message.content == answer


def test_a_full_queue_is_tried_again():
    process = subprocess.Popen([COMMAND, "serve", "--model", str(MODEL), "--port", "0", "--max-connections", "500", "--max-running-requests", "1",
                                "--max-queued-requests", "1"], stderr=subprocess.PIPE, text=True)
    port = next(m[1] for line in process.stderr if (m := re.match(r"ready .*:(\d+)$", line)))
    threading.Thread(target=process.stderr.read, daemon=True).start()
    base = f"http://127.0.0.1:{port}"

    def metrics():
        return urllib.request.urlopen(base + "/metrics").read().decode()

    def until(text):
        for _ in range(3000):
            if text in metrics():
                return
            time.sleep(0.02)
        raise AssertionError(f"{text} has not come")

    long = {"prompt": "a", "max_tokens": 1900, "extra_body": {"ignore_eos": True, "n": 1}}
    with openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0) as busy:
        threads = []
        for gauge in ("\nlathe_num_running_reqs 1\n", "\nlathe_num_queue_reqs 1\n"):
            threads.append(threading.Thread(target=lambda: busy.completions.create(model="default", **long)))
            threads[-1].start()
            until(gauge)
        with pytest.raises(openai.InternalServerError) as full:
            busy.completions.create(model="default", **long)
        assert full.value.status_code == 503 and full.value.body["code"] == "queue_full"

        def make_room():
            until('lathe_refused_requests_total{code="queue_full"} 2')
            request = urllib.request.Request(base + "/abort_request", b'{"abort_all": true}', {"Content-Type": "application/json"})
            urllib.request.urlopen(request).read()

        threads.append(threading.Thread(target=make_room))
        threads[-1].start()
        with openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=10) as patient:
            answer = patient.chat.completions.create(model="default", messages=MESSAGES)
        assert answer.choices[0].message.content.endswith("#### 105")
        for thread in threads:
            thread.join()
    process.terminate()
    assert process.wait(60) == 0
