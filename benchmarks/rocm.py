"""The shipped kernels as ROCm code on an emulator: agreement with CUDA, orders of wavefronts, broken code noticed.

    python benchmarks/rocm.py [--parts errors,schedules,mutants] [--cuda FILE] [--schedules 100] [--limit 40]

Where a GPU is, `--cuda FILE` computes the results of the same inputs there and writes them, and nothing else is done;
elsewhere it compares with what the file holds. Inputs are drawn from seeds; the file holds a digest of them. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capwise import compat
from capwise.lower.launches import spec_of
from capwise.lower.recorded import Recorded, launches_of
from capwise.models import naive_shift  # noqa: F401  registers the ops
from capwise.ops.aten import written
from capwise.ops.launch import device_tiles
from capwise.ops.samples import CALLS, SMALL, sample
from capwise.runtime.emulated import as_argument, compiled, run_launch

TARGETS = ("gfx942", "gfx1201")
LENGTHS = (7, 0, 33, 1, 20)
SIZES = replace(
    SMALL, hidden=96, streams=4, heads=8, head_width=32, table_rows=500, slots=24, state=(4, 16, 16),
    attention=replace(SMALL.attention, table=12, pages=61),
)  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


# ---------------------------------------------------------------------------------------------------------- errors
def call_of(op: str, dtype: str) -> dict[str, Any]:
    return sample(op, LENGTHS, replace(SIZES, dtype=DTYPES[dtype]), seed=11)


def digest(call: dict[str, Any]) -> str:
    def held(value: Any) -> bytes:
        if not isinstance(value, torch.Tensor):
            return repr(value).encode()
        return value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()

    parts = map(held, call.values())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def results(op: str, call: dict[str, Any]) -> list[torch.Tensor]:
    """What the op returns, and the state it leaves, as float64 or int64 on the CPU."""
    call = apart(op, call)
    return leaves(op, getattr(torch.ops.capwise, op)(**call), call)


def apart(op: str, call: dict[str, Any]) -> dict[str, Any]:
    """The call on copies of what the op writes."""
    names = written(getattr(torch.ops.capwise, op).default)
    return {n: v.clone() if n in names else v for n, v in call.items()}


def leaves(op: str, out: Any, call: dict[str, Any]) -> list[torch.Tensor]:
    outs = list(out) if isinstance(out, tuple) else [out] if out is not None else []
    states = [call[n] for n in written(getattr(torch.ops.capwise, op).default)]
    values = [v.cpu() for v in [*outs, *states]]
    return [v.double() if v.dtype.is_floating_point else v.long() for v in values]


def emulated_results(op: str, call: dict[str, Any], gfx: str) -> list[torch.Tensor]:
    call, outs = apart(op, call), list[Any]()
    for launch in launches_of(lambda: outs.append(getattr(torch.ops.capwise, op)(**call)), {}):
        run_launch(launch.kernel, launch.grid, dict(launch.bound), gfx=gfx, sched="serial", seed=1)
    return leaves(op, outs[0], call)


def interpreted_results(op: str, call: dict[str, Any]) -> list[torch.Tensor]:
    with compat.interpreted(), device_tiles():
        return results(op, call)


def difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """The largest |a - b| / max(1, |b|)."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x.numel()]
    # Equal infinities differ by nothing.
    worst = [torch.where(x == y, 0.0, (x - y).abs() / y.abs().clamp(min=1)).max().item() for x, y in pairs]
    return max(worst, default=0.0)


def write_cuda(path: Path) -> None:
    arrays: dict[str, Any] = {}
    for op in CALLS:
        for dtype in DTYPES:
            call = call_of(op, dtype)
            there = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
            arrays[f"{op} {dtype} digest"] = np.array(digest(call))
            for i, value in enumerate(results(op, there)):
                arrays[f"{op} {dtype} {i}"] = value.numpy()
    arrays["device"] = np.array(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    np.savez_compressed(path, **arrays)
    print(f"wrote {len(arrays)} arrays to {path}")


def read_cuda(held: Any, op: str, dtype: str, count: int) -> list[torch.Tensor]:
    if str(held[f"{op} {dtype} digest"]) != digest(call_of(op, dtype)):
        raise SystemExit(f"{op} {dtype}: the file's inputs are not the ones drawn here")
    return [torch.from_numpy(held[f"{op} {dtype} {i}"]) for i in range(count)]


def errors(cuda: Path | None) -> None:
    held = np.load(cuda) if cuda is not None else None
    native = f"CUDA ({held['device']})" if held is not None else "Triton's interpreter (for bf16 the torch reference)"
    print(f"Largest |a - b| / max(1, |b|); b is what {native} gives for the same inputs. Serial schedule.\n")
    rows = []
    for op in CALLS:
        for dtype in DTYPES:
            call = call_of(op, dtype)
            right = results(op, call)
            if held is not None:
                base = read_cuda(held, op, dtype, len(right))
            elif dtype == "bf16":  # arithmetic on bfloat16 is wrong in the interpreter
                base = right
            else:
                base = interpreted_results(op, call)
            found = [difference(emulated_results(op, call, gfx), base) for gfx in TARGETS]
            rows.append([op, dtype, *(f"{d:.1e}" if d else "0" for d in (*found, difference(right, base)))])
    print(table(["op", "dtype", *TARGETS, "torch reference"], rows), "\n")


# ---------------------------------------------------------------------------------------------------------- schedules
def shift_naive(state: torch.Tensor, *slots: torch.Tensor) -> None:
    torch.ops.footgun.naive_shift_(state, *slots)


def shift_barrier(state: torch.Tensor, *slots: torch.Tensor) -> None:
    torch.ops.footgun.barrier_shift_(state, *slots)


def shift_ours(state: torch.Tensor, *slots: torch.Tensor) -> None:
    torch.ops.capwise.align_state_shift_(state.transpose(1, 2), *slots)


def relation(rng: random.Random, every: bool) -> tuple[list[int], list[int]]:
    """Sources and destinations of four requests: each its own slot, or any relation there is."""
    destinations = rng.sample(range(1, 8), 4)
    if not every:
        return list(destinations), destinations
    kinds = {
        "other": [0, 0, 0, 0], "swap": [destinations[i ^ 1] for i in range(4)], "chain": [7, *destinations[:3]],
        "shared": [destinations[0]] * 4, "any": [rng.randrange(8) for _ in range(4)],
    }  # fmt: skip
    return kinds[rng.choice(list(kinds))], [d if rng.random() < 0.9 else 0 for d in destinations]


def is_right(shift: Callable[..., None], gfx: str, seed: int, every: bool) -> bool:
    rng = random.Random(seed)
    width = rng.randrange(3, 13)
    state = torch.arange(8 * width * 64, dtype=torch.float32).view(8, width, 64)
    sources, destinations = relation(rng, every)
    biases = [rng.randrange(width) for _ in sources]
    slots = [torch.tensor(v, dtype=torch.int32) for v in (sources, destinations, biases)]
    right = state.clone()
    shift_naive(right, *slots)  # on a CPU, the reference
    for launch in launches_of(lambda: shift(state, *slots), {}):
        run_launch(launch.kernel, launch.grid, dict(launch.bound), gfx=gfx, sched="serial", seed=seed)
    return torch.equal(state, right)


def schedules(count: int) -> None:
    print(f"Wrong of {count} serial schedules; width 3 to 12, accepted tokens 1 to width, four requests, by slot.\n")
    rows = []
    for name, shift, every in (
        ("naive, each slot within itself", shift_naive, False),
        ("the same kernel with a barrier, each slot within itself", shift_barrier, False),
        ("`align_state_shift_`, each slot within itself", shift_ours, False),
        ("`align_state_shift_`, every relation", shift_ours, True),
    ):
        wrong = [sum(not is_right(shift, gfx, seed, every) for seed in range(count)) for gfx in TARGETS]
        rows.append([name, *wrong])
    print(table(["shift", *TARGETS], rows), "\n")


# ---------------------------------------------------------------------------------------------------------- mutants
@dataclass(frozen=True)
class OpCase:
    """A recorded launch in the shape that `emulator_mutants` runs."""

    launch: Recorded
    names: tuple[str, ...]
    written: tuple[str, ...]
    grid: tuple[int, ...]
    right: dict[str, np.ndarray]

    def data(self, _: Any) -> tuple[list[Any], Any]:
        return [as_argument(laid(v)) for v in self._values()], self.right

    def _values(self) -> Iterator[Any]:
        yield from (self.launch.bound[name] for name in self.names)

    def mismatch(self, args: list[Any], right: dict[str, np.ndarray]) -> bool:
        mine = dict(zip(self.names, args))
        return any(not np.array_equal(mine[n], right[n], equal_nan=True) for n in self.written)


def laid(value: Any) -> Any:
    """A copy of a tensor with its strides."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def op_case(launch: Recorded, gfx: str) -> OpCase:
    """What the intact kernel leaves is right: that it agrees with the reference is what the tests show."""
    bound = {n: laid(v) for n, v in launch.bound.items()}
    for name in ("out_ptr", "y_ptr", "gated_ptr", "normed_ptr"):
        if name in bound:
            bound[name].zero_()
    before = Recorded(launch.kernel, launch.grid, bound, {})
    after = {n: laid(v) for n, v in bound.items()}
    run_launch(launch.kernel, launch.grid, after, gfx=gfx, sched="lockstep", seed=0)
    names = tuple(spec_of(launch.kernel, bound).signature)
    tensors = [n for n in names if isinstance(bound[n], torch.Tensor)]
    written = tuple(n for n in tensors if not torch.equal(after[n], bound[n]))
    return OpCase(before, names, written, launch.grid, {n: as_argument(after[n]) for n in written})


def sharp(op: str) -> dict[str, Any]:
    """A call whose result depends on an order between wavefronts, where the op promises one: slots change places, the
    columns of a window lie far apart, a norm goes over a row of several wavefronts."""
    lengths, sizes = ((3,), replace(SMALL, hidden=600)) if op == "ple_gate" else ((3, 0, 5, 1, 1, 2), SMALL)
    call = sample(op, lengths, sizes)
    if "sources" in call:
        call["destinations"] = torch.arange(1, 7, dtype=torch.int32)
        call["sources"] = call["destinations"].flip(0)
    if op == "align_state_shift_":
        call["state"] = call["state"].transpose(1, 2).contiguous().transpose(1, 2)
        call["biases"] = torch.tensor([2, 1, 0, 3, 4, 2], dtype=torch.int32)
    return call


@dataclass(frozen=True)
class Binary:
    """A compiled row in the shape that `emulator_mutants` reads."""

    asm: dict[str, str]
    metadata: Any


def mutants(limit: int) -> None:
    print(f"Mutants noticed, one instruction changed or dropped, up to {limit} a kernel; barriers removed apart.\n")
    tool = load_mutants()
    head = ["target", "kernel", "noticed", "wrong", "fault", "error", "barriers, serial", "barriers, lockstep"]
    print(table(head, []))
    for gfx in TARGETS:
        for name, case, binary in mutated(tool, gfx):
            cells = kill_row(tool, gfx, name, case, binary, limit)
            print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def mutated(tool: Any, gfx: str) -> Iterator[tuple[str, Any, Any]]:
    """The emulator's own test kernels, then the shipped ones."""
    for name, case in tool.load_kernels().CASES.items():
        yield name, case, case.compile(gfx)
    for op in CALLS:
        for launch in launches_of(lambda op=op: getattr(torch.ops.capwise, op)(**sharp(op)), {}):
            row = compiled(spec_of(launch.kernel, launch.bound), gfx)
            about = argparse.Namespace(name=row.launch.symbol, shared=row.launch.shared)
            yield launch.name, op_case(launch, gfx), Binary(row.asm, about)


def kill_row(tool: Any, gfx: str, name: str, case: Any, binary: Any, limit: int) -> list[Any]:
    asm, shared = binary.asm["amdgcn"], binary.metadata.shared
    if tool.outcome(case, asm, shared) != "survived":
        raise SystemExit(f"{name} on {gfx}: the intact kernel is wrong already")
    found = list(tool.mutants(asm, binary.metadata.name))
    plain, barriers = [m for m in found if not m.is_barrier], [m for m in found if m.is_barrier]
    chosen = random.Random(0).sample(plain, min(limit, len(plain)))
    counts = Counter(tool.outcome(case, m.asm, shared) for m in chosen)
    seen = {
        sched: sum(any(tool.outcome(case, m.asm, shared, sched=sched, seed=s) != "survived" for s in tool.SEEDS)
                   for m in barriers)
        for sched in ("serial", "lockstep")
    }  # fmt: skip
    killed = len(chosen) - counts["survived"]
    rate = f"{killed} of {len(chosen)} ({100 * killed // max(len(chosen), 1)} %)"
    shown = [f"{seen[s]} of {len(barriers)}" if barriers else "-" for s in ("serial", "lockstep")]
    return [gfx, name, rate, counts["wrong"], counts["fault"], counts["error"], *shown]


def load_mutants() -> Any:
    path = Path(__file__).with_name("emulator_mutants.py")
    spec = importlib.util.spec_from_file_location("emulator_mutants", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description="The shipped kernels as ROCm code on an emulator")
    parser.add_argument("--parts", default="errors,schedules,mutants")
    parser.add_argument("--cuda", type=Path, help="CUDA results: written on a GPU machine, else read")
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--limit", type=int, default=40, help="mutants a kernel")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cuda is not None and torch.cuda.is_available():
        write_cuda(options.cuda)
        return
    parts = {
        "errors": lambda: errors(options.cuda),
        "schedules": lambda: schedules(options.schedules),
        "mutants": lambda: mutants(options.limit),
    }
    for part in options.parts.split(","):
        print(f"### {part}\n")
        parts[part]()


if __name__ == "__main__":
    main()
