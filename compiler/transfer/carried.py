"""State that loops from step to step: what a step's padded rows leave in it, the next step starts from.

A null row takes the writes of padded rows, so after a step it holds anything. That is harmless as long as no live value
is made from it, in this step or in a later one. Which states have such a row, and which are read there, decide each
other: a state that is read must get another repair, which may bring other reads. The least fixed point is found by
running again with the states that were read so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx

from capwise.contracts import Found
from capwise.facts import fact, facts, has_fact, val
from capwise.ops import aten
from capwise.program import is_free, written_arguments
from capwise.transfer.elementwise import takes_tail_only
from capwise.transfer.flow import Flow
from capwise.transfer.seams import returned

# In-place ops that read nothing of what they write.
_OVERWRITES = ("copy", "fill", "zero")


def readers(flow: Flow, graph: fx.Graph) -> dict[str, str]:
    """States whose null row some live value is made from, and the node that reads it there."""
    rows: dict[str, set[tuple[int, int]]] = {}
    for owner, dim, row in (*flow.scratch, *flow.prospective):
        rows.setdefault(owner, set()).add((dim, row))
    return _readers(flow, graph, rows)


def possible_readers(flow: Flow, graph: fx.Graph) -> dict[str, str]:
    """The same, had padded rows of some other graph written the rows that the user calls null."""
    nulls = {(0, spec.null) for spec in flow.traced.specs.values() if spec.null is not None}
    states = {arrival.name for arrival in flow.traced.arrivals.values() if arrival.kind == "state"}
    return _readers(flow, graph, dict.fromkeys(states, nulls)) if nulls else {}


def _readers(flow: Flow, graph: fx.Graph, rows: Mapping[str, set[tuple[int, int]]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node, arg in _reads(graph) if rows else ():
        owner = flow.owner(arg)
        if owner in rows and owner not in found and flow.is_owned(arg):
            if any(_sees(flow, node, arg, dim, row) for dim, row in rows[owner]):
                found[owner] = node.name
    return found


def _reads(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """(op, tensor that it reads), views left out: whoever reads the view is met."""
    for node in graph.nodes:
        if node.op == "call_function" and not is_free(node):
            yield from ((node, a) for a in node.all_input_nodes if has_fact(a) and not _is_only_written(node, a))
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    yield from ((output, arg) for arg in returned(graph) if isinstance(arg, fx.Node) and has_fact(arg))


def _is_only_written(node: fx.Node, arg: fx.Node) -> bool:
    """Written in place, each row from itself at most: what a row holds stays in it."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or arg not in written_arguments(node):
        return False
    row = aten.row(op)
    if row is None:
        return False
    others = [a for a in node.all_input_nodes if a is not arg and has_fact(a) and fact(a).storage == fact(arg).storage]
    local = row.family == "pointwise" or row.family == "scatter"
    return aten.base_name(op) in _OVERWRITES or local and not others


def _sees(flow: Flow, node: fx.Node, arg: fx.Node, dim: int, row: int) -> bool:
    """Whether an op reads this row of a state, of which `arg` is a view, for a live value."""
    is_kept = node.target is torch.ops.aten.where.self and node.args[2] is arg and takes_tail_only(node)
    if is_kept or _is_apart(flow, arg, dim, row):
        return False
    found = facts(node).found
    if found is None or not isinstance(node.target, torch._ops.OpOverload):
        return True
    if found.contract is not None:
        slots = _slot_arguments(node, arg, found)
    else:
        is_gather = found.row is not None and found.row.family == "gather" and node.args[0] is arg
        slots = [a for a in node.all_input_nodes if a is not arg] if is_gather else []
    # Live entries of a slot list that the user gave a null row never point at it.
    return not any(has_fact(slot) and _is_slot_list(flow, slot, row) for slot in slots)


def _slot_arguments(node: fx.Node, arg: fx.Node, found: Found) -> list[fx.Node]:
    """Arguments through which a declared op, or a kernel, finds the rows of this one."""
    op, contract = node.target, found.contract
    assert isinstance(op, torch._ops.OpOverload) and contract is not None
    names = [a.name for a in op._schema.arguments if aten.argument(op, node.args, node.kwargs, a.name) is arg]
    slots = {n for n, axes in contract.arguments.items() if axes.into in names}
    if found.derived is not None:
        rows = [a for a in found.derived.call.summary.arguments if a.arg in names]
        slots |= {axis.by.removeprefix("load:") for a in rows for axis in a.axes if axis.by.startswith("load:")}
    values = [aten.argument(op, node.args, node.kwargs, n) for n in sorted(slots) if aten.has_argument(op, n)]
    return [v for v in values if isinstance(v, fx.Node)]


def _is_slot_list(flow: Flow, index: fx.Node, row: int) -> bool:
    specs = [flow.spec(name) for name in fact(index).inputs]
    return any(spec is not None and spec.null == row for spec in specs)


def _is_apart(flow: Flow, arg: fx.Node, dim: int, row: int) -> bool:
    """Whether a view begins behind a leading row of its state, or ends before it."""
    base = val(flow.groups[fact(arg).storage][0])
    view = val(arg)
    if dim != 0 or base.dim() == 0 or not isinstance(view.storage_offset(), int) or not base.is_contiguous():
        return False
    first = view.storage_offset() - base.storage_offset()
    width = base.stride(0)
    if not isinstance(first, int) or not isinstance(width, int):
        return False
    if first >= (row + 1) * width:
        return True
    geometry = (*view.shape, *view.stride())
    if not all(isinstance(n, int) for n in geometry):
        return False
    last = first + sum((n - 1) * s for n, s in zip(view.shape, view.stride()))
    return bool(last < row * width)

