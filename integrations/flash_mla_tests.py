#!/usr/bin/env python3
"""Runs FlashMLA's own correctness tests against lathe.compat.flash_mla, on a Hopper GPU with torch.

    git clone https://github.com/deepseek-ai/FlashMLA && git -C FlashMLA checkout 9241ae3
    python integrations/flash_mla_tests.py FlashMLA/tests
    python integrations/flash_mla_tests.py FlashMLA/tests --every 10       each tenth case

Inputs, references and tolerances are FlashMLA's. Timed cases are left out, as they look for FlashMLA's kernels by name. A case passes,
is refused with a message (more than one KV head, fp16), is wrong, or crashes; the last two give exit status 1.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import importlib
import io
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lathe.compat import flash_mla, install

install("flash_mla")


def dense(module: Any) -> Iterator[tuple[Callable[[Any], Any], Any]]:
    """FlashMLA's main() makes the cases and calls test_flash_mla with each."""
    import torch

    cases: list[Any] = []
    run, module.test_flash_mla = module.test_flash_mla, cases.append
    module.main(torch.bfloat16)
    for case in cases:
        if not case.test_performance:
            yield run, case


def sparse_decode(module: Any) -> Iterator[tuple[Callable[[Any], Any], Any]]:
    for raw in module.gen_testcase():
        case = raw.to_test_param()
        if case.num_runs == 0:
            yield (lambda case: module.test_flash_mla(case).is_correct), case


def sparse_prefill(module: Any) -> Iterator[tuple[Callable[[Any], Any], Any]]:
    """The cases are lists in the main program."""
    tree = ast.parse(Path(module.__file__).read_text())
    program = next(node for node in tree.body if isinstance(node, ast.If))
    lists = [n for n in program.body if isinstance(n, ast.Assign) and n.targets[0].id.endswith("_cases")]
    made = dict(vars(module))
    for node in lists:
        if node.targets[0].id in ("correctness_cases", "correctness_cases_with_features", "corner_cases"):
            exec(compile(ast.Module([node], []), module.__file__, "exec"), made)
            for case in made[node.targets[0].id]:
                yield module.run_test, case


FILES = {
    "test_flash_mla_dense_decoding": dense,
    "test_flash_mla_sparse_decoding": sparse_decode,
    "test_flash_mla_sparse_prefill": sparse_prefill,
}


def outcome(run: Callable[[Any], Any], case: Any) -> tuple[str, str]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            right = run(case)
    except flash_mla.FlashMlaError as error:
        return "refused", str(error)
    except AssertionError:
        return "wrong", said.getvalue()
    except Exception:
        return "broke", traceback.format_exc()
    return ("wrong", said.getvalue()) if right is False else ("passed", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", help="the folder tests of a checkout")
    parser.add_argument("--every", type=int, default=1, help="run each Nth case")
    options = parser.parse_args()
    sys.path.insert(0, options.tests)
    import torch

    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda:0")
    torch.set_float32_matmul_precision("high")
    flash_mla.compute_max_logits = True
    bad = 0
    for name, cases in FILES.items():
        module = importlib.import_module(name)
        counts: collections.Counter[str] = collections.Counter()
        refusals: collections.Counter[str] = collections.Counter()
        for run, case in list(cases(module))[:: options.every]:
            with torch.inference_mode():
                result, text = outcome(run, case)
            counts[result] += 1
            if result == "refused":
                refusals[text] += 1
            elif result != "passed" and counts[result] <= 3:
                print(f"{name}: {result}: {case}\n{text}", flush=True)
        bad += counts["wrong"] + counts["broke"]
        print(f"{name}: {', '.join(f'{n} {what}' for what, n in sorted(counts.items()))}", flush=True)
        for text, n in refusals.most_common():
            print(f"  {n} refused: {text}")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
