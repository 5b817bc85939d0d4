"""Branches, barriers, the end of the program, and the instructions that change nothing the emulator models."""

from __future__ import annotations

import re

import numpy as np

from capwise.emulate.arrays import Array
from capwise.emulate.context import Barrier, Branch, Context, Control, End, Evaluate, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.parser import Inst
from capwise.emulate.wave import EXEC, VCC, Waves

# Waiting, scheduling, caches and message passing. Memory operations complete at once, so there is nothing to wait for.
# s_setreg is here because Triton only uses it for the rounding and denormal mode, which is not modelled.
NO_EFFECT = re.compile(
    r"s_(nop|waitcnt\w*|wait_(\w*cnt\w*|alu|idle|event)|clause|delay_alu|sendmsg|inst_prefetch|set_inst_prefetch_distance"
    r"|setprio|sleep|sched_barrier|dcache_\w+|gl1_inv|icache_inv|code_end|barrier_signal|ttracedata\w*|prefetch_\w+"
    r"|round_mode|denorm_mode|singleuse_vdst|setreg_b32|setreg_imm32_b32)"
    r"|v_nop|ds_nop|(global|flat)_(inv|wb|wbinv)|buffer_(gl[01]_inv|inv|wbl2|wbinvl1|wbinvl1_vol)"
)


def _all_zero(row: int) -> Evaluate:
    def condition(w: Waves) -> Array:
        return np.asarray(~w.mask(row).any(axis=1))

    return condition


def _negated(condition: Evaluate) -> Evaluate:
    return lambda w: ~condition(w)


_vccz, _execz = _all_zero(VCC), _all_zero(EXEC)
_CONDITIONS: dict[str, Evaluate | None] = {
    "s_branch": None,
    "s_cbranch_scc0": lambda w: ~w.scc(),
    "s_cbranch_scc1": lambda w: w.scc(),
    "s_cbranch_vccz": _vccz,
    "s_cbranch_vccnz": _negated(_vccz),
    "s_cbranch_execz": _execz,
    "s_cbranch_execnz": _negated(_execz),
}


def build_branch(inst: Inst, ctx: Context) -> Control:
    if inst.mnemonic not in _CONDITIONS:
        raise Unsupported("unknown branch")
    label = inst.operands[0]
    if label not in ctx.program.labels:
        raise Unsupported(f"a branch to {label!r}, which is not a label of this kernel")
    return Branch(ctx.program.labels[label], _CONDITIONS[inst.mnemonic])


def build_barrier(inst: Inst, ctx: Context) -> Control:
    """s_barrier, or the waiting half of a split barrier. Only the workgroup's own barrier (-1) is modelled."""
    if inst.operands and inst.operands[0] not in ("-1", "0xffff"):
        raise Unsupported("a named barrier")
    return Barrier()


def build_end(inst: Inst, ctx: Context) -> Control:
    return End()


def build_nothing(inst: Inst, ctx: Context) -> Step:
    return lambda w: None
