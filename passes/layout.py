"""Strides that a consumer needs against strides that its producer has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx

from capwise.axes import as_expr
from capwise.compilation import CompilerPass
from capwise.facts import fact, facts, has_fact, is_tensor, val
from capwise.ops import aten
from capwise.ops import contract as c
from capwise.transfer.flow import SEAM, Hazard, Remedy


class Layout(CompilerPass):
    """An argument is laid out as its consumer assumes iff the stride that the contract asks for is the producer's for
    every batch."""

    name = "layout"
    needs = ("contract", "rows")
    gives = ("strides",)
    codes = ("CW401", "CW402")

    def run(self, graph: fx.Graph) -> bool:
        for node in graph.nodes:
            found = facts(node).found
            contract = found.contract if found is not None else None
            if contract is not None:
                for name, need, arg in _needs(node, contract):
                    self._check(node, name, need, arg)
        self._guarded(graph)
        return False

    def _check(self, node: fx.Node, name: str, need: c.Stride, arg: fx.Node) -> None:
        value = val(arg)
        if isinstance(need, c.Frozen):
            self._frozen(node, name, arg)
        elif not _satisfied(need, value):
            self._report(node, name, need, arg, value)
        elif fact(arg).source in self.state.strided and fact(arg).origin == "staged":
            stage = Remedy("stage", "stage into a dense buffer")
            self._add(node, name, need, arg, (stage, SEAM), f"some batch brings {fact(arg).source} with a stride")

    def _report(self, node: fx.Node, name: str, need: c.Stride, arg: fx.Node, value: torch.Tensor) -> None:
        dense = Remedy("dense", "contiguous copy", arg=arg, cost=1.0)
        self._add(node, name, need, arg, (dense, SEAM), f"{arg.name} has strides {tuple(value.stride())}")

    def _add(
        self, node: fx.Node, name: str, need: c.Stride, arg: fx.Node, remedies: tuple[Remedy, ...], note: str
    ) -> None:
        hazard = Hazard(
            "CW401",
            node,
            f"{node.target} assumes a stride that {name} does not have",
            f"needs {type(need).__name__.lower()} stride of {name}",
            remedies,
            arg,
            notes=(note,),
        )
        if self.state.options.repair != "none":
            # A seam would not help: eager reads the wrong elements too.
            hazard.chosen = remedies[0]
        self.state.hazards.append(hazard)

    def _frozen(self, node: fx.Node, name: str, arg: fx.Node) -> None:
        if fact(arg).origin in ("buffer", "static"):
            self._guard(node, arg, f"the launch freezes the strides of {name}")

    def _guarded(self, graph: fx.Graph) -> None:
        """Strided tensors that are handed over as they are: a replay must find the strides of capture."""
        for node in graph.nodes:
            if node.op == "placeholder" and has_fact(node) and node.users and fact(node).origin in ("buffer", "static"):
                if not _dense(val(node)):
                    self._guard(next(iter(node.users)), node, f"{fact(node).source} is handed over with its strides")

    def _guard(self, node: fx.Node, arg: fx.Node, label: str) -> None:
        remedies = (Remedy("guard", "guard"),)
        hazard = Hazard("CW402", node, "strides at replay may differ from capture", label, remedies, arg)
        hazard.chosen = remedies[0] if self.state.options.repair != "none" else None
        hazard.verdict = "assumed"
        self.state.hazards.append(hazard)


def _needs(node: fx.Node, contract: c.Contract) -> Iterator[tuple[str, c.Stride, fx.Node]]:
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    for name, need in contract.strides.items():
        arg = aten.argument(op, node.args, node.kwargs, name)
        if isinstance(arg, fx.Node) and is_tensor(arg):
            yield name, need, arg


def _satisfied(need: c.Stride, value: torch.Tensor) -> bool:
    if isinstance(need, c.Contiguous):
        return _dense(value)
    last = value.dim() - 1
    return value.dim() == 0 or _is(value.shape[last], 1) or _is(value.stride(last), 1)


def _dense(value: torch.Tensor) -> bool:
    """Row-major with no gaps, shown without guarding on symbols."""
    expected: Any = 1
    for size, stride in reversed(list(zip(value.shape, value.stride()))):
        if not _is(size, 1) and not _same(stride, expected):
            return False
        expected = size * expected
    return True


def _is(size: object, number: int) -> bool:
    return isinstance(size, int) and size == number


def _same(a: object, b: object) -> bool:
    x, y = as_expr(a), as_expr(b)
    if x == y:
        return True
    # Torch writes strides as products of Max(1, size): with no empty axis that is the size.
    return bool(x.replace(_is_max, _size_of).expand() == y.replace(_is_max, _size_of).expand())


def _is_max(expr: sympy.Basic) -> bool:
    return type(expr).__name__ == "Max" and len(expr.args) == 2 and sympy.Integer(1) in expr.args


def _size_of(expr: sympy.Basic) -> sympy.Basic:
    return next(arg for arg in expr.args if arg != 1)
