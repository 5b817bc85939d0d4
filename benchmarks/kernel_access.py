"""Kernel access analysis over a public package of Triton kernels: coverage, proofs, and agreement with the interpreter.

    pip download --no-deps fla-core einops -d wheels && unzip -d pkgs 'wheels/*.whl'
    python benchmarks/kernel_access.py --path pkgs fla

Nothing is launched: signatures are guessed, TTIR is built for a target that need not be present, and addresses come
from Triton's interpreter over made-up memory.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import pkgutil
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from capwise.kernel_access import KernelSummary, load_kernels, summarize
from capwise.kernel_access.compare import Finding, compare
from capwise.kernel_access.load import is_kernel

GRID = (4, 3, 2)
LIMIT = 10


@dataclass
class Tally:
    """What the run counts."""

    kernels: int = 0
    not_built: int = 0
    failures: int = 0
    arguments: int = 0
    proved: int = 0
    kernels_all_proved: int = 0
    not_interpreted: int = 0
    equal: int = 0
    enclosed: int = 0
    skipped: int = 0
    untouched: int = 0
    contradictions: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    hazards: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


def modules(package: str) -> list[ModuleType]:
    """The package and what of it can be imported here."""
    root = importlib.import_module(package)
    found = [root]
    for info in pkgutil.walk_packages(root.__path__, f"{package}.", onerror=lambda name: None):
        try:
            found.append(importlib.import_module(info.name))
        except Exception:
            continue
    return found


def kernels(packages: list[str]) -> list[tuple[str, Any]]:
    """Launchable jit functions, each once."""
    out: dict[str, Any] = {}
    for package in packages:
        for module in modules(package):
            for kernel in load_kernels(module):
                if is_kernel(kernel):
                    inner = kernel
                    while hasattr(inner, "fn") and not hasattr(inner, "__name__"):
                        inner = inner.fn
                    out[f"{module.__name__}.{inner.__name__}"] = kernel
    return sorted(out.items())


def memory_of(summary: KernelSummary, seed: int) -> Any:
    """Made-up contents: boundaries grow with the index, everything else is small."""
    growing = {row.arg for row in summary.arguments if row.role == "boundary"}

    def memory(arg: str, where: Any) -> Any:
        mixed = (np.asarray(where, dtype=np.int64) * 2654435761 + seed * 97 + len(arg)) >> 3
        return np.asarray(where) * 50 + mixed % 40 if arg in growing else mixed % 3

    return memory


def scalars_of(summary: KernelSummary, rng: random.Random) -> dict[str, float]:
    """Strides, extents and counts: half of them small, half above the size of a tile."""
    return {
        name: rng.choice((rng.randint(1, 9), rng.randint(65, 200))) if kind[0] in "iu" else 1.0
        for name, kind in summary.signature.items()
        if not kind.startswith("*")
    }


def interpreted(kernel: Any, summary: KernelSummary, seed: int) -> list[Finding]:
    """Findings for two programs at random scalars and contents."""
    rng = random.Random(seed)
    programs = [(rng.randrange(GRID[0]), rng.randrange(GRID[1]), rng.randrange(GRID[2])) for _ in range(1)]
    programs = list(dict.fromkeys([(0, 0, 0), *programs]))
    with redirect_stdout(io.StringIO()):
        return compare(kernel, summary, GRID, scalars_of(summary, rng), memory_of(summary, seed), programs)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the body after so many seconds of work: the interpreter's scans go element by element."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"over {seconds} s")

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def contradictions(kernel: Any, summary: KernelSummary, seed: int) -> list[Finding]:
    """Findings; a contradiction is looked at again before Triton's clean-up, which drops loads that nothing uses."""
    found = interpreted(kernel, summary, seed)
    if all(f.outcome != "contradiction" for f in found):
        return found
    raw = summarize(kernel, summary.signature, summary.constexprs, clean=False)
    again = {f.arg: f for f in interpreted(kernel, raw, seed)}
    return [again.get(f.arg, f) if f.outcome == "contradiction" else f for f in found]


def count(tally: Tally, name: str, kernel: Any, seed: int) -> None:
    """One kernel."""
    started = time.process_time()
    try:
        summary = summarize(kernel)
    except Exception as error:
        tally.failures += 1
        tally.lines.append(f"FAILURE {name}: {error!r}")
        return
    seconds = time.process_time() - started
    if not summary.accesses and summary.unknown:
        tally.not_built += 1
        tally.lines.append(f"not built {name}: {summary.unknown}")
        return
    tally.kernels += 1
    tally.seconds += seconds
    tally.slowest = max(tally.slowest, seconds)
    proved = [row for row in summary.arguments if row.verdict == "proved"]
    tally.arguments += len(summary.arguments)
    tally.proved += len(proved)
    tally.kernels_all_proved += len(proved) == len(summary.arguments)
    for row in summary.arguments:
        tally.reasons.update({r.partition(" (line")[0].partition(" at line")[0] for r in row.reasons})
        tally.hazards.update({h.code for h in row.hazards})
        tally.lines += [f"unknown {name} {row.arg}: {r}" for r in row.reasons[:1]]
    try:
        with limited(LIMIT):
            found = contradictions(kernel, summary, seed)
    except Exception as error:
        tally.not_interpreted += 1
        tally.lines.append(f"not interpreted {name}: {type(error).__name__}: {str(error)[:160]}")
        return
    for finding in found:
        if finding.touched == 0 and finding.outcome in ("equal", "enclosed"):
            tally.untouched += 1
            continue
        key = "contradictions" if finding.outcome == "contradiction" else finding.outcome
        setattr(tally, key, getattr(tally, key) + 1)
        if finding.outcome in ("contradiction", "skipped"):
            tally.lines.append(f"{finding.outcome} {name} {finding.arg}: {finding.detail}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--path", type=Path, action="append", default=[], help="folder of unpacked wheels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None, help="first so many kernels")
    parser.add_argument("--skip", type=int, default=0, help="start after so many")
    parser.add_argument("--lines", type=Path, help="write a line for each argument that is not proved or not equal")
    options = parser.parse_args()
    sys.path[:0] = [str(p) for p in options.path]
    warnings.simplefilter("ignore")
    tally = Tally()
    with redirect_stderr(io.StringIO()):
        for name, kernel in kernels(options.packages)[options.skip : options.limit]:
            count(tally, name, kernel, options.seed)
            if options.lines:
                options.lines.write_text("\n".join([*tally.lines, f"done {name}"]))
    result = {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(tally).items() if k != "lines"}
    result["proved_share"] = round(tally.proved / max(1, tally.arguments), 3)
    result["seconds_a_kernel"] = round(tally.seconds / max(1, tally.kernels), 3)
    result["compared"] = tally.equal + tally.enclosed + tally.contradictions
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
