"""Decides which wavefronts execute next, and runs the instructions.

Lockstep executes all wavefronts that stand at the lowest program counter together, one numpy call an instruction:
fast, and blind to missing barriers. Serial executes one wavefront at a time up to its next barrier, in random order:
slow, and a result that depends on the order of wavefronts comes out wrong for some seed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from capwise.emulate.arrays import I64, Array
from capwise.emulate.context import Barrier, Branch, Control, End, Refuse, Step
from capwise.emulate.errors import EmulatorError, Unsupported, locate
from capwise.emulate.parser import Inst
from capwise.emulate.wave import Waves

_NO_LIMIT = 1 << 60


class Batch:
    """The wavefronts of some workgroups: program counters, and which are waiting at a barrier or done."""

    def __init__(self, waves: Waves, start: int, waves_per_workgroup: int) -> None:
        self.waves = waves
        self.pc = np.full(waves.total, start, I64)
        self.done = np.zeros(waves.total, bool)
        self.waiting = np.zeros(waves.total, bool)
        self._width = waves_per_workgroup

    def ready(self) -> Array:
        return ~(self.done | self.waiting)

    def release_barriers(self) -> bool:
        """Let every workgroup go on whose live wavefronts all wait; False if there is none."""
        arrived = (self.waiting | self.done).reshape(-1, self._width).all(axis=1)
        freed = np.repeat(arrived, self._width) & self.waiting
        self.waiting[freed] = False
        return bool(freed.any())


class Scheduler(Protocol):
    def pick(self, batch: Batch) -> tuple[Array, int] | None:
        """(wavefronts at one program counter, program counter at which to pick anew), or None if none can run."""


class Lockstep:
    """All ready wavefronts at the lowest program counter, until others stand at the one they reach."""

    def pick(self, batch: Batch) -> tuple[Array, int] | None:
        ready = batch.ready()
        if not ready.any():
            return None
        counters = np.where(ready, batch.pc, _NO_LIMIT)
        lowest = int(counters.min())
        others = counters[counters > lowest]
        return np.nonzero(counters == lowest)[0], int(others.min()) if others.size else _NO_LIMIT


class Serial:
    """One wavefront until it waits or ends, then a random other one."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._current = -1

    def pick(self, batch: Batch) -> tuple[Array, int] | None:
        # At once, so that a workgroup past its barrier can overtake workgroups that are still before it.
        batch.release_barriers()
        ready = batch.ready()
        if not ready.any():
            self._current = -1
            return None
        if self._current < 0 or not ready[self._current]:
            self._current = int(self._random.choice(np.nonzero(ready)[0]))
        return np.array([self._current]), _NO_LIMIT


def make_scheduler(name: str, seed: int) -> Scheduler:
    """``lockstep`` or ``serial``. Raises EmulatorError for another name."""
    if name == "lockstep":
        return Lockstep()
    if name == "serial":
        return Serial(seed)
    raise EmulatorError(f"unknown schedule {name!r}: 'lockstep' and 'serial' are known")


class Executor:
    """Decoded code of a kernel, and counts of what has been executed.

    ``steps`` counts instructions executed for a group of wavefronts, ``wave_instructions`` counts each wavefront.
    """

    def __init__(self, instructions: list[Inst], actions: list[Step | Control], max_steps: int) -> None:
        self._instructions = instructions
        self._steps: list[Step | None] = [None if isinstance(a, Control) else a for a in actions]
        self._controls: list[Control | None] = [a if isinstance(a, Control) else None for a in actions]
        self._max_steps = max_steps
        self.steps = self.wave_instructions = 0

    def run(self, batch: Batch, scheduler: Scheduler) -> None:
        """Run all wavefronts of the batch to their end. Raises what steps raise; EmulatorError at the step limit."""
        while True:
            picked = scheduler.pick(batch)
            if picked is not None:
                self._advance(batch, *picked)
            elif not batch.release_barriers():
                return

    def _advance(self, batch: Batch, rows: Array, limit: int) -> None:
        """Execute ``rows`` until a control instruction or until they reach the program counter ``limit``."""
        pc, w = int(batch.pc[rows[0]]), batch.waves
        w.select(rows)
        first = pc
        try:
            while pc < limit:
                step = self._steps[pc]
                if step is None:
                    self._count(pc + 1 - first, len(rows))
                    self._transfer(batch, rows, pc)
                    return
                step(w)
                pc += 1
        except EmulatorError as error:
            raise locate(error, self._instructions[pc]) from None
        except IndexError:
            if pc >= len(self._steps):
                raise EmulatorError("execution ran past the end of the kernel") from None
            beyond = EmulatorError("a register beyond those the kernel declares")
            raise locate(beyond, self._instructions[pc]) from None
        except (TypeError, ValueError) as error:
            raise locate(EmulatorError(f"{type(error).__name__}: {error}"), self._instructions[pc]) from error
        batch.pc[rows] = pc
        self._count(pc - first, len(rows))

    def _count(self, steps: int, waves: int) -> None:
        self.steps += steps
        self.wave_instructions += steps * waves
        if self.steps > self._max_steps:
            cause = "an endless loop, or a wait for a workgroup that has not started"
            raise EmulatorError(f"{self._max_steps} steps without an end: {cause}")

    def _transfer(self, batch: Batch, rows: Array, pc: int) -> None:
        """Carry out the control instruction at ``pc``."""
        control = self._controls[pc]
        batch.pc[rows] = pc + 1
        if isinstance(control, Branch):
            taken = True if control.condition is None else control.condition(batch.waves)
            batch.pc[rows] = np.where(taken, control.target, pc + 1)
        elif isinstance(control, Barrier):
            batch.waiting[rows] = True
        elif isinstance(control, End):
            batch.done[rows] = True
        elif isinstance(control, Refuse):
            raise Unsupported(control.reason)
