"""Launches a kernel: decodes its code, sets up memory and initial registers, and runs the grid batch by batch."""

from __future__ import annotations

import contextlib
import gc
import itertools
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from capwise.emulate.arguments import Argument, Arguments
from capwise.emulate.arrays import I64, U32, Array
from capwise.emulate.context import Branch, Context, Refuse
from capwise.emulate.decode import decode
from capwise.emulate.errors import EmulatorError
from capwise.emulate.memory import Lds, Scratch
from capwise.emulate.parser import Program
from capwise.emulate.scheduler import Batch, Executor, Scheduler, make_scheduler
from capwise.emulate.wave import EXEC, POISON, TTMP, Waves

TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201")
_BATCH = 64  # workgroups that run together

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Report:
    """What a launch executed. Times are in seconds."""

    gfx: str
    instructions: int  # in the kernel's code
    steps: int  # instructions executed, each for all wavefronts that ran it together
    wave_instructions: int  # the same, counted once for each wavefront
    unsupported: tuple[str, ...]  # instructions that would have raised Unsupported, had they been reached
    decode_seconds: float
    run_seconds: float


def _grid3(grid: Sequence[int]) -> Grid:
    padded = (*(int(n) for n in grid), 1, 1, 1)[: max(3, len(grid))]
    if len(padded) != 3 or min(padded) < 0:
        raise EmulatorError(f"grid {tuple(grid)}: one to three non-negative sizes are expected")
    return padded[0], padded[1], padded[2]


def run(
    asm: str,
    grid: Sequence[int],
    args: Sequence[Argument] | Mapping[str, Argument],
    *,
    shared: int = 0,
    sched: str = "lockstep",
    seed: int = 0,
    kernel: str | None = None,
    preload: bool = True,
    max_steps: int = 20_000_000,
) -> Report:
    """Execute the AMDGPU assembly that Triton emits (``compiled.asm["amdgcn"]``) on the CPU.

    grid       one to three workgroup counts
    args       the kernel's arguments without constexprs: numpy arrays of any shape, dtype and strides for pointers
               (written in place; arrays that share memory alias), ``Sparse`` for a window far from its pointer, ints,
               floats and numpy scalars for numbers (a float parameter needs a float), None for a null pointer. A
               mapping gives the names that faults use.
    shared     bytes of dynamic LDS (``compiled.metadata.shared``)
    sched      "lockstep" is fast; "serial" runs one wavefront at a time between barriers, in an order drawn
               from ``seed``
    kernel     name of the kernel, if the assembly has several
    preload    start past the code that loads arguments, as hardware with kernarg preloading does
    max_steps  instructions after which an endless loop is assumed

    Raises Fault for an access outside the arguments (or past LDS or scratch), Unsupported for an instruction that is
    not modelled, EmulatorError for a wrong call. The arrays are left as they were when an error is raised.
    """
    started = time.perf_counter()
    with _collector_off():
        program = Program(asm, kernel)
        if program.gfx not in TARGETS:
            raise EmulatorError(f"{program.gfx} is not modelled; the targets are {', '.join(TARGETS)}")
        context = Context(program)
        actions = [decode(inst, context) for inst in program.instructions]
    executor = Executor(program.instructions, actions, max_steps)
    decoded = time.perf_counter()

    arguments = Arguments(args)
    launch = _Launch(context, _grid3(grid), arguments, shared, preload)
    scheduler = make_scheduler(sched, seed)
    with np.errstate(all="ignore"):
        for workgroups in launch.batches():
            launch.run_batch(workgroups, executor, scheduler)
    arguments.copy_back(context.memory)
    refused = (f"{inst.text} ({a.reason})" for inst, a in zip(program.instructions, actions) if isinstance(a, Refuse))
    return Report(
        program.gfx,
        len(program.instructions),
        executor.steps,
        executor.wave_instructions,
        tuple(refused),
        decoded - started,
        time.perf_counter() - decoded,
    )


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Decoding makes a few closures an instruction and drops none: collecting in between would double its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Launch:
    """Memory and initial state of one launch, as the ROCm runtime would set them up."""

    def __init__(self, context: Context, grid: Grid, arguments: Arguments, shared: int, preload: bool) -> None:
        self._context, self._program, self._grid = context, context.program, grid
        self._descriptor = self._program.descriptor
        self._lds_size = self._descriptor.get("group_segment_fixed_size", 0) + shared
        self._scratch_size = self._descriptor.get("private_segment_fixed_size", 0)
        self._waves_per_workgroup = -(-self._program.workgroup_size // context.lanes)
        self._start = 0
        arguments.place(context.memory)
        kernarg = arguments.pack(self._program.parameters, self._descriptor["kernarg_size"], self._hidden())
        self._user_sgprs = self._user_registers(kernarg, preload)
        context.memory.seal()

    def _hidden(self) -> dict[str, int]:
        """Values of the implicit arguments; those not listed are zero."""
        x, y, z = self._grid
        return {
            "hidden_block_count_x": x, "hidden_block_count_y": y, "hidden_block_count_z": z,
            "hidden_group_size_x": self._program.workgroup_size, "hidden_group_size_y": 1, "hidden_group_size_z": 1,
        }  # fmt: skip

    def _user_registers(self, kernarg: bytes, preload: bool) -> list[int]:
        """The scalar registers that are set before the kernel starts, in the order the descriptor implies."""
        memory, descriptor = self._context.memory, self._descriptor
        segment = memory.place(kernarg, "the kernarg segment", writable=False)
        packet = memory.place(self._dispatch_packet(segment), "the dispatch packet", writable=False)
        groups: dict[str, list[int]] = {
            "private_segment_buffer": [0] * 4,
            "dispatch_ptr": _words(packet),
            "queue_ptr": [0, 0],
            "kernarg_segment_ptr": _words(segment),
            "dispatch_id": [0, 0],
            "flat_scratch_init": [0, 0],
            "private_segment_size": [self._scratch_size],
        }
        registers = [v for name, values in groups.items() if descriptor.get(f"user_sgpr_{name}") for v in values]
        length = descriptor.get("user_sgpr_kernarg_preload_length", 0)
        if length and preload:
            first = 4 * descriptor.get("user_sgpr_kernarg_preload_offset", 0)
            registers += struct.unpack(f"<{length}I", (kernarg + bytes(4 * length))[first : first + 4 * length])
            self._start = self._after_preload()
        return registers

    def _after_preload(self) -> int:
        """Hardware that preloads arguments enters past the code that loads them, which ends in the first branch."""
        for inst in self._program.instructions:
            if inst.mnemonic == "s_branch":
                action = decode(inst, self._context)
                if isinstance(action, Branch):
                    return action.target
        raise EmulatorError("the kernel preloads arguments but has no entry for it")

    def _dispatch_packet(self, kernarg: int) -> bytes:
        """hsa_kernel_dispatch_packet_t."""
        block, (x, y, z) = self._program.workgroup_size, self._grid
        sizes = (block, 1, 1, 0, x * block, y, z, self._scratch_size, self._lds_size)
        return struct.pack("<HHHHHHIIIIIQQQQ", 0x1502, 3, *sizes, 0, kernarg, 0, 0)

    def batches(self) -> list[list[Grid]]:
        x, y, z = self._grid
        ids = [(i, j, k) for k, j, i in itertools.product(range(z), range(y), range(x))]
        return [ids[first : first + _BATCH] for first in range(0, len(ids), _BATCH)]

    def run_batch(self, workgroups: list[Grid], executor: Executor, scheduler: Scheduler) -> None:
        context, width = self._context, self._waves_per_workgroup
        context.lds = Lds(self._lds_size, len(workgroups))
        context.scratch = Scratch(self._scratch_size, len(workgroups) * width, context.lanes)
        executor.run(Batch(self._initial_waves(workgroups), self._start, width), scheduler)

    def _initial_waves(self, workgroups: list[Grid]) -> Waves:
        width, lanes = self._waves_per_workgroup, self._context.lanes
        total = len(workgroups) * width
        registers = max(self._descriptor.get("next_free_vgpr", 512), 8)
        vgpr = np.full((registers, total, lanes), POISON, U32)
        # The accumulators of gfx90a and later share the vector file with the ordinary registers.
        first_agpr = self._descriptor.get("accum_offset", registers)
        agpr = vgpr[first_agpr:] if self._context.is_gfx9 else vgpr[:0]
        programs = np.repeat(np.array(workgroups, I64).reshape(-1, 3), width, axis=0)
        wave = np.tile(np.arange(width), len(workgroups))
        w = Waves(vgpr, agpr, np.repeat(np.arange(len(workgroups)), width), programs)
        thread = (wave * lanes)[:, None] + np.arange(lanes)
        w.set_mask(EXEC, np.ones((total, lanes), bool))
        w.set_v(0, thread.astype(U32))
        w.set_mask(EXEC, thread < self._program.workgroup_size)
        for row, value in enumerate(self._user_sgprs):
            w.sgpr[row] = value
        self._set_program_ids(w, programs, wave)
        return w

    def _set_program_ids(self, w: Waves, programs: Array, wave: Array) -> None:
        """gfx12 keeps the workgroup's position in trap registers, earlier targets in scalars after the user's."""
        x, y, z = programs.T
        if self._context.is_gfx12:
            w.sgpr[TTMP + 9] = x
            w.sgpr[TTMP + 7] = (y & 0xFFFF) | ((z & 0xFFFF) << 16)
            w.sgpr[TTMP + 8] = wave << 25
            return
        row = self._descriptor.get("user_sgpr_count", len(self._user_sgprs))
        for name, values in (("x", x), ("y", y), ("z", z)):
            if self._descriptor.get(f"system_sgpr_workgroup_id_{name}"):
                w.sgpr[row] = values
                row += 1


def _words(address: int) -> list[int]:
    return [address & 0xFFFFFFFF, address >> 32]
