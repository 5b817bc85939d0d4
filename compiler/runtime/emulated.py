"""Runs a Triton launch as the ROCm code that Triton makes of it, on this CPU."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

from capwise import emulate
from capwise.lower.aot_worker import compile_job
from capwise.lower.launches import spec_of
from capwise.lower.row import LowerRow
from capwise.lower.targets import Target
from capwise.lower.triton_aot import KernelSpec
from capwise.runtime.tape import CaptureError, KernelExecutor


class DeviceFault(CaptureError):
    """What would be a memory fault on a device: an access outside a launch's arguments."""


def emulated(gfx: str = "gfx942", sched: str = "serial", seed: int = 0, specialise: bool = True) -> KernelExecutor:
    """An executor for `tape.kernels_run_by`.

    Args:
        gfx, sched, seed: as for `emulate.run`. The serial schedule runs one wavefront at a time between barriers, in
            an order drawn from the seed, another one at each launch: it is the one that notices a missing barrier.
        specialise: compile as a launch would, see `spec_of`.

    The executor raises DeviceFault, and RuntimeError for a kernel that does not compile for the target.
    """
    launches = 0

    def execute(kernel: Any, grid: Any, **bound: Any) -> None:
        nonlocal launches
        launches += 1
        run_launch(kernel, grid, bound, gfx=gfx, sched=sched, seed=seed + launches, specialise=specialise)

    return execute


def run_launch(
    kernel: Any, grid: Any, bound: dict[str, Any], *, gfx: str, sched: str, seed: int, specialise: bool = True
) -> None:
    """One launch on the emulator; tensors are written in place."""
    spec = spec_of(kernel, bound, specialise=specialise)
    row = compiled(spec, gfx)
    assert row.launch is not None
    arguments = {name: as_argument(bound[name]) for name in spec.signature}
    try:
        emulate.run(row.asm["amdgcn"], grid, arguments, shared=row.launch.shared, sched=sched, seed=seed)
    except emulate.Fault as error:
        raise DeviceFault(f"{row.kernel} on {gfx}: {error}") from error


def compiled(spec: KernelSpec, gfx: str) -> LowerRow:
    """The kernel for that target, compiled once in this process.

    Raises:
        RuntimeError: it does not compile.
    """
    return _compiled(_Job(spec, gfx))


class _Job:
    """A spec with a target, compared by what is compiled."""

    def __init__(self, spec: KernelSpec, gfx: str) -> None:
        self.job, self.target = spec.job(), Target.parse(f"hip:{gfx}")
        self._key = (json.dumps(self.job, default=str, sort_keys=True), gfx)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Job) and self._key == other._key


@functools.cache
def _compiled(job: _Job) -> LowerRow:
    row = compile_job(job.job, job.target, None)
    if not row.ok:
        raise RuntimeError(f"{row.kernel} for {row.target}: {row.error}")
    return row


def as_argument(value: Any) -> Any:
    """A tensor as a numpy array over its own memory; numbers as they are. Formats that numpy lacks go as integers."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.bool or value.dtype.itemsize == 1:
        value = value.view(torch.uint8)
    elif value.dtype == torch.bfloat16:
        value = value.view(torch.int16)
    return value.detach().numpy()
