"""Serves many random programs and counts those that are served wrong.

    python benchmarks/random_programs.py --programs 2000 --seed 0 [--shrink] [--local]

Prints every failure as a program that can be read, and one line of totals. Exit status 1 where there was a failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import torch


def generator() -> ModuleType:
    """The generator of the tests, loaded by its path: tests are no package."""
    path = Path(__file__).parent.parent / "tests/compiler/random_programs.py"
    spec = importlib.util.spec_from_file_location("random_programs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["random_programs"] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=8, help="most statements of a program")
    parser.add_argument("--local", action="store_true", help="only row-local and cumulative programs")
    parser.add_argument("--shrink", action="store_true", help="minimise failures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    made = generator()
    start, run, invalid, failed = time.perf_counter(), 0, 0, 0
    number = options.seed
    while run < options.programs:
        one = made.program(random.Random(number), True if options.local else None, options.size)
        if made.is_valid(one):
            run += 1
            failed += _report(made, one, number, options.shrink)
        else:
            invalid += 1
        number += 1
    seconds = time.perf_counter() - start
    print(f"programs {run}, failed {failed}, not valid eagerly {invalid}, {seconds:.0f} s ({seconds / run:.2f} s each)")
    return int(failed > 0)


def _report(made: ModuleType, one: object, number: int, shrink: bool) -> bool:
    why = made.failure(one)
    if why is None:
        return False
    if shrink:
        kind = why.split(":")[:2]
        one = made.shrink(one, lambda p: (made.failure(p, kind[:1]) or "").split(":")[:2] == kind, 60)
        why = made.failure(one, kind[:1])
    print(f"=== seed {number}\n{why}\n{one}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
