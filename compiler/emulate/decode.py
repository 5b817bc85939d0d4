"""Turns an instruction into what executes it: one row a family, first match wins."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from capwise.emulate import (
    atomics,
    control,
    convert,
    cross_lane,
    lds_ops,
    matrix,
    memory_ops,
    packed,
    scalar_alu,
    vector_alu,
)
from capwise.emulate.context import Context, Control, Refuse, Step
from capwise.emulate.errors import Unsupported
from capwise.emulate.parser import Inst

Builder = Callable[[Inst, Context], Step | Control]

_FAMILIES: list[tuple[str, Builder]] = [
    (control.NO_EFFECT.pattern, control.build_nothing),
    (r"s_endpgm", control.build_end),
    (r"s_barrier(_wait)?", control.build_barrier),
    (r"s_(c)?branch\w*", control.build_branch),
    (r"s_(buffer_)?load_\w+", memory_ops.build_scalar_load),
    (r"s_\w+_(saveexec|wrexec)_b(32|64)", scalar_alu.build_exec_logic),
    (r"s_cmpk?_\w+", scalar_alu.build_compare),
    (r"s_bitcmp[01]_b\d+", scalar_alu.build_bit_compare),
    (r"s_bitset[01]_b32", scalar_alu.build_bit_set),
    (r"s_(cselect|cmov|cmovk)_\w+", scalar_alu.build_select),
    (r"s_(mov|add|mul)k_\w+", scalar_alu.build_immediate),
    (r"s_(addc_u32|add_co_ci_u32|subb_u32|sub_co_ci_u32)", scalar_alu.build_carry),
    (r"s_fma(c|ak|mk)_(f16|f32)", scalar_alu.build_fma),
    (r"s_\w+", scalar_alu.build_scalar),
    (r"v_dual_\w+", vector_alu.build_dual),
    (r"v_cmpx?_\w+", vector_alu.build_compare),
    (r"v_mfma_\w+", matrix.build_mfma),
    (r"v_wmma_\w+", matrix.build_wmma),
    (r"v_(add|sub|subrev|addc|subb|subbrev)_co(_ci)?_u32", vector_alu.build_carry),
    (r"v_mad_(co_|nc_)?(u64_u32|i64_i32)", vector_alu.build_mad_64),
    (r"v_div_scale_f32", vector_alu.build_div_scale),
    (r"v_div_fmas_f32", vector_alu.build_div_fmas),
    (r"v_swap_b32", vector_alu.build_swap),
    (r"v_accvgpr_\w+", vector_alu.build_accumulator_move),
    (r"v_bitop3_b(16|32)", vector_alu.build_bitop3),
    (r"v_(fma|mad)_mix(lo|hi)?_\w+", vector_alu.build_fma_mix),
    (r"v_dot[24]\w*", vector_alu.build_dot),
    (r"v_pk_\w+", packed.build_packed),
    (r"v_read(first)?lane_b32", cross_lane.build_read_lane),
    (r"v_writelane_b32", cross_lane.build_write_lane),
    (r"v_permlanex?16_b32", cross_lane.build_permlane16),
    (r"v_permlane(16|32)_swap_b32", cross_lane.build_permlane_swap),
    (r"v_mbcnt_(lo|hi)_u32_b32", cross_lane.build_mask_count),
    (r"v_cvt_scalef32_pk_(fp8|bf8)_\w+", convert.build_scaled_to_float8),
    (r"v_cvt_scalef32_(pk_)?(f32|f16|bf16)_\w+", convert.build_scaled_from_float8),
    (r"v_cvt_(pk_)?f32_(fp8|bf8)", convert.build_from_float8),
    (r"v_cvt_pk_(fp8|bf8)_f32", convert.build_to_float8),
    (r"v_s_\w+", vector_alu.build_scalar_result),
    (r"v_\w+", vector_alu.build_computed),
    (r"ds_b?permute_b32", cross_lane.build_bpermute),
    (r"ds_swizzle_b32", cross_lane.build_swizzle),
    (r"ds_read_b64_tr_\w+", lds_ops.build_lds_transpose),
    (r"ds_(read2|write2|load_2|store_2)\w+", lds_ops.build_lds_two_addresses),
    (r"ds_(read|write|load|store)_\w+", lds_ops.build_lds),
    (r"ds_\w+", atomics.build_lds_atomic),
    (r"(global|flat|buffer)_atomic_\w+", atomics.build_global_atomic),
    (r"buffer_\w+", memory_ops.build_buffer),
    (r"(global|flat)_\w+", memory_ops.build_global),
    (r"scratch_\w+", memory_ops.build_scratch),
]


@cache
def _builder(mnemonic: str) -> Builder:
    for pattern, builder in _FAMILIES:
        if re.fullmatch(pattern, mnemonic):
            return builder
    raise Unsupported("unknown instruction")


def decode(inst: Inst, ctx: Context) -> Step | Control:
    """The step or control that executes ``inst``.

    A Refuse if it is not modelled: that matters only if it is reached.
    """
    try:
        action = _builder(inst.mnemonic)(inst, ctx)
        _check_modifiers(inst)
        return action
    except Unsupported as error:
        return Refuse(str(error))
    except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
        # The decoders take operand lists apart without checking each shape that the assembler would allow.
        return Refuse(f"operands of an unexpected form ({type(error).__name__}: {error})")


def _check_modifiers(inst: Inst) -> None:
    """Refuse what no decoder looked at, so that no modifier is silently ignored."""
    for part in inst.pair or (inst,):
        unread = part.unread()
        if unread:
            raise Unsupported(f"modifier {', '.join(unread)}")
