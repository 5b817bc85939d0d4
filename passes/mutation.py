"""Writes that go to a copy which nobody looks at again."""

from __future__ import annotations

import torch
from torch import fx

from capwise.allow import allowed
from capwise.compilation import CompilerPass
from capwise.facts import is_tensor, storage_of, val
from capwise.program import is_free, written_arguments
from capwise.transfer.flow import Hazard, Remedy

aten = torch.ops.aten


class Mutation(CompilerPass):
    """A mutation is lost iff its target is a dense copy, made for the op's sake, of a value that lives on, and neither
    the copy nor a result of the op is read after it.

    `view.contiguous()` is such a copy where the view has gaps, and the view itself where it has none: whether the write
    arrives depends on the layout. A plain `clone()` says that the write is not meant for its source.
    """

    name = "mutation"
    needs = ("contract", "rows")
    gives = ("mutations",)
    codes = ("CW305",)

    def run(self, graph: fx.Graph) -> bool:
        order = {node: i for i, node in enumerate(graph.nodes)}
        readers = _last_readers(graph, order)
        for node in graph.nodes:
            if node.op != "call_function" or is_free(node) or node.users:
                continue
            for target in written_arguments(node):
                copy = _copy_behind(target)
                if copy is None or readers[storage_of(val(copy))] > order[node]:
                    continue
                source = copy.args[0]
                assert isinstance(source, fx.Node)
                if self._lives_on(source, order[node], readers):
                    self._add(node, copy, source)
        return False

    def _lives_on(self, source: fx.Node, at: int, readers: dict[int, int]) -> bool:
        storage = storage_of(val(source))
        held = any(is_tensor(n) and storage_of(val(n)) == storage for n in self.state.traced.arrivals)
        return held or readers[storage] > at

    def _add(self, node: fx.Node, copy: fx.Node, source: fx.Node) -> None:
        hazard = Hazard(
            "CW305",
            node,
            f"what {node.target} writes is lost: it writes to a copy of {source.name}",
            f"{copy.name} is a dense copy of a view with strides {tuple(val(source).stride())}",
            (Remedy("back", "copy back", arg=copy, cost=1.0),),
            copy,
        )
        reason = allowed(node, hazard.code)
        if reason is not None:
            hazard.verdict, hazard.chosen, hazard.notes = "assumed", Remedy("allow", "allow"), (f"allowed: {reason}",)
        elif self.state.options.repair != "none":
            hazard.chosen = hazard.remedies[0]
        self.state.hazards.append(hazard)


def _copy_behind(target: fx.Node) -> fx.Node | None:
    """The node that made the dense copy which a value is, or is a view of; None where it is none."""
    node = target
    while node.op == "call_function" and is_free(node) and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node if node.target is aten.clone.default and "memory_format" in node.kwargs else None


def _last_readers(graph: fx.Graph, order: dict[fx.Node, int]) -> dict[int, int]:
    """For each storage, the place of the last node that takes it."""
    last: dict[int, int] = {}
    for node in graph.nodes:
        if is_tensor(node):
            last.setdefault(storage_of(val(node)), -1)
        if is_free(node) and node.op == "call_function":
            continue  # a view reads nothing; who reads the view does
        for arg in node.all_input_nodes:
            if is_tensor(arg):
                last[storage_of(val(arg))] = order[node]
    return last
