#!/usr/bin/env python3
"""Which JSON schemas constrained answers follow: measure_schemas.py CHECK [--suite FOLDER] [--peer] [--out FILE]

CHECK is the program lathe_grammar_check. Prints a table in Markdown:
- with --suite, the JSON Schema test suite (github.com/json-schema-org/JSON-Schema-Test-Suite, its folder tests/draft2020-12): each schema
  is followed, refused, or has only annotations; of the followed ones every valid instance must be accepted and every invalid one refused.
  Exits with 1 if one is not. A schema that refers to other documents, which are in the suite's folder remotes or are the standard's own, is
  followed if it is once these are embedded in it (section 9.3 of the standard's core).
- 32 kinds of fields as Pydantic (PyPI) writes their schemas, 17 tools as MCP servers describe them, and 51 tools of two real MCP servers.
With --peer it also counts what xgrammar (PyPI) accepts, and lists the schemas of the suite that it judges rightly and this engine refuses.

An instance is written as JSON with integers without a decimal point, and accepted if it is in one order of its members: schemas fix it.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import urllib.parse

import jsonschema_specifications
import schema_samples

MOST_ORDERS = 720
# Files of the suite about what this engine does by another rule, which docs/server.md states.
BY_ANOTHER_RULE = {"format.json": "known formats are followed, not annotations",
                   "vocabulary.json": "`$schema` is an annotation, so all keywords hold"}


class Checker:
    def __init__(self, command):
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def spell(value):
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e300:
        return str(int(value))
    if isinstance(value, float):
        text = repr(value)
        return text if "e" not in text else f"{value:.20f}".rstrip("0") if abs(value) < 1 else text.replace("e+", "e")
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def spellings(value):
    """All orders of members, as far as they are few."""
    if isinstance(value, list):
        return ["[" + ", ".join(items) + "]" for items in itertools.islice(itertools.product(*map(spellings, value)), MOST_ORDERS)]
    if isinstance(value, dict):
        out = []
        for order in itertools.islice(itertools.permutations(value), MOST_ORDERS):
            for values in itertools.islice(itertools.product(*(spellings(value[k]) for k in order)), MOST_ORDERS):
                out.append("{" + ", ".join(json.dumps(k, ensure_ascii=False) + ": " + v for k, v in zip(order, values)) + "}")
            if len(out) > MOST_ORDERS:
                break
        return out
    return [spell(value)]


def constrains(schema):
    """Whether the schema has a keyword that is more than an annotation."""
    notes = {"$schema", "$id", "$comment", "title", "description", "default", "format", "contentMediaType", "contentEncoding", "contentSchema",
             "minContains", "maxContains", "then", "else", "$defs"}
    return not isinstance(schema, dict) or bool(set(schema) - notes)


def other_documents(folder):
    """By their address: the suite's, and the standard's schemas of schemas."""
    remotes = pathlib.Path(folder).parent.parent / "remotes"
    out = {f"http://localhost:1234/{path.relative_to(remotes)}": json.loads(path.read_text()) for path in remotes.rglob("*.json")}
    return out | {uri.rstrip("#"): jsonschema_specifications.REGISTRY.contents(uri) for uri in jsonschema_specifications.REGISTRY
                  if "2020-12" in uri}


def references(schema, base):
    """The absolute addresses that a schema refers to, without fragments."""
    if isinstance(schema, list):
        return set().union(*(references(s, base) for s in schema))
    if not isinstance(schema, dict):
        return set()
    if isinstance(schema.get("$id"), str):
        base = urllib.parse.urljoin(base, schema["$id"])
    own = {urllib.parse.urljoin(base, schema[k]).partition("#")[0] for k in ("$ref", "$dynamicRef") if isinstance(schema.get(k), str)}
    return own.union(*(references(s, base) for s in schema.values()))


def embed(schema, documents):
    """The schema with all documents that it refers to, or None if it refers to none."""
    needed, todo = {}, references(schema, "")
    while todo:
        uri = todo.pop()
        if uri in documents and uri not in needed:
            needed[uri] = documents[uri]
            todo |= references(documents[uri], uri)
    if not needed:
        return None
    embedded = {}
    for uri, document in needed.items():
        own = urllib.parse.urljoin(uri, document.get("$id", uri)).rstrip("#")
        embedded[uri] = {**document, "$id": own}
        if own != uri:
            embedded[uri + " (address)"] = {"$id": uri, "$ref": own}
    return {**schema, "$defs": schema.get("$defs", {}) | embedded}


def run_suite(checker, folder, show):
    rows, wrong, refused_why = [], [], {}
    documents = other_documents(folder)
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        followed = embedded = refused = annotated = valid = invalid = 0
        bad = 0
        for group in json.loads(path.read_text()):
            tests = group["tests"]
            texts = [spellings(t["data"]) for t in tests]
            flat = [t for some in texts for t in some]
            got = checker.ask(schema=group["schema"], texts=flat)
            whole = None
            if isinstance(got, dict) and "$ref" in got["error"]:
                whole = embed(group["schema"], documents)
                got = checker.ask(schema=whole, texts=flat) if whole else got
            if isinstance(got, dict):
                if "allows some text" in got["error"]:
                    got = [False] * len(flat)
                else:
                    refused += 1
                    refused_why[(path.name, group["description"])] = got["error"]
                    continue
            if whole:
                embedded += 1
            elif constrains(group["schema"]):
                followed += 1
            else:
                annotated += 1
            at = 0
            for test, some in zip(tests, texts):
                accepted = any(got[at:at + len(some)])
                at += len(some)
                valid += test["valid"]
                invalid += not test["valid"]
                if accepted != test["valid"] and path.name not in BY_ANOTHER_RULE:
                    bad += 1
                    wrong.append(f"{path.name}: {group['description']}: {test['description']}: {json.dumps(test['data'])[:80]} should be "
                                 f"{'valid' if test['valid'] else 'invalid'}")
        rows.append((path.stem, followed, embedded, refused, annotated, valid, invalid, bad))
    total = [sum(r[i] for r in rows) for i in range(1, 8)]
    print("| keyword | schemas followed | with documents embedded | refused | annotations only | valid instances | invalid instances | wrong |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows + [("all", *total)]:
        print("| " + " | ".join(map(str, row)) + " |")
    print()
    for name, why in BY_ANOTHER_RULE.items():
        print(f"`{name}` is not judged: {why}.")
    if show:
        print("\nRefused:\n")
        for (name, group), error in refused_why.items():
            print(f"- {name}: {group}: {error}")
    for line in wrong:
        print("WRONG", line, file=sys.stderr)
    return wrong, refused_why


class Peer:
    def __init__(self):
        import xgrammar

        self.x = xgrammar
        info = xgrammar.TokenizerInfo([bytes([b]) for b in range(256)] + [b""], xgrammar.VocabType.RAW, stop_token_ids=[256])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def accepts(self, schema):
        try:
            return self.compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except Exception:  # of several kinds
            return None

    def judge(self, folder, refused):
        """How many schemas of the suite it accepts, and how many of their instances it judges wrongly."""
        schemas = valid = invalid = 0
        better = []
        for path in sorted(pathlib.Path(folder).glob("*.json")):
            for group in json.loads(path.read_text()):
                grammar = self.accepts(group["schema"]) if path.name not in BY_ANOTHER_RULE else None
                if grammar is None:
                    continue
                schemas += 1
                before = valid + invalid
                for test in group["tests"]:
                    accepted = False
                    for text in spellings(test["data"]):
                        matcher = self.x.GrammarMatcher(grammar, terminate_without_stop_token=True)
                        accepted = accepted or (matcher.accept_string(text) and matcher.is_terminated())
                    valid += test["valid"] and not accepted
                    invalid += accepted and not test["valid"]
                if valid + invalid == before and (path.name, group["description"]) in refused:
                    better.append(f"{path.name}: {group['description']}")
        print(f"\nxgrammar accepts {schemas} of these schemas; it refuses {valid} of their valid instances and accepts {invalid} invalid ones. "
              f"Of the refused schemas above it judges {len(better)} rightly.")
        for line in better:
            print(f"- {line}")


def run_samples(checker, peer):
    kinds = {"Pydantic field": schema_samples.pydantic_fields(), "MCP tool": schema_samples.MCP_TOOLS}
    kinds |= {f"tool of {server}": tools for server, tools in schema_samples.real_tools().items()}
    for title, samples in kinds.items():
        count = other = 0
        lines = []
        for name, schema in samples.items():
            got = checker.ask(schema=schema, texts=[])
            fine = not isinstance(got, dict)
            count += fine
            theirs = peer.accepts(schema) if peer else None
            other += bool(theirs)
            lines.append(f"| {name} | {'followed' if fine else got['error']} |" + (f" {'accepted' if theirs else 'refused'} |" if peer else ""))
        print(f"\n| {title} | {count} of {len(samples)} |" + (f" xgrammar {other} of {len(samples)} |" if peer else ""))
        print("| --- | --- |" + (" --- |" if peer else ""))
        print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check")
    parser.add_argument("--suite")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--refused", action="store_true", help="list refused schemas of the suite")
    args = parser.parse_args()
    checker = Checker(args.check)
    wrong, refused = run_suite(checker, args.suite, args.refused) if args.suite else ([], {})
    peer = Peer() if args.peer else None
    if peer and args.suite:
        peer.judge(args.suite, refused)
    run_samples(checker, peer)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
