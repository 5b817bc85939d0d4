"""Mutation run: breaks one thing at a time and asks whether some test notices.

    python tests/mutants [--jobs N] [--only TEXT ...] [--list]

Mutants are passes replaced by identity, contracts of ops/ and rows of the ATen table negated, and fills changed. Each
runs in a fork of a process that has imported everything once, with the few tests that are there to kill it. First every
selection of tests runs on unbroken code: a test that fails anyway kills nothing, and is left out. Exit status 1 where a
mutant survives that `explained.py` does not explain, or where a test had to be left out.
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
# Seconds that one mutant's tests may take; unbroken code runs all of them, and gets more.
LIMIT = 400


@dataclass(frozen=True)
class Running:
    name: str
    since: float
    log: Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--only", nargs="+", default=[""], help="only mutants with one of these texts in their name")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    asked = parser.parse_args()
    os.chdir(ROOT)
    import torch

    torch.set_num_threads(1)
    from explained import EXPLAINED
    from mutations import mutants

    chosen = [m for m in mutants() if any(text in m.name for text in asked.only)]
    if asked.list:
        print("\n".join(m.name for m in chosen))
        return 0
    start = time.monotonic()
    selections = {m.tests: f"unbroken, for {m.name}" for m in chosen}
    wrong = _run([(name, lambda: None, tests) for tests, name in selections.items()], asked.jobs, baseline=True)
    left_out = sorted({test for tests in wrong.values() for test in tests})
    skipped = tuple(f"--deselect={test}" for test in left_out)
    jobs = [(m.name, m.apply, (*m.tests, *skipped)) for m in chosen]
    survivors = {n: f"pytest ended with {code[0]}" for n, code in _run(jobs, asked.jobs, baseline=False).items()}
    for test in left_out:
        print(f"LEFT OUT: it fails on unbroken code: {test}")
    return _report(chosen, survivors, EXPLAINED, time.monotonic() - start) or int(bool(left_out))


def _report(chosen: Sequence, survivors: dict, explained: dict, seconds: float) -> int:
    names = {m.name for m in chosen}
    loose = [n for n in survivors if n not in explained]
    for name in sorted(n for n in survivors if n in explained):
        print(f"explained: {name}: {explained[name]}")
    for name in sorted(n for n in explained if n in names and n not in survivors):
        print(f"explained, yet killed (remove it from the table): {name}")
    for name in loose:
        print(f"SURVIVOR: {name} ({survivors[name]})")
    killed = len(chosen) - len(survivors)
    print(f"{len(chosen)} mutants, {killed} killed, {len(loose)} survivors, "
          f"{len(survivors) - len(loose)} explained, {seconds:.0f} s")  # fmt: skip
    return int(bool(loose))


Job = tuple[str, Callable[[], None], tuple[str, ...]]


def _run(jobs: Sequence[Job], count: int, baseline: bool) -> dict[str, list[str]]:
    """Runs pytest in a fork a job. Of the baseline the tests that fail, by job; else the exit status, where nothing
    noticed the mutant."""
    waiting, running = list(jobs)[::-1], {}
    other: dict[str, list[str]] = {}
    while waiting or running:
        while waiting and len(running) < count:
            name, apply, tests = waiting.pop()
            log = Path(f"/tmp/capwise-mutant-{os.getpid()}-{len(waiting)}.log")
            child = os.fork()
            if child == 0:
                _child(apply, ([] if baseline else ["-x"]) + list(tests), log)
            running[child] = Running(name, time.monotonic(), log)
        for child, what, status in _ended(running, LIMIT * 4 if baseline else LIMIT):
            code = os.waitstatus_to_exitcode(status)
            if baseline:
                other[what.name] = _failed(what.log, code)
            elif code in (0, 4, 5):  # all pass, a usage error, no test at all; a crash and a limit are noticed
                other[what.name] = [str(code)]
            fine = not other[what.name] if baseline else what.name not in other
            print(f"{'ok' if fine else '!!'} {time.monotonic() - what.since:5.1f} s {what.name}", flush=True)
            what.log.unlink(missing_ok=True)
            del running[child]
    return other


def _ended(running: dict[int, Running], limit: float) -> Iterator[tuple[int, Running, int]]:
    for child, what in list(running.items()):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            yield child, what, status
        elif time.monotonic() - what.since > limit:
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
        code = int(pytest.main(["-q", "--no-header", "--show-capture=no", "-p", "no:cacheprovider", *tests]))
    finally:
        os._exit(code)


def _failed(log: Path, code: int) -> list[str]:
    """The tests that failed, from pytest's own summary; the log's end where it is no failed test that stopped it."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [line.split(" - ")[0].split(maxsplit=1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    if code not in (0, 1) or code == 1 and not found:
        print("\n".join(lines[-8:]))
        raise SystemExit(f"tests on unbroken code: pytest ended with {code}")
    return found


if __name__ == "__main__":
    sys.exit(main())
