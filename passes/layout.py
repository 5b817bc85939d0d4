"""Strides that a consumer needs against strides that its producer has."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import fact, has_fact, val
from capwise.ops import contract as c
from capwise.transfer.flow import SEAM, Hazard, Remedy
from capwise.transfer.strides import is_dense, is_satisfied, needs


class Layout(CompilerPass):
    """An argument is laid out as its consumer assumes iff the stride that the contract asks for is the producer's for
    every batch."""

    name = "layout"
    needs = ("contract", "rows")
    gives = ("strides",)
    codes = ("CW401", "CW402")

    def run(self, graph: fx.Graph) -> bool:
        for node in graph.nodes:
            for name, need, arg in needs(node):
                self._check(node, name, need, arg)
        self._guarded(graph)
        return False

    def _check(self, node: fx.Node, name: str, need: c.Stride, arg: fx.Node) -> None:
        value = val(arg)
        if isinstance(need, c.Frozen):
            self._frozen(node, name, arg)
        elif not is_satisfied(need, value):
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
                if not is_dense(val(node)):
                    self._guard(next(iter(node.users)), node, f"{fact(node).source} is handed over with its strides")

    def _guard(self, node: fx.Node, arg: fx.Node, label: str) -> None:
        remedies = (Remedy("guard", "guard"),)
        hazard = Hazard("CW402", node, "strides at replay may differ from capture", label, remedies, arg)
        hazard.chosen = remedies[0] if self.state.options.repair != "none" else None
        hazard.verdict = "assumed"
        self.state.hazards.append(hazard)
