"""The first node whose values differ: of two replays, or of a replay and the eager run of the same graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from capwise.compiled import Ticket
from capwise.facts import fact, has_fact
from capwise.runtime.executor import Executor
from capwise.runtime.live import LiveSlice
from capwise.runtime.tape import Tape, values_of, watched_by
from capwise.trace import span_of
from capwise.verify.compare import difference
from capwise.verify.result import Place

Values = dict[str, list[tuple[str, torch.Tensor]]]


def replayed(run: Callable[[], Any]) -> Values:
    """The values of every captured node, as the replays inside `run()` give them."""
    seen: Values = {}

    def watch(tape: Tape, index: int) -> None:
        name = tape.launches[index].node
        if index + 1 == len(tape.launches) or tape.launches[index + 1].node != name:
            seen[name] = [(owner, f.tensor().clone()) for owner, f in tape.results.get(name, ())]

    with watched_by(watch):
        run()
    return seen


def interpreted(ticket: Ticket, batch: Mapping[str, Any]) -> Values:
    """The same nodes run eagerly, at live extents."""
    seen: Values = {}
    executor = ticket.executor
    captured, executor.pieces = executor.pieces, {s.name: _Collect(s.module, seen).run for s in executor.program.pieces}
    try:
        executor.uncaptured(batch, ticket.layout.live)
    finally:
        executor.pieces = captured
    return seen


class _Collect(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, seen: Values) -> None:
        super().__init__(module)
        self.seen = seen

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            self.seen[n.name] = [(owner, t.clone()) for owner, t in values_of(n, result, self.env)]
        return result


def first_difference(one: Values, other: Values, ticket: Ticket, exact: bool, eager: bool) -> Place | None:
    """The first node, in execution order, whose live rows differ.

    Args:
        one, other: values by node; `other` has live extents where `eager`, else captured ones as `one` has.
        exact: compare bitwise.
    """
    nodes = {n.name: n for n in _nodes(ticket.executor)}
    for node in nodes.values():
        for (owner, mine), (_, theirs) in zip(one.get(node.name, ()), other.get(node.name, ())):
            a = _live(nodes[owner], mine, ticket)
            b = theirs if eager else _live(nodes[owner], theirs, ticket)
            if a is None or b is None or a.shape != b.shape:
                continue
            if difference(b, a, exact, _scratch(owner, ticket)) is not None:
                return place_of(node)
    return None


def _scratch(owner: str, ticket: Ticket) -> list[tuple[int, int]]:
    """Rows of a value that stand for nothing."""
    program = ticket.executor.program
    arrival = program.arrivals.get(owner)
    return [(d, row) for name, d, row in program.scratch if arrival is not None and arrival.name == name]


def place_of(node: fx.Node) -> Place:
    return Place(node.name, str(node.target), span_of(node))


def node_named(executor: Executor, name: str) -> Place | None:
    """The place of a captured node."""
    return next((place_of(n) for n in _nodes(executor) if n.name == name), None)


def _nodes(executor: Executor) -> Iterator[fx.Node]:
    for step in executor.program.pieces:
        yield from step.module.graph.nodes


def _live(node: fx.Node, value: torch.Tensor, ticket: Ticket) -> torch.Tensor | None:
    """Rows that stand for something; None where nobody knows which those are."""
    space = ticket.executor.program.space
    if not has_fact(node) or ticket.layout.captured is None or len(fact(node).axes) != value.dim():
        return None
    try:
        return LiveSlice(fact(node).axes, space)(value, ticket.layout.live, ticket.layout.captured)
    except (ValueError, RuntimeError):
        return None
