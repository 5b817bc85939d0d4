"""Mutation run: breaks one thing at a time and asks whether some test notices.

    python tests/mutants [--jobs N] [--only TEXT] [--list]

Mutants are passes replaced by identity, contracts of ops/ and rows of the ATen table negated, and fills changed. Each
runs in a fork of a process that has imported everything once, with the few tests that are there to kill it. First every
selection of tests must pass on unbroken code: a selection that fails anyway kills nothing. Exit status 1 where a mutant
survives that `explained.py` does not explain.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
LIMIT = 400


@dataclass(frozen=True)
class Running:
    name: str
    since: float
    log: Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--only", default="", help="only mutants with this text in their name")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    asked = parser.parse_args()
    os.chdir(ROOT)
    import torch

    torch.set_num_threads(1)
    from explained import EXPLAINED
    from mutations import mutants

    chosen = [m for m in mutants() if asked.only in m.name]
    if asked.list:
        print("\n".join(m.name for m in chosen))
        return 0
    start = time.monotonic()
    selections = {m.tests: f"baseline of {m.name}" for m in chosen}
    broken = _run([(name, lambda: None, tests) for tests, name in selections.items()], asked.jobs, expected=0)
    unusable = {tests for tests, name in selections.items() if name in broken}
    usable = [m for m in chosen if m.tests not in unusable]
    survivors = _run([(m.name, m.apply, m.tests) for m in usable], asked.jobs, expected=1)
    return _report(chosen, usable, survivors, EXPLAINED, time.monotonic() - start)


def _report(chosen: Sequence, usable: Sequence, survivors: dict, explained: dict, seconds: float) -> int:
    names = {m.name for m in usable}
    loose = [n for n in survivors if n not in explained]
    for name in sorted(n for n in survivors if n in explained):
        print(f"explained: {name}: {explained[name]}")
    for name in sorted(n for n in explained if n in names and n not in survivors):
        print(f"explained, yet killed (remove it from the table): {name}")
    for mutant in chosen:
        if mutant.name not in names:
            print(f"NOT RUN: {mutant.name}: its tests fail on unbroken code: {' '.join(mutant.tests)}")
    for name in loose:
        print(f"SURVIVOR: {name} ({survivors[name]})")
    killed = len(usable) - len(survivors)
    print(f"{len(chosen)} mutants, {killed} killed, {len(loose)} survivors, "
          f"{len(survivors) - len(loose)} explained, {len(chosen) - len(usable)} not run, {seconds:.0f} s")  # fmt: skip
    return int(bool(loose) or len(usable) < len(chosen))


Job = tuple[str, Callable[[], None], tuple[str, ...]]


def _run(jobs: Sequence[Job], count: int, expected: int) -> dict[str, str]:
    """Runs pytest in a fork a job; returns what ended otherwise than expected (0: all pass, 1: some test fails)."""
    waiting, running = list(jobs)[::-1], {}
    other: dict[str, str] = {}
    while waiting or running:
        while waiting and len(running) < count:
            name, apply, tests = waiting.pop()
            log = Path(f"/tmp/capwise-mutant-{os.getpid()}-{len(waiting)}.log")
            child = os.fork()
            if child == 0:
                _child(apply, tests, log)
            running[child] = Running(name, time.monotonic(), log)
        for child, what, status in _ended(running):
            code = os.waitstatus_to_exitcode(status)
            # A crash or a limit is noticed; "no test ran" (5) and a usage error (4) are not.
            got = 0 if code == 0 else (1 if code in (1, 2, 3) or code < 0 else code)
            if got != expected:
                other[what.name] = f"pytest ended with {code}"
                if expected == 0:
                    print(f"{what.name}: pytest ended with {code}\n{_tail(what.log)}", flush=True)
            print(f"{'ok' if got == expected else '!!'} {time.monotonic() - what.since:5.1f} s {what.name}", flush=True)
            what.log.unlink(missing_ok=True)
            del running[child]
    return other


def _ended(running: dict[int, Running]) -> Iterator[tuple[int, Running, int]]:
    for child, what in list(running.items()):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            yield child, what, status
        elif time.monotonic() - what.since > LIMIT:
            os.killpg(child, signal.SIGKILL)
    time.sleep(0.05)


def _child(apply: Callable[[], None], tests: Sequence[str], log: Path) -> None:
    """Never returns. The mutation is made in this process only."""
    code = 3
    try:
        os.setpgid(0, 0)
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        import pytest

        apply()
        code = int(pytest.main(["-x", "-q", "--no-header", "--show-capture=no", "-p", "no:cacheprovider", *tests]))
    finally:
        os._exit(code)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
