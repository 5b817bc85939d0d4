"""Facts of graph inputs, and one whole forward run from them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from capwise.axes import Axis
from capwise.compilation import Compilation, device_of
from capwise.facts import LIVE, PADDED, Fact, Origin, Tail, facts, filled, is_tensor, storage_of, val
from capwise.labels import Spec
from capwise.program import written_arguments
from capwise.transfer.carried import readers
from capwise.transfer.drive import drive
from capwise.transfer.flow import LAST, Flow, Value
from capwise.transfer.seams import unsliceable


def analyse(state: Compilation, fills: Mapping[str, Value], eager: Mapping[fx.Node, str]) -> Flow:
    """Facts of every node, given what the arena fills and which nodes run eagerly. Earlier row facts are replaced.

    A least fixed point: where a seam wants what only exists at live extents, that is made eagerly too, and where a
    state is read as padded rows of an earlier step left it, they must leave it as it was; then all facts are derived
    again.
    """
    known = dict(eager)
    whole = dict(state.whole)
    while True:
        for node in state.graph.nodes:
            record = facts(node)
            record.value, record.eager, record.why_eager = None, False, ""
        flow = Flow(state.traced, state.space, state.options.repair, state.outside, dict(fills), known, whole=whole)
        flow.device = device_of(state.graph)
        flow.last_write = last_writes(state.graph)
        set_inputs(state, fills, flow)
        drive(flow, state.graph)
        grown = {node: "" for node in unsliceable(state.space, state.graph)}
        read = {owner: node for owner, node in readers(flow, state.graph).items() if owner not in whole}
        if not grown and not read or flow.repair == "none":
            return flow
        known, whole = {**known, **grown}, {**whole, **read}


def last_writes(graph: fx.Graph) -> dict[int, fx.Node]:
    """The last node that writes each storage."""
    writes: dict[int, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            writes |= {storage_of(val(a)): node for a in written_arguments(node) if is_tensor(a)}
    return writes


def set_inputs(state: Compilation, fills: Mapping[str, Value], flow: Flow | None = None) -> None:
    """Where each graph input lives, what its axes are, what stands in its tail."""
    for node in state.graph.nodes:
        if node.op == "placeholder" and is_tensor(node):
            value = _input(state, fills, node)
        elif node.op == "get_attr" and is_tensor(node):
            axes = tuple(state.space.axis(s) for s in val(node).shape)
            value = Fact(axes, (LIVE,) * len(axes), storage_of(val(node)), "constant", node.name)
        else:
            continue
        if flow is not None:
            flow.set(node, value)
        facts(node).value = value


def _input(state: Compilation, fills: Mapping[str, Value], node: fx.Node) -> Fact:
    arrival, value = state.traced.arrivals[node], val(node)
    spec = state.traced.specs.get(arrival.name) if arrival.kind == "input" else None
    storage = storage_of(value)
    if arrival.kind == "live":
        # Named extents are at least 1; a named int may be 0.
        least = int(all(s.kind != "int" or arrival.name not in s.symbols for s in state.traced.specs.values()))
        return Fact((), (), storage, "constant", arrival.name, live=arrival.expr, low=least)
    if spec is not None and spec.kind == "live":
        return Fact((), (), storage, "constant", arrival.name, live=state.space.sympy.get(spec.symbols[0]), low=0)
    axes = tuple(state.space.axis(s) for s in value.shape)
    origin: Origin = "state" if arrival.kind == "state" else "static"
    if spec is not None:
        origin = "buffer" if spec.kind == "buffer" else "staged"
    tails = tuple(_tail(state, fills, arrival.name, spec, axis) for axis in axes)
    low = spec.range[0] if spec is not None and spec.range is not None else None
    inputs = frozenset({arrival.name}) if spec is not None else frozenset()
    return Fact(axes, tails, storage, origin, arrival.name, live_low=low, inputs=inputs)


def _tail(state: Compilation, fills: Mapping[str, Value], name: str, spec: Spec | None, axis: Axis) -> Tail:
    if not state.space.is_padded(axis):
        return LIVE
    if spec is None or name not in fills:
        return PADDED
    return filled(state.last_symbol(name), own=True) if fills[name] == LAST else filled(fills[name])
