#!/usr/bin/env python3
"""`lathe chat` shows an answer's reasoning apart from the answer, with checkpoints that say texts of our choice."""

import fcntl
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

from scripted_checkpoint import make

LATHE = sys.argv.pop(1)
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
# The template shows what the history has of the earlier turns, in brackets.
TEMPLATE = ("{# MARKS #}{% for m in messages %}{% if m.role == 'assistant' %}[{{ m.reasoning_content }}|{{ m.content }}]{% endif %}{% endfor %}"
            "{{ messages[-1].content }}")
DIM, NORMAL = "\x1b[2m", "\x1b[22m"


def on_terminal(command: list, typed: str) -> subprocess.CompletedProcess:
    """Runs a command that prints to a terminal of 80 columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=its, stderr=subprocess.PIPE)
    os.close(its)
    run.stdin.write(typed.encode())
    run.stdin.close()
    seen = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the terminal has no writer left
            break
        if not more:
            break
        seen += more
    os.close(ours)
    with run.stderr:
        errors = run.stderr.read().decode()
    return subprocess.CompletedProcess(command, run.wait(timeout=60), seen.decode(), errors)


class Chat(unittest.TestCase):
    def chat(self, marks: str, special: tuple, pieces: list, *flags: str, terminal: bool = False) -> tuple[str, list]:
        """What a turn prints, and the saved conversation."""
        with tempfile.TemporaryDirectory() as name:
            model, file = pathlib.Path(name) / "model", pathlib.Path(name) / "talk.json"
            make(model, {"ask": pieces}, special, TEMPLATE.replace("MARKS", marks))
            command = [LATHE, "chat", "--model", str(model), "--quiet", "--temperature", "0", "--max-new-tokens", "40", *flags]
            typed = f"<ask>\n/save {file}\n/exit\n"
            run = on_terminal(command, typed) if terminal else subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)
            self.assertEqual(run.returncode, 0, run.stderr)
            return run.stdout.replace("\r", ""), json.loads(file.read_text())

    def expect(self, marks: str, special: tuple, pieces: list, reasoning: str, content: str):
        printed, saved = self.chat(marks, special, pieces)
        self.assertEqual(printed.split("2 messages")[0], content.lstrip() + "\n")
        self.assertEqual(saved[1].get("reasoning_content", ""), reasoning)
        self.assertEqual(saved[1]["content"], content)
        shown = self.chat(marks, special, pieces, "--reasoning", "show")[0].split("2 messages")[0]
        both = [text for text in (reasoning.strip(), content.strip()) if text]
        self.assertEqual(shown, "\n\n".join(both) + "\n")

    def test_think_tags(self):
        for special in ((), ("<think>", "</think>")):
            self.expect("</think>", special, ["<think>", "why", " not", "</think>", "so", " be it"], "why not", "so be it")
        self.expect("</think>", (), ["so", " be it"], "", "so be it")

    def test_a_prompt_that_ends_in_reasoning(self):
        self.expect("#}<think>{# </think>", ("</think>",), ["why", "</think>", "so"], "why", "so")

    def test_channels(self):
        text = ["<|chan", "nel|>analysis<|message|>We need", " four.<|e", "nd|><|start|>assist", "ant<|channel|>final<|mess", "age|>four"]
        self.expect("<|channel|>", (), text, "We need four.", "four")
        self.expect("<|channel|>", CHANNELS, ["<|channel|>", "final", "<|message|>", "four", "<|return|>", "never"], "", "four")
        self.expect("<|channel|>", CHANNELS, ["<|channel|>", "analysis", "<|message|>", "We need", " four.", "<|end|>"], "We need four.", "")

    def test_a_model_without_reasoning(self):
        self.expect("", (), ["<think>", "why", "</think>"], "", "<think>why</think>")

    def test_dim_on_a_terminal(self):
        pieces = ["<think>", "why", "</think>", "so", " be it"]
        printed = self.chat("</think>", (), pieces, terminal=True)[0]
        self.assertIn(f"{DIM}why{NORMAL}\n\nso be it\n", printed)
        self.assertNotIn("why", self.chat("</think>", (), pieces, "--reasoning", "hide", terminal=True)[0])

    def test_a_saved_conversation_keeps_its_reasoning(self):
        with tempfile.TemporaryDirectory() as name:
            model, file, again = (pathlib.Path(name) / n for n in ("model", "talk.json", "again.json"))
            make(model, {"ask": ["<think>", "why", "</think>", "so"]}, (), TEMPLATE.replace("MARKS", "</think>"))
            subprocess.run([LATHE, "chat", "--model", str(model), "--quiet"], input=f"<ask>\n/save {file}\n/reset\n/load {file}\n/save {again}\n",
                           check=True, capture_output=True, text=True, timeout=120)
            self.assertEqual(json.loads(file.read_text()), json.loads(again.read_text()))
            self.assertEqual(json.loads(file.read_text())[1]["reasoning_content"], "why")


if __name__ == "__main__":
    unittest.main()
