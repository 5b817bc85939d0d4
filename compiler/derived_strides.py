"""What a kernel takes for granted of the strides of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from capwise.axes import as_expr
from capwise.launch import Launch, dense_width
from capwise.ops import contract as c


@dataclass
class Strides:
    """Of one launch; what no contract can say goes to `reasons`."""

    launch: Launch
    reasons: list[str]

    def need(self, name: str) -> c.Stride | None:
        """What the kernel takes for granted of an argument's strides; None where they are passed."""
        tensor = self.launch.tensors[name]
        # An argument that this build of the kernel never touches has no row.
        axes = next((a.axes for a in self.launch.call.summary.arguments if a.arg == name), ())
        taken = [a for a in axes if not a.stride.startswith("passed")]
        if not taken or not tensor.shape:
            return None
        if any(a.stride == "unknown" for a in taken):
            self.reasons.append(f"the stride of {name} along {taken[0].by} is not known")
            return None
        passed = {a.stride for a in axes} - {a.stride for a in taken}
        if all(a.stride == "unit" for a in taken) and len(passed) >= len(tensor.shape) - 1:
            return c.Unit()
        # A row counted from the far end steps by the same stride, the other way.
        numbers = {abs(int(a.stride.partition(":")[2])) for a in taken if a.stride.startswith("constant")}
        return self._dense(name, numbers)

    def is_mistaken(self, name: str) -> bool:
        """Whether the number that is passed for a stride is that of a dense tensor of this shape, which this one is
        not: its width, say."""
        tensor = self.launch.tensors[name]
        real = {as_expr(s) for s in tensor.strides}
        dense = {as_expr(s) for n, s in zip(tensor.shape, dense_strides(tensor.shape)) if n != 1}
        for axis in self.launch.call.summary[name].axes:
            said, _, names = axis.stride.partition(":")
            if said == "passed" and (step := self._product(names)) is not None and step in dense - real:
                return True
        return False

    def _product(self, names: str) -> sympy.Expr | None:
        factors = [self.launch.scalars.get(n) for n in names.split("*")]
        return None if None in factors else sympy.Mul(*factors)

    def _dense(self, name: str, numbers: set[int]) -> c.Stride | None:
        """Constant strides are those of a dense tensor, or the contract cannot be kept by any copy."""
        tensor = self.launch.tensors[name]
        width = dense_width(tensor)
        known: set[int] = {1}
        for size in reversed(tensor.shape[1:]):
            known.add(max(known) * size if isinstance(size, int) else 0)
        if width is None or any(n % width and n not in known for n in numbers if len(tensor.shape) > 1):
            self.reasons.append(f"{name} is taken to have strides {sorted(numbers)}")
            return None
        if len(tensor.shape) == 1 and numbers - {1}:
            if not self._is_tiled(name):
                self.reasons.append(f"{name} is taken to have stride {max(numbers)}")
            return c.Unit()
        return c.Contiguous() if len(tensor.shape) > 1 else c.Unit()

    def _is_tiled(self, name: str) -> bool:
        """A constant times a program id is a tile of that many elements, not a stride."""
        return any(a.stride == "unit" for a in self.launch.call.summary[name].axes)


def dense_strides(shape: Sequence[object]) -> tuple[Any, ...]:
    """The strides of a dense tensor, as in `Layout`."""
    steps = [sympy.Integer(1)]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * as_expr(size))
    return tuple(int(s) if s.is_Integer else s for s in reversed(steps[: len(shape)]))
