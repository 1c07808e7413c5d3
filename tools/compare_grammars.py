#!/usr/bin/env python3
"""Compile times and masks of JSON schemas, of this engine and of xgrammar (PyPI): compare_grammars.py CHECK VOCAB [--rounds N]

CHECK is the program lathe_grammar_check. VOCAB has a real vocabulary as PyPI's quicktok-v1 packs them (data/llama3.vocab: the number of
tokens, then of each its length, text and id). Both engines compile the schemas of tools/schema_samples.py that both accept, and follow the
same answer, one token after another; each counts its CPU time: compiling, the mask of each step in the first answer and in a second one. Prints a
table in Markdown with medians, and medians of the ratios.
"""

import argparse
import json
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import schema_samples


def read_vocab(path):
    data = open(path, "rb").read()
    count, = struct.unpack_from("<I", data)
    texts, at = {}, 4
    for _ in range(count):
        size, = struct.unpack_from("<H", data, at)
        text = data[at + 2:at + 2 + size]
        number, = struct.unpack_from("<I", data, at + 2 + size)
        texts[number] = text
        at += 6 + size
    return [texts.get(i, b"") for i in range(max(texts) + 1)]


class Tokens:
    def __init__(self, texts):
        self.number = {t: i for i, t in enumerate(texts) if t}
        self.longest = min(32, max(map(len, self.number)))

    def of(self, text):
        out, at = [], 0
        while at < len(text):
            n = next(n for n in range(min(self.longest, len(text) - at), 0, -1) if text[at:at + n] in self.number)
            out.append(self.number[text[at:at + n]])
            at += n
        return out


class Lathe:
    def __init__(self, check, texts):
        self.file = tempfile.NamedTemporaryFile(suffix=".vocab")
        self.file.write(struct.pack("<I", len(texts)) + b"".join(struct.pack("<H", len(t)) + t for t in texts))
        self.file.flush()
        self.process = subprocess.Popen([check, self.file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Peer:
    def __init__(self, texts):
        import numpy
        import xgrammar

        self.x = xgrammar
        self.info = xgrammar.TokenizerInfo(texts, xgrammar.VocabType.RAW, stop_token_ids=[len(texts) - 1])
        self.bits = numpy.zeros((1, (len(texts) + 31) // 32), dtype=numpy.int32)

    def ask(self, schema, tokens):
        x = self.x
        compiler = x.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        start = time.process_time()
        try:
            compiled = compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except Exception as error:  # of several kinds
            return {"error": str(error)}
        out = {"compile": 1e6 * (time.process_time() - start)}
        for name in ("masks", "again"):
            matcher = x.GrammarMatcher(compiled)
            out[name] = []
            for token in tokens:
                start = time.process_time()
                matcher.fill_next_token_bitmask(self.bits)
                out[name].append(1e6 * (time.process_time() - start))
                if not matcher.accept_token(token):
                    return {"error": "a token refused"}
        return out


def answers(lathe, samples):
    """An answer for each schema: a text that random walks lead to, of the first seed that ends."""
    for name, schema in samples.items():
        for seed in range(50):
            got = lathe.ask(schema=schema, walks=1, seed=seed)
            if isinstance(got, dict):
                break
            if got[0] and len(got[0]) > 30:
                try:  # with plain spelling, as models write
                    yield name, schema, json.dumps(json.loads(got[0]), ensure_ascii=False)
                except ValueError:
                    continue
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check")
    parser.add_argument("vocab")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without xgrammar")
    args = parser.parse_args()
    texts = read_vocab(args.vocab) + [b""]
    tokens = Tokens(texts)
    walker = subprocess_checker(args.check)
    lathe = Lathe(args.check, texts)
    peer = None if args.alone else Peer(texts)
    samples = {**schema_samples.MCP_TOOLS, **schema_samples.pydantic_fields()}
    rows, ratios = [], {"compile": [], "first": [], "again": []}
    print("| schema | tokens | compile, ms | xgrammar | mask in a first answer, median us | worst | xgrammar | worst | mask later | xgrammar |")
    print("| --- |" + " --- |" * 9)
    for name, schema, text in answers(walker, samples):
        ids = tokens.of(text.encode())
        ours = [lathe.ask(schema=schema, tokens=ids) for _ in range(args.rounds)]
        theirs = [peer.ask(schema, ids) for _ in range(args.rounds)] if peer else []
        if any("error" in r or isinstance(r["masks"], str) for r in ours):
            print(f"| {name} | {ours[0].get('error') or ours[0]['masks']} |", file=sys.stderr)
            continue

        def figures(runs):
            if not runs or any("error" in r for r in runs):
                return None
            med = statistics.median
            return [med(r["compile"] for r in runs) / 1e3, med(med(r["masks"]) for r in runs), med(max(r["masks"]) for r in runs),
                    med(med(r["again"]) for r in runs)]
        a, b = figures(ours), figures(theirs)
        if b:
            for key, i in (("compile", 0), ("first", 1), ("again", 3)):
                ratios[key].append(a[i] / b[i])
        rows.append((a, b))
        shown = [f"{x:.1f}" if x is not None else "-" for x in
                 (a[0], b and b[0], a[1], a[2], b and b[1], b and b[2], a[3], b and b[3])]
        print(f"| {name} | {len(ids)} | " + " | ".join(shown) + " |", flush=True)
    med = statistics.median
    print(f"\nMedians of this engine: compile {med(a[0] for a, _ in rows):.1f} ms, mask {med(a[1] for a, _ in rows):.1f} us in a first answer and "
          f"{med(a[3] for a, _ in rows):.1f} us later.")
    if ratios["compile"]:
        print("Medians of the ratios to xgrammar: " + ", ".join(f"{k} {med(v):.2f}" for k, v in ratios.items()) + f", of {len(ratios['compile'])} schemas.")


def subprocess_checker(check):
    out = Lathe.__new__(Lathe)
    out.process = subprocess.Popen([check], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return out


if __name__ == "__main__":
    main()
