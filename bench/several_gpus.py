#!/usr/bin/env python3
"""Everything that a machine of several GPUs has to show, in one call: exchanges, whole models, experts by number, NCCL.

    python3 bench/several_gpus.py build/lathe --list                          the cases, and which of them fit this machine
    python3 bench/several_gpus.py build/lathe --programs build/gpu > FILE     all that fit: some ten minutes on eight GPUs
    python3 bench/several_gpus.py build/lathe --only C1,C5 --gpus 4           some of them, on four of the GPUs
    python3 bench/several_gpus.py build/lathe --list --device h200 --gpus 8   the same for a machine that is not here
    python3 bench/several_gpus.py build/lathe --device cpu --gpus 2           the shipped models on ranks of a CPU, to try the script

C1  sums and dealt logits at 2, 4, .. ranks, 1 to 8192 rows, by peer memory and by NCCL; thresholds of the paths are set from the first
C2  shares: gpt-oss-120b (uneven), Qwen3-235B (KV heads on several ranks), Llama 70B and DeepSeek V4 Flash
C3  models that only eight GPUs hold: DeepSeek V3.2, GLM-5, Kimi K2
C4  the mixtures of C2 and C3 with experts by number
C5  answers and speed of --exchange nccl without peer access; a rank that ends or stalls (gpu_ranks_gpu_test)
C6  --soak MINUTES of mixed load with --check-ranks: nothing lost, equal ranks
C7  --checkpoint DIR: from start to ready with one rank and with two, in turn; DIR, in tmpfs, gets the shapes of Qwen3-32B (66 GB) first,
    unless it has a checkpoint

A whole model has random weights of full size. Its row has the time from start to ready, the card's memory beside the plan's, tokens/s and
the share of the floor of decode steps of 1, 64 and 256 requests after 960 tokens and of a prefill of 8192 tokens, and how many of 1000
requests that came at once were answered. Batches that the cache cannot hold are left out, and a case that is refused is a row with the
reason. Exits with 1 if one failed.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "tests/data/configs"
SHIPPED = ("tiny-gqa", "tiny-v32", "tiny-v4")
SIZES = {"context": 10240, "requests": 256, "tokens": 400_000, "batches": (1, 64, 256), "depth": 960, "steps": 16, "prefill": 8192,
         "at_once": 1000, "input": 512, "output": 64}
SMALL = {"context": 512, "requests": 4, "tokens": 4096, "batches": (1, 2), "depth": 32, "steps": 4, "prefill": 64,
         "at_once": 6, "input": 16, "output": 4}


@dataclasses.dataclass
class Case:
    part: str
    name: str
    ranks: int
    flags: tuple[str, ...] = ()
    tokens: int = 0  # of the cache; 0: as SIZES


def whole_models(cpu: bool) -> list[Case]:
    if cpu:
        return [Case("C2", model, 2) for model in SHIPPED] + [Case("C4", "tiny-v32", 2, ("--expert-split", "number"))]
    by_number = ("--expert-split", "number")
    sizes = {"gpt-oss-120b": (2, 4, 8), "qwen3-235b-fp8": (2, 4, 8), "llama-3.1-70b": (2, 4, 8), "deepseek-v4-flash": (2, 4)}
    large = ("deepseek-v3.2", "glm-5-fp8", "kimi-k2")
    return ([Case("C2", model, n) for model, ranks in sizes.items() for n in ranks] + [Case("C3", model, 8) for model in large] +
            [Case("C4", model, 8, by_number) for model in ("deepseek-v3.2", "glm-5-fp8", "gpt-oss-120b")] +
            [Case("C4", model, 2, by_number) for model in ("deepseek-v4-flash", "qwen3-235b-fp8")])


class Machine:
    """Where the cases run: the first GPUs of this machine, or ranks of its CPU."""

    def __init__(self, args: argparse.Namespace):
        self.program, self.device, self.cpu = args.program, args.device, args.device == "cpu"
        self.sizes = SMALL if self.cpu else SIZES
        self.gpus = args.gpus or (2 if self.cpu else len(self.memory()))

    @staticmethod
    def memory() -> list[int]:
        """MiB in use of every GPU."""
        try:
            text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                                  check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return []
        return [int(line) for line in text.split()]

    def model_flags(self, case: Case) -> list[str]:
        if self.cpu:
            model = ["--model", str(ROOT / "models" / case.name), "--device", self.device]
        else:
            model = ["--load-format", "dummy", "--config", str(CONFIGS / f"{case.name}.json"), "--device", self.device]
        return [*model, "--tp", str(case.ranks), "--context-length", str(self.sizes["context"]), "--max-running-requests",
                str(self.sizes["requests"]), "--max-total-tokens", str(case.tokens or self.sizes["tokens"]), *case.flags]

    def serve_flags(self, case: Case) -> list[str]:
        """With a tokenizer, which a configuration alone does not have."""
        return [*self.model_flags(case), *(() if self.cpu else ("--model", str(ROOT / "models/tiny-gqa")))]

    def run(self, *args: str, **more) -> str:
        """What the command prints. Raises RuntimeError with the end of its message where it refuses."""
        limit = more.pop("timeout", 600)
        try:
            result = subprocess.run([self.program, *args], capture_output=True, text=True, timeout=limit, **more)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not finished after {limit} s") from None
        if result.returncode != 0:
            raise RuntimeError(" ".join((result.stderr or result.stdout).strip().splitlines()[-2:]))
        return result.stdout

    def plan(self, case: Case) -> str:
        """The plan of a case, with fewer tokens in the cache if no more fit. Raises RuntimeError where it is refused."""
        if case.ranks > self.gpus:
            raise RuntimeError(f"{case.ranks} ranks, {self.gpus} are here")
        absent = self.device not in ("cpu", "cuda")

        def ask() -> str:
            flags = self.model_flags(case)
            if not self.cpu:
                flags = flags[2:]  # a plan knows no --load-format
            return self.run("plan", *flags, *(("--gpus", str(self.gpus)) if absent else ()))

        try:
            return ask()
        except RuntimeError as error:
            found = re.search(r"wanted at most (\d+) tokens", str(error))
            if not found or int(found[1]) < 64 * self.tokens_of_request():
                raise
            case.tokens = int(found[1])
            return ask()

    def tokens_of_request(self) -> int:
        """Of a decode test's, in whole pages of up to 256."""
        return (self.sizes["depth"] + self.sizes["steps"] + 1 + 255) // 256 * 256

    def batches(self, case: Case) -> str:
        tokens = case.tokens or self.sizes["tokens"]
        return ",".join(str(b) for b in self.sizes["batches"] if self.cpu or b * self.tokens_of_request() <= tokens)


def planned_mib(plan: str) -> float | None:
    """Of the first rank, without the reserve; the driver's own 405 MiB are in it."""
    units = {"GiB": 1024, "MiB": 1}
    found = {name: float(n) * units[unit] for name, n, unit in re.findall(r"^ *(in all|reserve) +([\d.]+) (GiB|MiB)", plan, re.M)}
    return found["in all"] - found.get("reserve", 0) + 405 if "in all" in found else None


class Server:
    """`lathe serve` of a case until the end of the block; `seconds` until it was ready."""

    def __init__(self, machine: Machine, *flags: str):
        command = [machine.program, "serve", *flags, "--port", "0"]
        start = time.monotonic()
        self.log, self.port, self.seconds = [], None, 0.0
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        ready = threading.Event()

        def read():
            for line in self.process.stderr:
                self.log.append(line)
                if found := re.match(r"listening http://.*:(\d+)", line):
                    self.port = int(found[1])
                if line.startswith("ready "):
                    self.seconds = time.monotonic() - start
                    ready.set()
            ready.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        if not ready.wait(600) or self.process.poll() is not None:
            self.process.kill()
            raise RuntimeError("the server did not start: " + "".join(self.log[-2:]).strip())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.code = self.process.wait()
        self.reader.join()


def load(machine: Machine, server: Server, requests: int, *flags: str) -> dict:
    s = machine.sizes
    out = machine.run("bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}", "--num-prompts", str(requests),
                      "--random-input-len", str(s["input"]), "--random-output-len", str(s["output"]), "--random-range-ratio", "0.9",
                      "--vocab-size", "250", "--seed", "11", "--extra-body", '{"ignore_eos": true}', "--json", *flags, timeout=3600)
    return json.loads(out)


def whole_model(machine: Machine, case: Case) -> dict:
    s, row = machine.sizes, {}
    plan = machine.plan(case)
    if case.tokens:
        row["cache"] = f"{case.tokens} tokens"
    bench = ["bench", "engine", *machine.model_flags(case), "-r", "2", "--quiet", "--json"]
    decode = json.loads(machine.run(*bench, "-p", "0", "-n", str(s["steps"]), "-d", str(s["depth"]), "-b", machine.batches(case)))["rows"]
    prefill = json.loads(machine.run(*bench, "-p", str(s["prefill"]), "-n", "0"))["rows"]
    for r in decode:
        row[f"b {r['batch']}"] = f"{r['batch'] / r['tokens_per_s'] * 1e3:.2f} ms, share {r.get('floor_share', 0):.2f}"
        if "host_s" in r:
            row[f"b {r['batch']}"] += f", host {r['host_s'] * 1e6:.0f} us"
    row[f"prefill {s['prefill']}"] = f"{prefill[0]['tokens_per_s']:.0f} tokens/s"
    before = machine.memory()
    with Server(machine, *machine.serve_flags(case)) as server:
        row["ready"] = f"{server.seconds:.2f} s"
        result = load(machine, server, s["at_once"])
        row["answered"] = f"{result['completed']} of {s['at_once']}, {result['output_throughput']:.0f} tokens/s"
        used = [now - then for now, then in zip(machine.memory(), before)][:case.ranks]
    planned = planned_mib(plan)
    if used and planned:
        row["MiB"] = f"{', '.join(str(u) for u in used)} of {planned:.0f} planned"
    row["exit"] = server.code
    row["failed"] = result["completed"] != s["at_once"] or server.code != 0
    return row


def exchanges(machine: Machine, programs: pathlib.Path | None) -> list[dict]:
    rows = []
    ranks = [n for n in (2, 4, 8) if n <= machine.gpus]
    size = ["--rows", "1,2", "--cols", "64", "--repeats", "1"] if machine.cpu else ["--cols", "7168"]
    for n in ranks:
        try:
            text = machine.run("bench", "exchange", "--device", "cpu" if machine.cpu else "cuda", "--tp", str(n), *size)
            rows.append({"case": f"C1 bench exchange, {n} ranks", "text": text})
        except RuntimeError as error:
            rows.append({"case": f"C1 bench exchange, {n} ranks", "failed": True, "why": str(error)})
        if programs is None or machine.cpu:
            continue
        for name, flags in (("exchange_gpu_test", ["--gtest_brief=1"]), ("bench/exchange_gpu_bench", ["--ranks", str(n), "--repeats", "5"])):
            rows.append(program(programs / name, f"C1 {name}, {n} ranks", flags))
    return rows


def program(path: pathlib.Path, case: str, flags: list[str], lines: int = 40) -> dict:
    if not path.exists():
        return {"case": case, "left out": f"no {path}"}
    result = subprocess.run([str(path), *flags], capture_output=True, text=True, timeout=600)
    return {"case": case, "failed": result.returncode != 0, "text": "\n".join((result.stdout + result.stderr).splitlines()[-lines:])}


def nccl(machine: Machine, programs: pathlib.Path | None) -> list[dict]:
    """Greedy answers of a shipped model by both exchanges, NCCL without peer access; then ranks that end and stall."""
    rows, texts = [], {}
    model = ["generate", "--model", str(ROOT / "models/tiny-gqa"), "--device", "cpu" if machine.cpu else "cuda", "--tp",
             str(min(2, machine.gpus)), "--prompt", "Sort the words: pear apple fig", "--temperature", "0", "--max-new-tokens", "24",
             "--ignore-eos"]
    for kind in ("auto",) if machine.cpu else ("peer", "nccl"):
        try:
            texts[kind] = machine.run(*model, "--exchange", kind, env=os.environ | {"NCCL_P2P_DISABLE": "1"})
        except RuntimeError as error:
            rows.append({"case": f"C5 --exchange {kind}", "failed": True, "why": str(error)})
    if len(texts) > 0:
        rows.append({"case": f"C5 answers by {', '.join(texts)}", "equal": len(set(texts.values())) == 1})
    if programs is not None and not machine.cpu:
        tests = "--gtest_filter=*Nccl*:*ARankThat*:*FourGive*"
        rows.append(program(programs / "gpu_ranks_gpu_test", "C5 gpu_ranks_gpu_test", [tests, "--gtest_brief=1", str(ROOT / "models")]))
    return rows


def soak(machine: Machine, minutes: float) -> dict:
    """Mixed load at 6 requests a second, whose ranks are compared after every exchange."""
    case = Case("C6", "tiny-v4", 2) if machine.cpu else Case("C6", "deepseek-v4-flash", min(4, machine.gpus))
    rate = 6
    requests = max(2, round(60 * minutes * rate))
    try:
        machine.plan(case)
        with Server(machine, *machine.serve_flags(case), "--check-ranks") as server:
            result = load(machine, server, requests, "--request-rate", str(rate))
    except RuntimeError as error:
        return {"case": "C6 load", "failed": True, "why": str(error)}
    lost = requests - result["completed"]
    return {"case": f"C6 {case.name}, {case.ranks} ranks, {minutes:g} min with --check-ranks", "answered": f"{result['completed']} of {requests}",
            "exit": server.code, "failed": lost != 0 or server.code != 0}


def write_checkpoint(folder: pathlib.Path, config: pathlib.Path):
    """Random bf16 weights of a Qwen3 model of this configuration, with a file for each layer and one for what is not in a layer."""
    sizes = json.loads(config.read_text())
    hidden, ffn, head, vocab = (sizes[name] for name in ("hidden_size", "intermediate_size", "head_dim", "vocab_size"))
    heads, keys = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    layer = {"self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
             "self_attn.o_proj": (hidden, heads), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,), "mlp.gate_proj": (ffn, hidden),
             "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    files = [{f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()} for i in range(sizes["num_hidden_layers"])]
    files.append({"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)})
    if not sizes.get("tie_word_embeddings"):
        files[-1]["lm_head.weight"] = (vocab, hidden)
    noise = bytearray(os.urandom(1 << 23))
    noise[1::2] = noise[1::2].translate(bytes(0x3c | b & 0x80 for b in range(256)))  # of either sign, 0.008 to 0.03
    folder.mkdir(parents=True, exist_ok=True)
    for i, tensors in enumerate(files):
        header, at = {}, 0
        for name, shape in tensors.items():
            count = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + count]}
            at += count
        text = json.dumps(header).encode()
        with open(folder / f"model-{i + 1:05}-of-{len(files):05}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for start in range(0, at, len(noise)):
                file.write(noise[:at - start])
    index = {name: f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i, tensors in enumerate(files) for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    shutil.copy(ROOT / "models/tiny-gqa/tokenizer.json", folder)
    shutil.copy(config, folder / "config.json")  # last: a folder with it is whole


def start_to_ready(machine: Machine, folder: pathlib.Path, rounds: int) -> dict:
    """Medians of servers that read a checkpoint from memory. The first one, which may be the first to read its pages, does not count."""
    if not (folder / "config.json").exists():
        write_checkpoint(folder, ROOT / "tests/data/models/qwen3/config.json" if machine.cpu else CONFIGS / "qwen3-32b.json")
    seconds, rates = {1: [], 2: []}, {1: [], 2: []}
    for run, ranks in enumerate(itertools.islice(itertools.cycle((1, 2)), 2 * rounds + 1)):
        try:
            with Server(machine, "--model", str(folder), "--device", machine.device, "--tp", str(ranks), "--max-total-tokens", "65536",
                        "--context-length", "4096" if not machine.cpu else "256") as server:
                pass
        except RuntimeError as error:
            return {"case": "C7 start to ready", "failed": True, "why": str(error)}
        if run == 0:
            continue
        seconds[ranks].append(server.seconds)
        loaded = re.search(r"weights +([\d.]+) MB in ([\d.]+) s", "".join(server.log))
        rates[ranks].append(max(float(loaded[1]), 1) / 1e3 / max(float(loaded[2]), 1e-3))
    row = {"case": "C7 start to ready"}
    for ranks in (1, 2):
        row[f"{ranks} rank{'s' * (ranks - 1)}"] = (", ".join(f"{s:.2f}" for s in seconds[ranks]) + " s, " +
                                                   ", ".join(f"{r:.1f}" for r in rates[ranks]) + " GB/s of a rank")
    row["two ranks' bytes a second over one's"] = f"{2 * statistics.median(rates[2]) / statistics.median(rates[1]):.2f}"
    return row


def show(row: dict) -> bool:
    """Prints a row at once, so that a run that is cut off has shown what it did. Whether it is no failure."""
    failed = row.pop("failed", False)
    text = row.pop("text", "")
    name = row.pop("case")
    print(f"{'FAILED ' if failed else ''}{name}" + (": " if row else "") + "; ".join(f"{k} {v}" for k, v in row.items()))
    if text:
        print("  " + text.rstrip().replace("\n", "\n  "))
    sys.stdout.flush()
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="build/lathe")
    parser.add_argument("--device", choices=("cuda", "cpu", "h200", "h100"), default="cuda", help="h200, h100: with --list")
    parser.add_argument("--gpus", type=int, help="of how many GPUs to make use; default: all; ranks of a CPU: 2")
    parser.add_argument("--only", default="C1,C2,C3,C4,C5,C6,C7", help="parts by commas")
    parser.add_argument("--programs", type=pathlib.Path, help="folder of the GPU tests, build/gpu, for what they show of C1 and C5")
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES", help="of C6; default: left out")
    parser.add_argument("--checkpoint", type=pathlib.Path, metavar="DIR", help="of C7; default: left out")
    parser.add_argument("--list", action="store_true", help="print the cases of whole models and what refuses them, and run nothing")
    args = parser.parse_args()
    machine = Machine(args)
    if args.device in ("h200", "h100") and not args.list:
        parser.error(f"--device {args.device}: wanted --list with a machine that may not be here")
    if not machine.cpu and machine.gpus < 2:
        sys.exit("several_gpus: wanted two GPUs or more, got " + str(machine.gpus) + "; use --device cpu to try the script")
    parts = args.only.split(",")
    ok = True
    if "C1" in parts and not args.list:
        for row in exchanges(machine, args.programs):
            ok &= show(row)
    for case in whole_models(machine.cpu):
        if case.part not in parts:
            continue
        row = {"case": f"{case.part} {case.name}, {case.ranks} ranks" + "".join(f" {f}" for f in case.flags)}
        try:
            machine.plan(case)
        except RuntimeError as error:
            show(row | {"left out": str(error)})
            continue
        if not args.list:
            try:
                row |= whole_model(machine, case)
            except RuntimeError as error:
                row |= {"failed": True, "why": str(error)}
        ok &= show(row)
    if "C5" in parts and not args.list:
        for row in nccl(machine, args.programs):
            ok &= show(row)
    if "C6" in parts and args.soak > 0 and not args.list:
        ok &= show(soak(machine, args.soak))
    if "C7" in parts and args.checkpoint and not args.list:
        ok &= show(start_to_ready(machine, args.checkpoint, rounds=1 if machine.cpu else 4))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
