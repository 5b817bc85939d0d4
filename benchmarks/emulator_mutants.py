"""How much broken code does the emulator notice? Breaks compiled kernels one instruction at a time and runs them.

    python benchmarks/emulator_mutants.py [--kernels gather,dot] [--gfx gfx942] [--limit 60] [--survivors]

A mutant is killed if the result is wrong or the run raises. Barriers are removed apart from the rest and run under both
schedules: only the serial one can notice them. Some survivors are equivalent programs, such as a dropped move of a
value that is already there, so a rate below 100 % is expected; a rate that falls is not.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capwise.emulate import EmulatorError, Fault, run

SEEDS = range(3)  # serial orders tried for each removed barrier

# Instructions without an effect that the emulator models: breaking them shows nothing.
_INERT = re.compile(r"s_(waitcnt|wait_|nop|delay_alu|clause|endpgm|branch|sendmsg|setprio|code_end|inst_prefetch)")
_BARRIER = re.compile(r"s_barrier(_wait\b|$)")
_REPLACEMENTS = [
    ("v_cmp_gt_", "v_cmp_ge_"),
    ("v_cmp_lt_", "v_cmp_le_"),
    ("v_cmp_eq_", "v_cmp_ne_"),
    ("v_add_f32", "v_sub_f32"),
    ("v_max_f32", "v_min_f32"),
    ("v_max_num_f32", "v_min_num_f32"),
    ("v_lshlrev_b32", "v_lshrrev_b32"),
    ("v_or_b32", "v_and_b32"),
    ("v_xor_b32", "v_or_b32"),
    ("s_and_b", "s_or_b"),
    ("s_cbranch_scc0", "s_cbranch_scc1"),
    ("s_cbranch_scc1", "s_cbranch_scc0"),
]
_NUMBERS = re.compile(r"\b(offset|offset0|offset1|row_shr|row_shl|row_share|row_xmask):(\d+)")
_DROPPED = re.compile(r"(v_mfma|v_wmma|ds_|global_|buffer_|v_mov_b32_dpp|v_cndmask|v_permlane)")


@dataclass(frozen=True)
class Mutant:
    """Assembly that differs from the original in one line."""

    change: str
    line: str
    asm: str
    is_barrier: bool = False


def changes(code: str) -> Iterator[tuple[str, str]]:
    """(what changes, the new instruction) for each way to break one instruction; an empty instruction drops it."""
    opcode = code.split()[0]
    if _BARRIER.match(opcode):
        yield "drop barrier", ""
        return
    for old, new in _REPLACEMENTS:
        if opcode.startswith(old):
            yield f"{old} -> {new}", code.replace(old, new, 1)
    for match in _NUMBERS.finditer(code):
        name, number = match.group(1), int(match.group(2))
        other = number + 4 if name.startswith("offset") else number % 15 + 1
        yield f"{name}:{number} -> {other}", code[: match.start()] + f"{name}:{other}" + code[match.end() :]
    if _DROPPED.match(opcode):
        yield f"drop {opcode}", ""


def mutants(asm: str, kernel: str) -> Iterator[Mutant]:
    """Every mutant of the kernel's code."""
    lines = asm.split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith(f"{kernel}:"))
    last = next(i for i, line in enumerate(lines) if i > first and line.startswith(".Lfunc_end"))
    for i in range(first + 1, last):
        code = re.sub(r"\s*;.*", "", lines[i]).strip()
        if not re.match(r"[a-z]+_", code) or _INERT.match(code):
            continue
        for change, text in changes(code):
            yield Mutant(change, code, "\n".join([*lines[:i], "\t" + text, *lines[i + 1 :]]), change == "drop barrier")


def outcome(case: Any, asm: str, shared: int, **options: Any) -> str:
    """``survived``, or how the run failed."""
    args, expected = case.data(np.random.default_rng(1))
    try:
        # Mutants of a loop may never leave it: the intact kernels take some hundred steps a wavefront.
        run(asm, case.grid, args, shared=shared, max_steps=100_000, **options)
    except Fault:
        return "fault"
    except EmulatorError:
        return "error"
    return "wrong" if case.mismatch(args, expected) else "survived"


def measure(case: Any, binary: Any, limit: int, show_survivors: bool) -> str:
    """Run up to ``limit`` mutants and all removed barriers; a line of kill rates."""
    asm, shared = binary.asm["amdgcn"], binary.metadata.shared
    if outcome(case, asm, shared) != "survived":
        raise SystemExit("the intact kernel is wrong already")
    found = list(mutants(asm, binary.metadata.name))
    plain, barriers = [m for m in found if not m.is_barrier], [m for m in found if m.is_barrier]
    chosen = plain
    if len(plain) > limit:
        picks = np.random.default_rng(0).choice(len(plain), limit, replace=False)
        chosen = [plain[i] for i in sorted(picks)]
    results = [(m, outcome(case, m.asm, shared)) for m in chosen]
    counts = Counter(result for _, result in results)
    killed = len(chosen) - counts["survived"]
    lockstep = sum(outcome(case, m.asm, shared) != "survived" for m in barriers)
    serial = sum(
        any(outcome(case, m.asm, shared, sched="serial", seed=seed) != "survived" for seed in SEEDS) for m in barriers
    )
    details = ", ".join(f"{name} {counts[name]}" for name in ("wrong", "fault", "error"))
    text = f"killed {killed:3}/{len(chosen):3} ({100 * killed // max(len(chosen), 1):3} %: {details})"
    text += f"   barriers: serial {serial}/{len(barriers)}, lockstep {lockstep}/{len(barriers)}"
    if show_survivors:
        text += "".join(f"\n    survived: {m.change} | {m.line}" for m, result in results if result == "survived")
    return text


def load_kernels() -> Any:
    """The module of kernels that the tests use."""
    name = "emulate_test_kernels"
    path = Path(__file__).resolve().parent.parent / "tests" / "emulate" / "kernels.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    kernels = load_kernels()
    parser = argparse.ArgumentParser(description="Mutation kill rates of the AMDGPU emulator")
    parser.add_argument("--kernels", default=",".join(kernels.CASES), help="names from tests/emulate/kernels.py")
    parser.add_argument("--gfx", default="gfx942,gfx1201", help="targets")
    parser.add_argument("--limit", type=int, default=60, help="mutants a kernel, drawn at random if there are more")
    parser.add_argument("--survivors", action="store_true", help="list the mutants that were not noticed")
    options = parser.parse_args()
    for gfx in options.gfx.split(","):
        for name in options.kernels.split(","):
            case = kernels.CASES[name]
            line = measure(case, case.compile(gfx), options.limit, options.survivors)
            print(f"{gfx:8} {name:10} {line}", flush=True)


if __name__ == "__main__":
    main()
