"""Waits and temporaries around ops that go on while later launches run."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from capwise.compilation import CompilerPass, Editor
from capwise.facts import is_tensor
from capwise.ops import aten
from capwise.ops.contract import resolve
from capwise.transfer.flow import Hazard


class Finish(CompilerPass):
    """An asynchronous op is waited for before the first read of its result iff nobody else waits, and reads a temporary
    iff its argument is written before it ends."""

    name = "finish"
    needs = ("diagnostics",)
    gives = ("finished",)

    def run(self, graph: fx.Graph) -> bool:
        changed = False
        for hazard in self.state.hazards:
            kind = hazard.chosen.kind if hazard.chosen is not None else None
            if kind == "wait":
                self._wait(hazard)
            elif kind == "hold":
                self._hold(hazard, graph)
            changed = changed or kind in ("wait", "hold")
        return changed

    def _wait(self, hazard: Hazard) -> None:
        start, remedy = hazard.arg, hazard.chosen
        assert start is not None and remedy is not None and remedy.arg is not None
        op = resolve(remedy.name)
        arguments = _arguments(op, start)
        readers = list(start.users)
        end = Editor(self.state, remedy.arg).call(op, *arguments)
        if is_tensor(end):
            for reader in readers:
                reader.replace_input_with(start, end)

    def _hold(self, hazard: Hazard, graph: fx.Graph) -> None:
        node, remedy = hazard.node, hazard.chosen
        assert remedy is not None and remedy.arg is not None
        copy = Editor(self.state, node).call(torch.ops.aten.clone.default, remedy.arg)
        self.state.copies += 1
        ends = [n for n in graph.nodes if n.target is resolve(remedy.name) and node in n.all_input_nodes]
        for one in (node, *ends):
            one.replace_input_with(remedy.arg, copy)


def _arguments(op: torch._ops.OpOverload, start: fx.Node) -> list[Any]:
    """What the waiting op is called with: arguments of the start by name, and its result for the rest."""
    begun = start.target
    assert isinstance(begun, torch._ops.OpOverload)
    return [
        aten.argument(begun, start.args, start.kwargs, a.name) if aten.has_argument(begun, a.name) else start
        for a in op._schema.arguments
        if not a.has_default_value()
    ]
