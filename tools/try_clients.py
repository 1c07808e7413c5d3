#!/usr/bin/env python3
"""Runs unmodified clients of other projects against lathe serve. They come from PyPI, so make test leaves them out.

    tools/try_clients.py sglang-bench build/lathe     SGLang's Rust bench client over its three routes
    tools/try_clients.py lm-eval build/lathe          lm-eval by chat and by completions, compared with lathe eval
    tools/try_clients.py sdks build/lathe             the openai and anthropic packages; what Codex and Claude Code send, as recorded
    tools/try_clients.py agents build/lathe           OpenAI's Agents SDK, LangChain, Pydantic AI, MCP clients, Instructor and LiteLLM
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SGLANG = "sglang==0.5.23"
LM_EVAL = "lm_eval[api]==0.4.13"
# Pydantic AI calls message types of anthropic that 2.0 made unions.
AGENTS = ("anthropic<2", "openai-agents", "langchain-openai", "langchain-anthropic", "langgraph", "pydantic-ai-slim[openai,anthropic]", "mcp",
          "instructor", "litellm")
SDKS = ("openai", "anthropic", "pytest")
TASKS = ("arithmetic", "copy", "retrieval")

# The wheel's bench client is one shared object that needs nothing else from the wheel.
RUN_BENCH = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_bench", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_argv(["sglang-bench", *sys.argv[2:]])
"""


def environment(folder: pathlib.Path) -> pathlib.Path:
    if not (folder / "bin/python").exists():
        venv.create(folder, with_pip=True)
    return folder / "bin/python"


@contextlib.contextmanager
def server(lathe: str, model: str):
    """Runs a server inside the block; yields its port."""
    process = subprocess.Popen([lathe, "serve", "--model", model, "--port", "0", "--max-connections", "500", "--log-requests", "0"],
                               cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        port = None
        for line in process.stderr:
            if found := re.match(r"listening http://.*:(\d+)", line):
                port = int(found[1])
            if line.startswith("ready "):
                break
        else:
            sys.exit("the server did not start")
        yield port
    finally:
        process.terminate()
        process.wait()


def sglang_bench(args) -> bool:
    folder = pathlib.Path(args.folder) / "sglang"
    python = environment(folder)
    if not list(folder.glob("_bench*.so")):
        subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", folder, SGLANG], check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as z:
            (name,) = (n for n in z.namelist() if "/_bench." in n)
            (folder / pathlib.Path(name).name).write_bytes(z.read(name))
        wheel.unlink()
    (module,) = folder.glob("_bench*.so")
    good = True
    with server(args.lathe, args.model) as port:
        for backend in ("sglang", "sglang-oai", "sglang-oai-chat"):
            with tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
                subprocess.run([python, "-c", RUN_BENCH, module, "--backend", backend, "--host", "127.0.0.1", "--port", str(port),
                                "--dataset-name", "random-ids", "--disable-retokenize", "--extra-request-body", '{"skip_special_tokens": false}',
                                *([] if backend.endswith("chat") else ["--tokenize-prompt", "--vocab-size", "2048"]),
                                "--tokenizer", args.model, "--num-prompts", str(args.limit), "--random-input-len", "64",
                                "--random-output-len", "32", "--random-range-ratio", "1", "--max-concurrency", "16", "--disable-tqdm",
                                "--output-file", out.name], cwd=ROOT, check=True, stdout=None if args.verbose else subprocess.DEVNULL)
                result = json.loads(pathlib.Path(out.name).read_text().splitlines()[-1])
            complete, tokens = result["completed"], result["total_output_tokens"]
            fits = complete == args.limit and tokens == 32 * args.limit
            good = good and fits
            print(f"{backend:16} {complete} of {args.limit} complete, {tokens} tokens, {result['output_throughput']:.0f} tokens/s, "
                  f"first token median {result['median_ttft_ms']:.1f} ms{'' if fits else '   WRONG'}")
    return good


def lm_eval(args) -> bool:
    folder = pathlib.Path(args.folder) / "lm_eval"
    python = environment(folder)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", LM_EVAL], check=True)
    own = json.loads(subprocess.run([args.lathe, "eval", "--model", args.model, "--task", "all", "--limit", str(args.limit), "--json"],
                                    cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    wanted = {t: own["tasks"][t]["right"] / own["tasks"][t]["items"] for t in TASKS}
    good = True
    with server(args.lathe, args.model) as port:
        for kind, path, more, suffix in (("local-chat-completions", "chat/completions", ["--apply_chat_template"], ""),
                                         ("local-completions", "completions", [], "_text")):
            model_args = f"model=default,base_url=http://127.0.0.1:{port}/v1/{path},num_concurrent=8,max_retries=1"
            if suffix:
                model_args += ",tokenizer_backend=remote,tokenized_requests=True,max_length=16384"
            with tempfile.TemporaryDirectory() as out:
                subprocess.run([python, "-m", "lm_eval", "run", "--model", kind, "--model_args", model_args, "--include_path", "tools/lm_eval",
                                "--tasks", ",".join(f"lathe_{t}{suffix}" for t in TASKS), "--limit", str(args.limit), "--output_path", out,
                                *more], cwd=ROOT, check=True, stdout=None if args.verbose else subprocess.DEVNULL,
                               stderr=None if args.verbose else subprocess.DEVNULL)
                (file,) = pathlib.Path(out).rglob("results*.json")
                results = json.loads(file.read_text())["results"]
            for task in TASKS:
                got = results[f"lathe_{task}{suffix}"]["exact_match,marked"]
                fits = abs(got - wanted[task]) < 1e-9
                good = good and fits
                print(f"{kind:24} {task:12} {got:.4f}, lathe eval {wanted[task]:.4f}{'' if fits else '   DIFFER'}")
    return good


def sdks(args) -> bool:
    python = environment(pathlib.Path(args.folder) / "sdks")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *SDKS], check=True)
    good = True
    for command in ((python, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "python/tests/test_openai_client.py",
                     "python/tests/test_agent_clients.py"),
                    (python, "tests/serve_agents_test.py", args.lathe), (python, "tests/serve_clients_test.py", args.lathe)):
        good = subprocess.run(command, cwd=ROOT, env={**os.environ, "LATHE_COMMAND": args.lathe}, check=False).returncode == 0 and good
    return good


def agents(args) -> bool:
    python = environment(pathlib.Path(args.folder) / "agents")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *AGENTS], check=True)
    return subprocess.run([python, "tests/agent_frameworks.py", args.lathe], cwd=ROOT, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=("sglang-bench", "lm-eval", "sdks", "agents"))
    parser.add_argument("lathe")
    parser.add_argument("--model", default="models/tiny-gqa")
    parser.add_argument("--limit", type=int, default=100, help="requests, or items of each task")
    parser.add_argument("--folder", default=str(ROOT / "build/clients"), help="where what is installed goes")
    parser.add_argument("--verbose", action="store_true", help="show what the client prints")
    args = parser.parse_args()
    args.lathe = str(pathlib.Path(args.lathe).resolve())
    good = {"sglang-bench": sglang_bench, "lm-eval": lm_eval, "sdks": sdks, "agents": agents}[args.client](args)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
