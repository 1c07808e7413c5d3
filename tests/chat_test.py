#!/usr/bin/env python3
"""Runs chat as a user does: through a pipe, and on a terminal."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import tempfile
import termios
import unittest

from model_command_util import LATHE, ModelCommand, lathe


class Chat(ModelCommand):
    def chat(self, *lines: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
        return lathe("chat", *self.flags("--max-new-tokens", "8", "--ignore-eos", *flags),
                     stdin="".join(line + "\n" for line in lines))

    def test_turns_and_commands(self):
        result = self.chat("hello", "/stats", "/plan", "again", "/reset", "hello", "/what")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("tokens/s", result.stdout)
        self.assertIn("gqa_bf16", result.stdout)
        self.assertIn("/reset", result.stdout)
        self.assertNotIn("drafts", result.stdout)
        self.assertRegex(self.chat("hello", "/stats", flags=("--draft", "ngram")).stdout, r"\ndrafts +(none|[0-9.]+)")
        first = self.chat("hello").stdout
        self.assertTrue(result.stdout.startswith(first))
        # After /reset the conversation is as at the start.
        self.assertEqual(result.stdout.count(first), 2)

    def test_a_turn_beyond_the_context_says_so_and_the_chat_goes_on(self):
        result = self.chat("word " * self.context, "hello")
        self.assertEqual(result.returncode, 0)
        self.assertIn(str(self.context), result.stderr)
        self.assertEqual(result.stdout, self.chat("hello").stdout)

    def test_a_bad_template_names_its_line(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(self.model, folder, dirs_exist_ok=True)
            (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "a\n{% nonsense %}"}))
            text = self.refused("chat", *self.flags(model=folder))
            self.assertIn("line 2", text)
            self.assertIn("nonsense", text)


    def test_a_conversation_is_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "talk.json"
            whole = self.chat("hello", f"/save {file}", "again").stdout
            saved = json.loads(file.read_text())
            self.assertEqual([m["role"] for m in saved], ["user", "assistant"])
            self.assertEqual(saved[0]["content"], "hello")
            resumed = self.chat(f"/load {file}", "again").stdout
            self.assertTrue(whole.endswith(resumed.split("\n", 1)[1]), (whole, resumed))
            file.write_text('[{"role": "user"}]')
            broken = self.chat("hello", f"/load {file}", "again")
            self.assertRegex(broken.stderr, r"lathe: .*talk.json: wanted \[\{.role.")
            self.assertEqual(broken.stdout, self.chat("hello", "again").stdout)
            file.write_text('[{"role": "x", "content": "a"}]')
            self.assertRegex(self.chat(f"/load {file}").stderr, r"talk.json: messages\[0\].role: wanted system, .*, got .x.")
            self.assertIn("/no/file", self.chat("/load /no/file", "/save /no/file").stderr)

    def test_several_lines_are_one_message(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "talk.json"
            self.chat("one\\", "two", '"""', "three", "", "four\\", '"""', f"/save {file}")
            said = [m["content"] for m in json.loads(file.read_text()) if m["role"] == "user"]
            self.assertEqual(said, ["one\ntwo", "three\n\nfour\\\n"])

    def test_an_answer_has_a_limit(self):
        stats = self.chat("/stats").stdout
        self.assertIn("at most 8 tokens (--max-new-tokens)", stats)
        result = lathe("chat", *self.flags("--ignore-eos"), stdin="/stats\n")
        self.assertIn("at most 2048 tokens (--max-new-tokens, the default)", result.stdout)


class Terminal:
    """A command on a pseudo-terminal of so many columns, in a C locale."""

    def __init__(self, *args: str, columns: int = 80):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(LC_ALL="C", TERM="xterm")
            os.environ.pop("LC_CTYPE", None)
            os.execv(LATHE, [LATHE, *args])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.seen = b""

    def wait(self, text: str) -> str:
        """What came up to and with `text`, which is then forgotten."""
        wanted = text.encode()
        while wanted not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 60)
            if not ready:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.fd, 65536)
            except OSError as error:
                raise AssertionError(f"no {text!r} in {self.seen!r}") from error
        at = self.seen.index(wanted) + len(wanted)
        out, self.seen = self.seen[:at], self.seen[at:]
        return out.decode("utf-8", "replace").replace("\r", "")

    def type(self, text: str):
        os.write(self.fd, text.encode())

    def exit_code(self) -> int:
        while True:  # so that nothing it writes waits for a reader
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code


class ChatOnATerminal(ModelCommand):
    def start(self, *more: str, columns: int = 80) -> Terminal:
        t = Terminal("chat", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "40", "--threads", "1",
                                         *more), columns=columns)
        t.wait("lists the commands.")
        t.wait("> ")
        return t

    def test_text_beyond_ascii_and_control_c(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "talk.json"
            t = self.start()
            t.type("not this")
            t.wait("this")
            t.type("\x03")
            t.wait("leaves)")
            t.wait("> ")
            t.type("gr\u00fc\u00dfe, \u6f22\u5b57\n")
            t.wait("\n")
            t.wait("> ")
            t.type(f"/save {file}\n")
            t.wait("2 messages")
            t.wait("> ")
            # Twice with something between is not twice.
            t.type("\x03")
            t.wait("leaves)")
            t.wait("> ")
            t.type("/stats\n")
            t.wait("prefix cache")
            t.wait("> ")
            t.type("\x03")
            t.wait("leaves)")
            t.wait("> ")
            t.type("\x03")
            self.assertEqual(t.exit_code(), 0)
            self.assertEqual(json.loads(file.read_text())[0]["content"], "gr\u00fc\u00dfe, \u6f22\u5b57")

    def test_lines_break_at_words_and_long_prompts_show_progress(self):
        prompt = "word " * 60
        plain = lathe("chat", *self.flags("--quiet", "--ignore-eos", "--max-new-tokens", "40"),
                      stdin=prompt + "\n").stdout
        t = self.start("--chunked-prefill-size", "16", columns=30)
        t.type(prompt + "\n")
        t.wait("reading the prompt   16 of ")
        t.wait("\x1b[K")
        answer = t.wait("> ").removesuffix("> ")
        t.type("/exit\n")
        self.assertEqual(t.exit_code(), 0)
        drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", answer)
        self.assertGreater(drawn.count("\n"), plain.count("\n"))
        squeezed = [re.sub(r"\s", "", text) for text in (drawn, plain)]
        self.assertEqual(squeezed[0], squeezed[1])
        for line in drawn.split("\n"):
            self.assertTrue(len(line) <= 30 or " " not in line.strip(), line)


if __name__ == "__main__":
    unittest.main()
