"""A launch of a Triton kernel as an op of its own, so that a graph that holds one is a graph of ops like any other.

For every kernel with its compiled-in values there is one op `capwise_kernel::<name>`: its arguments are the kernel's
run-time arguments and the grid, its schema says which tensors are written. The launch on a device is Triton's own; on
a CPU it goes through the interpreter, and under a tape it is recorded as the launch that it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from capwise import compat
from capwise.kernel_access import BuildError, KernelSummary, summarize

NAMESPACE = "capwise_kernel"
GRID = ("grid_x", "grid_y", "grid_z")
_NAMES = itertools.count()
_CALLS: dict[tuple[Any, ...], KernelCall] = {}
_BY_OP: dict[torch._ops.OpOverload, KernelCall] = {}


@dataclass(frozen=True, eq=False)
class KernelCall:
    """One kernel as a graph calls it.

    kernel: the JITFunction. signature: Triton type of each run-time argument. fixed: constexprs, None among them, and
    whatever else is compiled in. options: launch options. op: the op that stands in graphs; its arguments are those of
    `signature` in order, then GRID.
    """

    kernel: Any
    signature: Mapping[str, str]
    fixed: Mapping[str, Any]
    options: Mapping[str, Any]
    op: torch._ops.OpOverload

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def pointers(self) -> tuple[str, ...]:
        return tuple(n for n, kind in self.signature.items() if kind.startswith("*"))

    @property
    def scalars(self) -> tuple[str, ...]:
        return tuple(n for n, kind in self.signature.items() if not kind.startswith("*"))

    @cached_property
    def summary(self) -> KernelSummary:
        return summarize(self.kernel, self.signature, self.fixed)


def call_of(op: object) -> KernelCall | None:
    """The kernel behind an op of ours, None for other ops."""
    return _BY_OP.get(op) if isinstance(op, torch._ops.OpOverload) else None


def kernel_call(
    kernel: Any, signature: Mapping[str, str], fixed: Mapping[str, Any], options: Mapping[str, Any]
) -> KernelCall:
    """The op of a kernel with these types and compiled-in values, made at its first use in the process.

    Raises:
        kernel_access.BuildError: the kernel does not compile with this signature.
    """
    key = (kernel, *(tuple((k, repr(v)) for k, v in part.items()) for part in (signature, fixed, options)))
    if key not in _CALLS:
        made = _register(kernel, dict(signature), dict(fixed), dict(options))
        _CALLS[key] = _BY_OP[made.op] = made
    return _CALLS[key]


def widened(call: KernelCall) -> KernelCall | None:
    """The same kernel with its integer scalars of 64 bits; None where none is of 32."""
    names = tuple(n for n in call.scalars if call.signature[n] == "i32")
    if not names:
        return None
    signature = {n: "i64" if n in names else kind for n, kind in call.signature.items()}
    try:
        return kernel_call(compat.widened(call.kernel, names), signature, call.fixed, call.options)
    except BuildError:
        return None


def _register(kernel: Any, signature: dict[str, str], fixed: dict[str, Any], options: dict[str, Any]) -> KernelCall:
    names = (*signature, *GRID)
    summary = summarize(kernel, signature, fixed)
    written = _written(summary, signature)
    schema = ", ".join(_argument(i, name, signature, written) for i, name in enumerate(names))
    label = re.sub(r"\W", "_", kernel.fn.__name__)
    name = f"{NAMESPACE}::{label}" + ("" if not _taken(label) else f"_{next(_NAMES)}")
    body = _body(kernel, tuple(signature), fixed, options)
    definition = torch.library.custom_op(name, body, mutates_args=written, schema=f"({schema}) -> ()")
    definition.register_fake(lambda *args: None)
    made = KernelCall(kernel, signature, fixed, options, definition._opoverload)
    made.__dict__["summary"] = summary
    return made


def _taken(label: str) -> bool:
    return any(call.op._schema.name == f"{NAMESPACE}::{label}" for call in _CALLS.values())


def _written(summary: KernelSummary, signature: Mapping[str, str]) -> tuple[str, ...]:
    """Tensors that the kernel stores to; all of them where a store goes somewhere that is not followed."""
    pointers = [n for n, kind in signature.items() if kind.startswith("*")]
    lost = any(a.arg is None and a.kind != "load" for a in summary.accesses)
    if lost or not summary.accesses and summary.unknown:
        return tuple(pointers)
    stored = {a.arg for a in summary.accesses if a.kind != "load"}
    return tuple(n for n in pointers if n in stored)


def _argument(number: int, name: str, signature: Mapping[str, str], written: tuple[str, ...]) -> str:
    kind = signature.get(name, "i32")
    if kind.startswith("*"):
        return f"Tensor(a{number}!) {name}" if name in written else f"Tensor {name}"
    return f"{'float' if kind.startswith(('fp', 'bf')) else 'bool' if kind == 'i1' else 'SymInt'} {name}"


def _body(
    kernel: Any, names: tuple[str, ...], fixed: Mapping[str, Any], options: Mapping[str, Any]
) -> Callable[..., None]:
    def launch(*args: Any) -> None:
        bound = {**dict(zip(names, args)), **fixed}
        grid = tuple(int(n) for n in args[len(names) :])
        if 0 in grid:
            return
        on_cpu = any(isinstance(a, torch.Tensor) and a.device.type == "cpu" for a in args)
        if on_cpu and not compat.interpreting():
            compat.run_interpreted(kernel, grid, **bound)
        else:
            kernel[grid](**{name: bound[name] for name in kernel.arg_names}, **options)

    return launch
