"""Launches compiled kernels from their manifest alone, through the CUDA driver, and compares with the torch reference.

    capwise lower --target cuda:90 --out DIR            on any machine
    python benchmarks/launch_manifest.py DIR            on one with that GPU

Nothing is compiled here: cubin, argument order, grid, threads and shared memory come from the files. The extents differ
from those that the kernels were recorded at.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from capwise.lower.recorded import Recorded, launches_of
from capwise.lower.triton_aot import Artifact, load_manifest
from capwise.ops.aten import written
from capwise.ops.samples import CALLS, Attention, Sizes, sample

LENGTHS = (100, 0, 3, 1, 41, 1, 1, 77, 0, 20)
TOLERANCE = 3e-2  # bf16
SIZES = replace(Sizes(), filled=True, slots=48, table_rows=2000, attention=replace(Attention(), pages=1281))
_SCALARS: dict[str, Any] = {"i1": ctypes.c_bool, "i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Driver:
    """The few calls of the CUDA driver that a launch takes; the context is torch's."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self.cuda, name)(*args)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")

    def load(self, artifact: Artifact) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), artifact.file.read_bytes())
        self._call("cuModuleGetFunction", ctypes.byref(function), module, artifact.symbol.encode())
        if artifact.shared > 48 * 1024:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, artifact.shared)
        return function

    def launch(self, artifact: Artifact, grid: tuple[int, int, int], values: list[Any]) -> None:
        held = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values])
        function, block = self.load(artifact), (artifact.threads, 1, 1)
        self._call("cuLaunchKernel", function, *grid, *block, artifact.shared, None, held, None)
        torch.cuda.synchronize()


def values_of(artifact: Artifact, bound: dict[str, Any]) -> Iterator[Any]:
    """The arguments in the manifest's order, as C values; Triton's own scratch pointers are null."""
    for name, kind in artifact.arguments:
        value = bound.get(name)
        check_assumed(artifact, name, value)
        if kind.startswith("*"):
            yield ctypes.c_void_p(value.data_ptr() if value is not None else None)
        else:
            yield _SCALARS[kind](value)


def check_assumed(artifact: Artifact, name: str, value: Any) -> None:
    step = artifact.assumes.get(name, {}).get("tt.divisibility", 1)
    number = value.data_ptr() if isinstance(value, torch.Tensor) else value
    if number is not None and step > 1 and number % step:
        raise RuntimeError(f"{artifact.kernel}: {name} = {number} is no multiple of {step}, which the binary assumes")


def check_constants(artifact: Artifact, bound: dict[str, Any]) -> None:
    """What was compiled in must be what this launch would pass: all but tile sizes, which the grid follows."""
    for name, value in artifact.constants.items():
        if (name.islower() or isinstance(value, bool)) and bound[name] != value:
            raise RuntimeError(f"{artifact.kernel}: {name} = {bound[name]}; the binary has {value} compiled in")


def on_device(launch: Recorded) -> dict[str, Any]:
    """The launch's arguments, tensors copied to the GPU as they lie; two that are one stay one."""
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[str, Any] = dict(launch.bound)
    for name, value in launch.bound.items():
        if isinstance(value, torch.Tensor):
            held = value.untyped_storage()
            if held.data_ptr() not in storages:
                storages[held.data_ptr()] = held.cuda()
            whole = torch.empty(0, dtype=value.dtype, device="cuda")
            there = storages[held.data_ptr()]
            made[name] = whole.set_(there, value.storage_offset(), value.shape, value.stride())
    return made


def run_op(op: str, kernels: dict[str, Artifact], driver: Driver | None) -> list[str]:
    """One line a kernel of the op: the largest difference from the reference; without a driver nothing is launched."""
    extents = {"T": sum(LENGTHS), "R": len(LENGTHS)}
    call, names = sample(op, LENGTHS, SIZES, seed=5), written(getattr(torch.ops.capwise, op).default)
    given = {n: v.clone() if n in names else v for n, v in call.items()}
    outs: list[Any] = []
    lines = []
    for launch in launches_of(lambda: outs.append(getattr(torch.ops.capwise, op)(**given)), extents):
        bound = dict(launch.bound)
        artifact = one_for(launch.name, bound, kernels)
        check_constants(artifact, bound)
        there = on_device(launch) if driver is not None else bound
        values, grid = list(values_of(artifact, there)), artifact.grid_at(**extents)
        if driver is not None:
            driver.launch(artifact, grid, values)
            for name, value in bound.items():
                if isinstance(value, torch.Tensor):
                    value.copy_(there[name])
        lines.append(f"{artifact.file.name}: grid {grid}, {artifact.threads} threads, {len(values)} arguments")
    if driver is None:
        return lines
    right = getattr(torch.ops.capwise, op)(**call)
    expected = [*results(right), *(call[n] for n in names)]
    got = [*results(outs[0]), *(given[n] for n in names)]
    worst = max(difference(a.double(), b.double()) for a, b in zip(got, expected, strict=True))
    if not worst <= TOLERANCE:
        raise SystemExit(f"{op}: differs from the reference by {worst}")
    return [f"{line}: differs by {worst:.1e}" for line in lines]


def one_for(name: str, bound: dict[str, Any], kernels: dict[str, Artifact]) -> Artifact:
    """The binary of a kernel; where several ops launch it, the one with this launch's constants."""
    mine = [a for label, a in kernels.items() if label.partition("#")[0] == name]
    return max(mine, key=lambda a: sum(bound.get(n) == v for n, v in a.constants.items()))


def results(out: Any) -> list[torch.Tensor]:
    return list(out) if isinstance(out, tuple) else [] if out is None else [out]


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest |a - b| / max(1, |b|, root mean square of b): a sum that cancels is as exact as its terms."""
    known = b[b.isfinite()]
    least = max(1.0, known.square().mean().sqrt().item()) if known.numel() else 1.0
    # Equal infinities differ by nothing.
    apart = torch.where(a == b, 0.0, (a - b).abs() / b.abs().clamp(min=least))
    return apart.max().item() if b.numel() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Launch compiled kernels from their manifest")
    parser.add_argument("folder", type=Path, help="what `capwise lower --out` wrote")
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--dry", action="store_true", help="launch nothing: match arguments, grids and assumptions")
    options = parser.parse_args()
    kernels = {a.kernel: a for a in load_manifest(options.folder / "manifest.json") if a.target == options.target}
    driver = None if options.dry else Driver()
    for op in CALLS:
        print("\n".join(run_op(op, kernels, driver)), flush=True)
    print(f"{len(kernels)} kernels of {options.target} launched from the manifest" if driver else "nothing launched")


if __name__ == "__main__":
    main()
