"""Inputs in host memory that the step copies to the device."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass, device_of, fake_mode
from capwise.facts import is_tensor, val
from capwise.report import Diagnostic
from capwise.trace import span_of

aten = torch.ops.aten
# What a copy between devices says beside what it makes.
_BETWEEN = ("device", "non_blocking", "pin_memory")


class HostInputs(CompilerPass):
    """A host input is staged on the device iff everything that reads it copies it there, or takes it as a number there:
    the copy is made before the replay, out of memory that the host does not write meanwhile."""

    name = "host_inputs"
    gives = ("devices",)
    codes = ("CW306",)

    def run(self, graph: fx.Graph) -> bool:
        device = device_of(graph)
        found = [n for n in graph.find_nodes(op="placeholder") if self._is_copied(n, device)]
        for node in found:
            self._report(node)
            if self.state.options.repair != "none":
                self._move(graph, node, device)
        return bool(found)

    def _is_copied(self, node: fx.Node, device: torch.device) -> bool:
        arrival = self.state.traced.arrivals[node]
        spec = self.state.traced.specs.get(arrival.name) if arrival.kind == "input" else None
        if spec is None or spec.kind == "buffer" or not is_tensor(node) or val(node).device == device:
            return False
        return bool(node.users) and all(self._takes(user, node, device) for user in node.users)

    def _takes(self, user: fx.Node, node: fx.Node, device: torch.device) -> bool:
        if user.target is aten._to_copy.default:
            return val(user).device == device
        return is_tensor(user) and val(node).dim() == 0 and val(user).device == device

    def _move(self, graph: fx.Graph, node: fx.Node, device: torch.device) -> None:
        with fake_mode(graph):
            node.meta["val"] = torch.empty(val(node).shape, dtype=val(node).dtype, device=device)
        for user in list(node.users):
            if user.target is aten._to_copy.default:
                user.kwargs = {n: v for n, v in user.kwargs.items() if n not in _BETWEEN}

    def _report(self, node: fx.Node) -> None:
        name = self.state.traced.arrivals[node].name
        self.state.report.add(
            Diagnostic(
                "CW306",
                "refuted",
                node.name,
                f"host input {name!r} may be written again while the step still reads it",
                label="copied to the device inside the step",
                span=span_of(next(iter(node.users))),
                repair="staging ring with events" if self.state.options.repair != "none" else None,
                notes=("a recording holds the address of the host memory, and reads it when the device gets there",),
                candidates=(("staging ring with events", 0.1), ("seam", 2.0)),
            )
        )
