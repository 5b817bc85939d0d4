"""Ops that somebody declared a contract for, and ops of which nothing is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from capwise.axes import Axis, Rows
from capwise.facts import LIVE, PADDED, Fact, Tail, fact, facts, filled, is_tensor, val
from capwise.labels import parse_dim
from capwise.observe import broken_layouts, escapes
from capwise.ops import aten
from capwise.ops import contract as c
from capwise.transfer.bodies import body
from capwise.transfer.flow import LAST, SEAM, Flow, Hazard, Remedy

Binding = dict[str, str]


def declared(flow: Flow, node: fx.Node, contract: c.Contract) -> None:
    """An op with a contract: tails that it asks for, padded rows of what it writes."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    binding = _bind(flow, node, op, contract)
    shifted = _shifted(flow, node, op, contract)
    _hidden(flow, node, contract)
    body(flow, node)
    _host_values(flow, node, op, contract)
    for name, axes, arg in _arguments(node, op, contract):
        _check_tail(flow, node, op, contract, name, axes, arg)
    _unnamed(flow, node, op, contract)
    for name in aten.written(op):
        _written(flow, node, op, contract, name)
    _results(flow, node, contract, binding, shifted)


def _arguments(node: fx.Node, op: torch._ops.OpOverload, contract: c.Contract) -> Iterator[tuple[str, c.Axes, fx.Node]]:
    for name, axes in contract.arguments.items():
        arg = aten.argument(op, node.args, node.kwargs, name)
        if isinstance(arg, fx.Node) and is_tensor(arg):
            yield name, axes, arg


def _bind(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, contract: c.Contract) -> Binding:
    """The contract's own symbols to the symbols of the graph, by the arguments that carry them."""
    binding: Binding = {}
    for name, axes, arg in _arguments(node, op, contract):
        for label, axis in zip(axes.axes, fact(arg).axes):
            symbol = parse_dim(label, name).symbol
            if symbol is not None and len(axis) == 1 and isinstance(axis[0], Rows):
                binding.setdefault(symbol, axis[0].symbol)
    return binding


def _shifted(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, contract: c.Contract) -> Mapping[str, Axis]:
    """A contract speaks of rows of which the live ones come first. Where they stand behind the tail of a part that they
    are joined to, only an op whose rows do not see each other does not mind: its results have them there too."""
    found: dict[str, Axis] = {}
    rows = []
    for name, axes, arg in _arguments(node, op, contract):
        for label, axis in zip(axes.axes, fact(arg).axes):
            dim = parse_dim(label, name)
            if dim.symbol is None:
                continue
            rows.append((name, arg, dim, axis))
            if flow.is_padded(axis) and flow.space.layout(axis)[0] != "leading":
                found.setdefault(dim.symbol, axis)
    for name, arg, dim, axis in rows:
        if dim.symbol not in found:
            continue
        alike = dim.scale == 1 and not dim.offset and flow.space.layout(axis) == flow.space.layout(found[dim.symbol])
        if contract.locality != "row" or not alike:
            message = f"{op} takes rows of {name} by numbers that padding shifts"
            label = "live rows stand behind a tail"
            flow.report(Hazard("CW202", node, message, label, (SEAM,), arg))
    return found


def _hidden(flow: Flow, node: fx.Node, contract: c.Contract) -> None:
    name = str(node.target)
    if contract.syncs:
        flow.report(Hazard("CW002", node, f"{name} syncs with the host", "cannot be recorded", (SEAM,)))
    if contract.hidden:
        label = "what it reads at capture is not what it reads at replay"
        flow.report(Hazard("CW003", node, f"{name} reads hidden inputs", label, (SEAM,)))


def _host_values(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, contract: c.Contract) -> None:
    values = [aten.argument(op, node.args, node.kwargs, n) for n in contract.host if aten.has_argument(op, n)]
    flow.scalars(node, values, can_be_tensor=False)


def _check_tail(
    flow: Flow, node: fx.Node, op: torch._ops.OpOverload, contract: c.Contract, name: str, axes: c.Axes, arg: fx.Node
) -> None:
    value = fact(arg)
    for dim in flow.padded_dims(value):
        tail = value.tails[dim]
        wanted = _wanted(op, node, axes)
        if wanted is None or isinstance(axes.tail, c.Finite) and tail.is_finite:
            continue
        null = axes.null is not None and wanted == axes.null
        staged = value.origin in ("staged", "buffer")
        label = f"{op} reads {name} at the captured extent, past its live rows"
        if axes.into is not None and contract.source != "derived" and _is_owned(flow, node, op, axes.into):
            code, message = "CW204", f"padded rows write persistent state through {name}"
        elif staged:
            code, message = "CW201", f"{op} reads the stale tail of {name}"
        else:
            code, message = "CW202", f"padded rows of {name} reach live rows through {op}"
        flow.want(
            node,
            arg,
            dim,
            wanted,
            code=code,
            message=message,
            label=label,
            notes=_proofs(node),
            name="null slot fill" if null else None,
        )


def _proofs(node: fx.Node) -> tuple[str, ...]:
    """What was read off the kernel to show that this tail keeps padded programs from writing what lives."""
    found = facts(node).found.derived
    return tuple(f"proved for padded programs: {line}" for line in found.proofs[:2]) if found is not None else ()


def _wanted(op: torch._ops.OpOverload, node: fx.Node, axes: c.Axes) -> Any:
    """The tail value that a contract asks for; None where any will do."""
    if isinstance(axes.tail, c.Last):
        return LAST
    if isinstance(axes.tail, c.Fill):
        value = axes.tail.value
        return aten.argument(op, node.args, node.kwargs, value) if isinstance(value, str) else value
    return 0 if isinstance(axes.tail, c.Finite) else None


def _is_owned(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, name: str) -> bool:
    state = aten.argument(op, node.args, node.kwargs, name)
    return name in aten.written(op) and isinstance(state, fx.Node) and flow.is_owned(state)


def _unnamed(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, contract: c.Contract) -> None:
    """A padded argument that the contract does not speak of is not covered by it."""
    for spec in op._schema.arguments:
        arg = aten.argument(op, node.args, node.kwargs, spec.name)
        if spec.name in contract.arguments or not is_tensor(arg):
            continue
        if flow.padded_dims(fact(arg)):
            label = f"the contract does not say what padded rows of {spec.name} do"
            flow.report(Hazard("CW001", node, f"{op}: {spec.name} is not covered by a contract", label, (SEAM,), arg))


def _written(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, contract: c.Contract, name: str) -> None:
    target = aten.argument(op, node.args, node.kwargs, name)
    if not isinstance(target, fx.Node):
        return
    value = fact(target)
    padded = flow.padded_dims(value)
    if padded and flow.is_owned(target):
        remedy = Remedy("keep", "masked write", arg=target, dim=padded[0], cost=1.0)
        symbols = ", ".join(sorted(flow.space.symbols(value.axes[padded[0]]) & flow.space.padded))
        flow.report(
            Hazard(
                "CW204", node, f"padded rows write persistent state {flow.owner(target)!r}",
                f"{op} writes {name} at the captured extent", (remedy, SEAM), target, symbols,
            )
        )  # fmt: skip
    flow.mutate(node, target, [(a, PADDED) for a in value.axes])


def _results(
    flow: Flow, node: fx.Node, contract: c.Contract, binding: Binding, shifted: Mapping[str, Axis]
) -> None:
    value = val(node)
    parts = value if isinstance(value, (tuple, list)) else [value]
    results: list[Fact | None] = []
    inputs = frozenset().union(*[fact(a).inputs for a in node.all_input_nodes if is_tensor(a)])
    for i, part in enumerate(parts):
        if not isinstance(part, torch.Tensor):
            results.append(None)
            continue
        axes = [flow.space.axis(s) for s in part.shape]
        declared_axes = contract.arguments.get("out" if len(parts) == 1 else f"out{i}")
        axes = _declared_axes(flow, axes, declared_axes, binding, shifted)
        storage = part.untyped_storage()._cdata
        tails = flow.plain_tails(axes, _promised(declared_axes))
        results.append(Fact(tuple(axes), tuple(tails), storage, "pool", node.name, inputs=inputs))
    if isinstance(value, torch.Tensor):
        assert results[0] is not None
        flow.set(node, results[0])
    elif value is not None:
        facts(node).value = tuple(results)


def _promised(spec: c.Axes | None) -> Tail:
    """What a result's padded rows hold, where the arguments' tails are as the contract asks."""
    if spec is not None and isinstance(spec.tail, c.Fill) and not isinstance(spec.tail.value, str):
        return filled(spec.tail.value)
    return PADDED


def _declared_axes(
    flow: Flow, axes: list[Axis], spec: c.Axes | None, binding: Mapping[str, str], shifted: Mapping[str, Axis]
) -> list[Axis]:
    """Sizes say how long an axis is; the contract says what it indexes, where the two agree."""
    if spec is None or len(spec.axes) != len(axes):
        return axes
    result = []
    for axis, label in zip(axes, spec.axes):
        dim = parse_dim(label, "out")
        named: Axis | None = None
        if dim.symbol is not None and dim.symbol in shifted and not dim.offset:
            named = shifted[dim.symbol]
        elif dim.symbol is not None and binding.get(dim.symbol) is not None:
            named = (Rows(binding[dim.symbol], 0, dim.offset or 0),)
        if named is not None and dim.scale == 1 and flow.space.same_size(named, axis):
            axis = named
        result.append(axis)
    return result


def undeclared(flow: Flow, node: fx.Node) -> None:
    """An op that writes what its schema calls untouched: whoever compiles a piece believes the schema, and may drop the
    call or move reads before it. Run eagerly, in its place among reads and writes, it does what it does."""
    op = node.target
    if isinstance(op, torch._ops.OpOverload) and (names := aten.undeclared_written(op)):
        what = ", ".join(names)
        message, label = f"{op} writes {what}, which its schema does not declare", "may be dropped or moved"
        note = f"declare it: mutates_args={{{', '.join(repr(n) for n in names)}}}"
        target = aten.argument(op, node.args, node.kwargs, names[0])
        arg = target if isinstance(target, fx.Node) else None
        flow.report(Hazard("CW305", node, message, label, (SEAM,), arg, notes=(note,)))


def unrecorded(flow: Flow, node: fx.Node) -> None:
    """An op whose work, or part of it, is in no recording: a replay hands out what it computed at capture."""
    op = node.target
    if isinstance(op, torch._ops.OpOverload) and (names := escapes(op)):
        what = ", ".join(names)
        message, label = f"{op} computes {what} outside of the recording", "a replay does not compute it again"
        note = "seen by recording its body on a small sample: no recorded launch writes it"
        flow.report(Hazard("CW103", node, message, label, (SEAM,), notes=(note,)))


def mislaid(flow: Flow, node: fx.Node) -> None:
    """An op whose results have other strides than it promises: whoever reads them trusts the promise. A seam's results
    are copied to memory that is laid out as promised."""
    op = node.target
    if isinstance(op, torch._ops.OpOverload) and (names := broken_layouts(op)):
        what = ", ".join(names)
        message, label = f"{op} lays out {what} otherwise than it promises", "its readers trust the promised strides"
        note = "seen on a small sample: the strides are not those of its fake kernel"
        flow.report(Hazard("CW401", node, message, label, (SEAM,), notes=(note,)))


def unknown(flow: Flow, node: fx.Node) -> None:
    """No contract: runs eagerly, always. What symbols reach it is said, since that is how it is found at all."""
    symbols: dict[str, list[str]] = {}
    for arg in node.all_input_nodes:
        if not is_tensor(arg):
            found = flow.content_symbols(arg)
        else:
            found = frozenset().union(*[flow.space.symbols(a) for a in fact(arg).axes], frozenset())
        for symbol in found:
            symbols.setdefault(symbol, []).append(arg.name)
    outside = sorted(s for s in symbols if s in flow.outside)
    notes = tuple(f"symbol {s} outside the key reaches it through {', '.join(symbols[s])}" for s in outside)
    inside = sorted(set(symbols) - set(outside))
    notes += tuple(f"symbol {s} reaches it through {', '.join(symbols[s])}" for s in inside)
    derived = facts(node).found.derived if facts(node).found is not None else None
    notes += tuple(f"the kernel was read: {reason}" for reason in derived.reasons[:3]) if derived is not None else ()
    flow.report(
        Hazard(
            "CW001", node, f"{node.target} has no contract", "what it reads and writes of padded rows is unknown",
            (SEAM,), verdict="assumed", notes=notes or ("no symbol reaches it through its arguments",),
        )
    )  # fmt: skip
    body(flow, node)
    eager_results(flow, node)


def eager_results(flow: Flow, node: fx.Node) -> None:
    """Facts of what a seam returns: known by size alone, copied into the arena at the captured extent."""
    op = node.target
    if isinstance(op, torch._ops.OpOverload):
        for name in aten.written(op):
            target = aten.argument(op, node.args, node.kwargs, name)
            for one in target if isinstance(target, (list, tuple)) else [target]:
                if isinstance(one, fx.Node):
                    flow.mutate(node, one, [(a, PADDED) for a in fact(one).axes])
    value = val(node)
    if isinstance(value, torch.Tensor):
        axes = flow.axes_of(node)
        flow.set(
            node, Fact(tuple(axes), tuple(flow.plain_tails(axes)), value.untyped_storage()._cdata, "eager", node.name)
        )
    elif isinstance(value, (tuple, list)):
        facts(node).value = tuple(_eager_part(flow, node, p) for p in value)


def _eager_part(flow: Flow, node: fx.Node, part: Any) -> Fact | None:
    if not isinstance(part, torch.Tensor):
        return None
    axes = [flow.space.axis(s) for s in part.shape]
    tails = [PADDED if flow.is_padded(a) else LIVE for a in axes]
    return Fact(tuple(axes), tuple(tails), part.untyped_storage()._cdata, "eager", node.name)
