#!/usr/bin/env python3
"""Compares `lathe tokenize` with the PyPI packages tokenizers and tiktoken on random and hostile texts.

    python3 tools/check_tokenizers.py PROGRAM [--count 2000] [--seed N] [--model NAME]

Needs tokenizers, tiktoken and sentencepiece with protobuf (checked with 0.23.3, 0.14.0 and 0.2.3). The models are those of make_tokenizer_fixtures.py that
share its vocabularies: Metaspace in every form, unigram, with sentencepiece's charsmap nmt_nfkc too, and a tiktoken.model as Kimi has it. Every text is encoded, its ids
and a tail of them are decoded; the first differences are printed. Exit 1 if there is one.
"""

import argparse
import base64
import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "fixtures"))
import make_tokenizer_fixtures as fixtures  # noqa: E402


def hostile(rng, texts):
    """Pieces of text in which marks, spaces, added tokens, scripts and cases meet."""
    pieces = fixtures.HOSTILE + fixtures.ODD + fixtures.SPACES + ["▁", " ", "_", "<s>", "</s>", "<unk>", "<0x41>", "[BOS]", "漢", "か"]
    out = []
    for _ in range(rng.randrange(1, 10)):
        kind = rng.random()
        if kind < 0.6:
            out.append(rng.choice(pieces))
        elif kind < 0.8:
            out.append(fixtures.random_char(rng) * rng.choice([1, 1, 2, 7]))
        else:
            out.append(rng.choice(texts)[:rng.randrange(20)])
    return "".join(out)


def lathe(program, folder, arguments, text=""):
    run = subprocess.run([program, "tokenize", "--model", folder, "--json", *arguments], input=text.encode(), capture_output=True)
    if run.returncode != 0:
        return run.stderr.decode(errors="replace")
    return json.loads(run.stdout)


def check(program, folder, text, ids, decode, report):
    """ids: the library's; decode(ids) -> text."""
    got = lathe(program, folder, ["-"], text) if text else {"tokens": []}
    if not isinstance(got, dict) or got["tokens"] != ids:
        report(text, ids, got if isinstance(got, str) else got["tokens"])
    elif ids and got["text"] != decode(ids):
        report(ids, decode(ids), got["text"])
    tail = ids[len(ids) // 2:]
    if tail:
        got = lathe(program, folder, ["--decode", ",".join(map(str, tail))])
        if not isinstance(got, dict) or got["text"] != decode(tail):
            report(tail, decode(tail), got if isinstance(got, str) else got["text"])


def compare(name, program, folder, encode, decode, texts):
    different = []
    report = lambda *what: different.append(what)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda text: check(program, folder, text, encode(text), decode, report), texts))
    print(f"{name}: {len(texts)} texts, {len(different)} differences", flush=True)
    for what in different[:5]:
        print("   ", *map(repr, what), sep="\n      ")
    return not different


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("--count", type=int, default=2000)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--model")
    flags = args.parse_args()
    print(f"seed {flags.seed}")
    rng = random.Random(flags.seed)
    read = lambda name: json.loads((fixtures.OUT / name / "tokenizer.json").read_text(encoding="utf-8"))
    llama2, ranks = read("llama2"), fixtures.kimi_ranks(read("deepseek_v3"))
    added = ["<s>", "</s>", "<unk>", "<|im_end|>", "[BOS]", "<|tool_call_begin|>", "<|im_end"]
    plain = fixtures.make_texts(rng, flags.count, added)[:flags.count]
    texts = [hostile(rng, plain) if i % 2 else plain[i] for i in range(flags.count)]
    same = True
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        for name, keys in fixtures.metaspaces(llama2) + fixtures.unigrams(llama2) + fixtures.charsmaps(llama2):
            if flags.model not in (None, name):
                continue
            (path / "tokenizer.json").write_text(json.dumps(llama2 | keys))
            library = fixtures.Tokenizer.from_file(str(path / "tokenizer.json"))
            same &= compare(name, flags.program, folder, lambda t: library.encode(t, add_special_tokens=False).ids,
                            lambda ids: library.decode(ids, skip_special_tokens=False), texts)
        (path / "tokenizer.json").unlink(missing_ok=True)
        if flags.model in (None, "tiktoken"):
            lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
            (path / "tiktoken.model").write_text("\n".join(lines) + "\n")
            (path / "tokenizer_config.json").write_text(json.dumps(fixtures.kimi_config(len(ranks))))
            encoding = fixtures.kimi(ranks)
            same &= compare("tiktoken", flags.program, folder, lambda t: encoding.encode(t, allowed_special="all"), encoding.decode, texts)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
