"""Ops that go on while later launches run: who waits for them."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import facts, is_tensor, storage_of, val
from capwise.ops import aten
from capwise.ops.contract import resolve
from capwise.program import is_free, written_arguments
from capwise.transfer.flow import Hazard, Remedy

# PyTorch's functional collectives: every result is to be waited for.
_COLLECTIVES, _WAIT = "_c10d_functional", "_c10d_functional::wait_tensor"


class Asynchronous(CompilerPass):
    """An asynchronous op is safe iff every read of its result comes after the op that waits for it, and no write to its
    arguments comes before."""

    name = "asynchronous"
    needs = ("contract", "rows")
    gives = ("waits",)
    codes = ("CW304",)

    def run(self, graph: fx.Graph) -> bool:
        nodes = list(graph.nodes)
        for at, node in enumerate(nodes):
            name = until(node)
            if name is not None:
                self._check(node, resolve(name), nodes[at + 1 :])
        return False

    def _check(self, node: fx.Node, waits: torch._ops.OpOverload, later: list[fx.Node]) -> None:
        results = _family(node)
        end = next((n for n in later if n.target is waits and results & set(n.all_input_nodes)), None)
        readers = [n for n in later if results & set(n.all_input_nodes) and not _is_view(n) and n is not end]
        stop = later.index(end) if end is not None else len(later)
        early = [n for n in readers if later.index(n) < stop]
        if early:
            first = next(n for n in later if results & set(n.all_input_nodes))
            message = f"{early[0].name} reads the result of {node.target}, which may not be there yet"
            label = f"{waits} does not come before it"
            remedy = Remedy("wait", "wait", arg=first, name=waits._name, cost=1.0)
            self.state.record(Hazard("CW304", early[0], message, label, (remedy,) if end is None else (), node))
            stop = later.index(first) if end is None else stop
        self._written(node, later[:stop], waits)

    def _written(self, node: fx.Node, meanwhile: list[fx.Node], waits: torch._ops.OpOverload) -> None:
        """Writes to what the op may still read."""
        own = {storage_of(val(n)) for n in _family(node) if is_tensor(n)}
        for arg in dict.fromkeys(a for a in node.all_input_nodes if is_tensor(a)):
            storage = storage_of(val(arg))
            for other in meanwhile:
                targets = [w for w in written_arguments(other) if is_tensor(w)]
                if storage in own or not any(storage_of(val(w)) == storage for w in targets):
                    continue
                message = f"{other.name} writes {arg.name}, which {node.target} may still read"
                remedy = Remedy("hold", "temporary", arg=arg, name=waits._name, cost=1.0)
                self.state.record(Hazard("CW304", node, message, f"before {waits}", (remedy,), arg))
                break


def until(node: fx.Node) -> str | None:
    """The op that waits for this one; None for an op that is done when the next starts."""
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
        return None
    found = facts(node).found
    if found is not None and found.contract is not None and found.contract.until is not None:
        return str(found.contract.until)
    return _WAIT if op.namespace == _COLLECTIVES and aten.base_name(op) != "wait_tensor" else None


def _is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and is_free(node)


def _family(node: fx.Node) -> set[fx.Node]:
    """A value and the views of it."""
    found, stack = {node}, [node]
    while stack:
        for user in stack.pop().users:
            if _is_view(user) and user not in found:
                found.add(user)
                stack.append(user)
    return found
