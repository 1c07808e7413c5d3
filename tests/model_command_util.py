"""A checkpoint folder put together from fixtures, for tests of generate, chat, inspect and bench engine."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LATHE = sys.argv.pop(1)
DATA = pathlib.Path(__file__).parent / "data"
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def lathe(*args: str, stdin: str = "") -> subprocess.CompletedProcess:
    return subprocess.run([LATHE, *args], capture_output=True, text=True, input=stdin, timeout=120)


class ModelCommand(unittest.TestCase):
    """A folder with a configuration, a tokenizer and a chat template, and random weights."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = pathlib.Path(cls.folder.name)
        tokenizer = json.loads((DATA / "tokenizer/qwen2/tokenizer.json").read_text())
        ids = list(tokenizer["model"]["vocab"].values()) + [t["id"] for t in tokenizer["added_tokens"]]
        config = json.loads((DATA / "models/qwen3/config.json").read_text())
        config["vocab_size"] = max(ids) + 1
        (cls.model / "config.json").write_text(json.dumps(config))
        shutil.copy(DATA / "tokenizer/qwen2/tokenizer.json", cls.model)
        (cls.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        cls.context = config["max_position_embeddings"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def flags(self, *args: str, model: pathlib.Path | None = None) -> list[str]:
        return ["--model", str(model or self.model), "--load-format", "dummy", *args]

    def generate(self, *args: str) -> list[dict]:
        result = lathe("generate", *self.flags("--json", "--ignore-eos", "--max-new-tokens", "12", *args))
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refused(self, *args: str, stdin: str = "") -> str:
        result = lathe(*args, stdin=stdin)
        self.assertEqual(result.returncode, 2, (args, result.stderr))
        self.assertEqual(result.stdout, "")
        # What a request meets comes after the lines of the start.
        self.assertTrue(result.stderr.splitlines()[-1].startswith("lathe: "), result.stderr)
        self.assertNotIn("terminate", result.stderr)
        return result.stderr
