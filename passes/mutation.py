"""Writes that go to a copy which nobody looks at again."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import is_tensor, storage_of, val
from capwise.program import is_free, written_arguments
from capwise.transfer.flow import Hazard, Remedy

aten = torch.ops.aten


class Mutation(CompilerPass):
    """A mutation is lost iff its target is a dense copy, made for a custom op's sake, of a value that lives on, and
    nothing else reads the copy or a result of the op.

    `op_(view.contiguous())` writes to a copy where the view has gaps, and to the view itself where it has none: whether
    the write arrives depends on the layout. A `clone()`, or a copy that the model itself reads or writes in place, is
    the model's own.
    """

    name = "mutation"
    needs = ("contract", "rows")
    gives = ("mutations",)
    codes = ("CW305",)

    def run(self, graph: fx.Graph) -> bool:
        order = {node: i for i, node in enumerate(graph.nodes)}
        readers = _last_readers(graph, order)
        for node in graph.nodes:
            if not _is_custom(node) or node.users:
                continue
            for target in written_arguments(node):
                copy = _copy_behind(target)
                if copy is None or any(reader is not node for reader in _readers(copy)):
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
        self.state.record(hazard)


def _is_custom(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in ("aten", "prims")


def _readers(copy: fx.Node) -> list[fx.Node]:
    """Who takes a value or a view of it."""
    found, stack = list[fx.Node](), [copy]
    while stack:
        for user in stack.pop().users:
            (stack if user.op == "call_function" and is_free(user) else found).append(user)
    return found


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
