"""A lathe serve for the tests of clients."""

import contextlib
import os
import re
import subprocess
import threading

COMMAND = os.environ["LATHE_COMMAND"]


@contextlib.contextmanager
def serve(model):
    """Runs a server of the folder, with the key "k"; gives its port."""
    process = subprocess.Popen([COMMAND, "serve", "--model", str(model), "--port", "0", "--api-key", "k", "--max-connections", "500"],
                               stderr=subprocess.PIPE, text=True)
    log, ready = [], threading.Event()

    def read():
        for line in process.stderr:
            log.append(line)
            if line.startswith("ready "):
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert ready.wait(60) and process.poll() is None, "".join(log)
    yield re.search(r"^ready .*:(\d+)$", "".join(log), re.M)[1]
    process.terminate()
    assert process.wait(60) == 0
    reader.join()
    process.stderr.close()
