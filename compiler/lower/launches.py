"""A recorded launch as something to compile: types, compiled-in values and specialisation are read off its arguments.

Triton specialises at launch: an integer that is 1 is compiled in, an integer or an address that 16 divides is marked,
and on ROCm a tensor under 2 GiB is addressed by 32-bit offsets (`tt.pointer_range`), which is other code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from capwise.lower.triton_aot import KernelSpec

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2: "fp8e5",
    torch.float8_e5m2fnuz: "fp8e5b16",
}
_LAUNCH_OPTIONS = ("num_warps", "num_stages")
_ALIGNED = ("tt.divisibility", 16)
_SMALL = ("tt.pointer_range", 32)
_SMALL_BYTES = 2**31


def spec_of(
    kernel: Any, bound: Mapping[str, Any], *, specialise: bool = True, others: Sequence[Mapping[str, Any]] = ()
) -> KernelSpec:
    """What compiles to the code that this launch would run.

    Args:
        kernel: the JITFunction. bound: its arguments by name, constexprs and launch options included.
        specialise: as a launch does; without it no argument is known to be aligned or small, and none is compiled in.
        others: arguments of launches at other extents that the code must serve too: what is known of an integer must
            hold there as well.

    Raises:
        ValueError: an argument of a type that Triton has no name for.
    """
    signature: dict[str, str] = {}
    constexprs: dict[str, Any] = {}
    attrs: dict[str, list[tuple[str, int]]] = {}
    for parameter in kernel.params:
        name, value = parameter.name, bound[parameter.name]
        special = specialise and not parameter.do_not_specialize
        rest = [other[name] for other in others] if type(value) is int and not parameter.is_constexpr else []
        if parameter.is_constexpr or value is None or (special and type(value) is int and {value, *rest} == {1}):
            constexprs[name] = value
            continue
        signature[name] = triton_type(name, value)
        if special and (known := _known(value)) and all(_known(other) == known for other in rest):
            attrs[name] = known
    return KernelSpec(
        kernel,
        signature,
        constexprs,
        attrs,
        num_warps=bound.get("num_warps", 4),
        num_stages=bound.get("num_stages"),
        options={n: v for n, v in bound.items() if n not in kernel.arg_names and n not in _LAUNCH_OPTIONS},
    )


def triton_type(name: str, value: Any) -> str:
    """The Triton type of a launch's argument, unspecialised. Raises ValueError for one that Triton has no name for."""
    if isinstance(value, torch.Tensor) and value.dtype in _TYPES:
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise ValueError(f"{name}: expected a tensor, a number or None; got {type(value).__name__}")


def _known(value: Any) -> list[tuple[str, int]]:
    """What the compiler is told about an argument."""
    if isinstance(value, torch.Tensor):
        aligned = value.data_ptr() % 16 == 0
        small = value.untyped_storage().nbytes() < _SMALL_BYTES
        return [_ALIGNED] * aligned + [_SMALL] * small
    return [_ALIGNED] if type(value) is int and value % 16 == 0 else []
