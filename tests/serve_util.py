"""A server under test, as clients meet it: started on a port of its own, asked over sockets."""

import http.client
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest

LATHE = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parent.parent
QUESTION = ("Rosa has 21 apples. Alice has 6 times as many apples as Rosa. "
            "How many more apples does Alice have than Rosa?")
ANSWER = ("Start: Rosa 21. Alice: Rosa 21 * 6 = Alice 126. "
          "Difference: Alice 126 - Rosa 21 = Difference 105. #### 105")
MESSAGES = [{"role": "user", "content": QUESTION}]


class Server:
    """A server on a port of its own, until the end of the block."""

    def __init__(self, *flags: str, model: str = "models/tiny-gqa"):
        # Few connections, for machines that let a process open few files.
        self.process = subprocess.Popen([LATHE, "serve", "--model", str(ROOT / model), "--port", "0", "--max-connections", "500", *flags],
                                        stderr=subprocess.PIPE, text=True)
        self.log = []
        self.port = None
        self.timeout = 60  # seconds without a byte of an answer
        ready = threading.Event()

        def read():
            for line in self.process.stderr:
                self.log.append(line)
                if found := re.match(r"""(?:listening |\{"event":"listening","text":")http://.*:(\d+)""", line):
                    self.port = int(found[1])
                if line.startswith(("ready ", '{"event":"ready"')):
                    ready.set()
            ready.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        if not ready.wait(60) or self.process.poll() is not None:
            raise AssertionError("the server did not start: " + "".join(self.log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()

    def call(self, method: str, path: str, body=None, headers: dict | None = None):
        """(status, headers, body), JSON where it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        kind = response.headers.get("Content-Type", "")
        return response.status, response.headers, json.loads(text) if "json" in kind and text else text

    def post(self, path: str, body, status: int = 200):
        got, _, answer = self.call("POST", path, body)
        assert got == status, (got, answer)
        return answer

    def stream(self, path: str, body: dict) -> list:
        """The events of a stream: JSON, and the last one's "[DONE]"."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        text = response.read().decode()
        connection.close()
        # An empty line shows that a stream without events lives, two if it has none for long; readers skip them.
        assert text.endswith("\n\n"), text[-50:]
        events = [e.strip("\n") for e in text.split("\n\n") if e.strip("\n")]
        assert all(e.startswith("data: ") and "\n" not in e for e in events), text
        assert events[-1] == "data: [DONE]"
        return [json.loads(e[6:]) for e in events[:-1]]

    def metric(self, name: str) -> float:
        text = self.call("GET", "/metrics")[2]
        return sum(float(line.split()[-1]) for line in text.splitlines()
                   if re.match(re.escape(name) + r"[ {]", line))

    def until(self, condition, what: str):
        """Waits for what comes by itself; a minute is far beyond any machine's need."""
        for _ in range(3000):
            if condition():
                return
            time.sleep(0.02)
        raise AssertionError("still waiting for " + what)

    def is_alive(self):
        """A request answers, and no page is held when it has."""
        assert self.post("/v1/chat/completions", {"messages": MESSAGES})["choices"][0]["message"]["content"] == ANSWER
        self.until(lambda: self.metric("lathe_num_held_pages") == 0, "free pages")


class ServeCase(unittest.TestCase):
    """Tests that share one server."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def refused(self, path, body, param, code="invalid_value", status=400):
        got, _, answer = self.server.call("POST", path, body)
        self.assertEqual(got, status, (body, answer))
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual((error["param"], error["code"]), (param, code), error["message"])
        return error["message"]
