"""One forward run over a graph: for each node, the transfer function of its family."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from capwise.contracts import Found
from capwise.facts import PADDED, fact, facts, is_tensor, val
from capwise.ops import aten
from capwise.program import is_free
from capwise.transfer import custom, elementwise, inner, kernels, mixing, patches, rows, sources, views
from capwise.transfer.devices import between_devices
from capwise.transfer.flow import SEAM, Flow, Hazard, Remedy
from capwise.transfer.seams import reads_live_only

_FAMILIES: dict[str, Callable[[Flow, fx.Node, aten.Row], None]] = {
    "pointwise": elementwise.pointwise,
    "view": views.view,
    "join": views.join_rows,
    "reduce": mixing.reduce,
    "scan": mixing.scan,
    "normalise": mixing.normalise,
    "sort": mixing.sort,
    "contract": mixing.contract,
    "convolution": mixing.convolution,
    "attention": mixing.attention,
    "mix": mixing.mix,
    "bins": mixing.bins,
    "inner": inner.inner,
    "channels": inner.channels,
    "solve": inner.solve,
    "pairs": inner.pairs,
    "grouped": inner.grouped,
    "patch": patches.patch,
    "data": patches.by_data,
    "gather": rows.gather,
    "scatter": rows.scatter,
    "search": rows.search,
    "factory": sources.factory,
}
# Families that look at host numbers themselves.
_OWN_SCALARS = ("pointwise", "view", "factory", "join", "patch")
_SIZES = ("output_size", "normalized_shape", "size", "sizes", "split_sizes", "minlength", "N", "C", "HxW")
CAPACITY = Remedy("capacity", "fill to capacity")
GENERATOR = Remedy("generator", "registered generator")


def drive(flow: Flow, graph: fx.Graph) -> None:
    """Derives facts for every node in order. Facts of graph inputs must be set."""
    for node in graph.nodes:
        if node.op == "call_function":
            _step(flow, node)


def _step(flow: Flow, node: fx.Node) -> None:
    if node in flow.eager:
        flow.make_eager(node, flow.eager[node])
        custom.eager_results(flow, node)
        return
    if node.target is operator.getitem:
        views.getitem(flow, node)
        return
    if _depends_on_data(flow, node) or not is_free(node) and reads_live_only(flow.space, node):
        flow.make_eager(node, "")
        custom.eager_results(flow, node)
        return
    found: Found = facts(node).found
    if found.source == "host":
        return
    between_devices(flow, node)
    custom.undeclared(flow, node)
    custom.unrecorded(flow, node)
    custom.mislaid(flow, node)
    _transfer(flow, node, found)
    if reads_live_only(flow.space, node):
        flow.make_eager(node, "")
    _outside_key(flow, node, found)
    if flow.is_eager(node) and found.source != "unknown" and not is_free(node):
        custom.eager_results(flow, node)


def _transfer(flow: Flow, node: fx.Node, found: Found) -> None:
    op = node.target
    if found.derived is not None and found.contract is not None:
        kernels.launch(flow, node, found.derived)
    elif found.contract is not None:
        custom.declared(flow, node, found.contract)
    elif found.row is None or found.row.family == "view" and op._schema.is_mutable:  # type: ignore[union-attr]
        custom.unknown(flow, node)
    else:
        assert isinstance(op, torch._ops.OpOverload)
        if aten.draws(op, node.args, node.kwargs):
            _random(flow, node, op, found.row)
        if found.row.family not in _OWN_SCALARS:
            flow.scalars(node, _content(node, op), can_be_tensor=False)
        _FAMILIES[found.row.family](flow, node, found.row)
        _plain_writes(flow, node, op, found.row.family)


def _random(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, row: aten.Row) -> None:
    """The default generator is registered with every recording, which moves it on at each replay as eager would: right
    where the op draws as many numbers as eager, at extents that no padding changes."""
    label = "drawn anew at every eager step, once at capture"
    padded = facts(node).extents & flow.space.padded
    named = aten.argument(op, node.args, node.kwargs, "generator") is not None
    remedies = (SEAM,) if padded or named or row.family not in ("factory", "pointwise") else (GENERATOR, SEAM)
    notes = (f"as many numbers as the captured {', '.join(sorted(padded))} says",) if padded else ()
    flow.report(Hazard("CW104", node, "random state is frozen at capture", label, remedies, notes=notes))


def _content(node: fx.Node, op: torch._ops.OpOverload) -> list[Any]:
    """Host numbers that go into the result; sizes do not."""
    found: list[Any] = []
    for spec in op._schema.arguments:
        value = aten.argument(op, node.args, node.kwargs, spec.name)
        if spec.name not in _SIZES:
            found += value if isinstance(value, (list, tuple)) else [value]
    return [v for v in found if isinstance(v, fx.Node) and not is_tensor(v)]


def _plain_writes(flow: Flow, node: fx.Node, op: torch._ops.OpOverload, family: str) -> None:
    """In-place and `out=` forms of families that do not mask what they write: where that matters, only eagerly."""
    for name in aten.written(op):
        target = aten.argument(op, node.args, node.kwargs, name)
        if family == "pointwise" or family == "scatter" and name == "self" or not isinstance(target, fx.Node):
            continue
        padded = flow.padded_dims(fact(target))
        owned = flow.is_owned(target)
        if padded and (owned or not all(flow.covers(target, d) for d in padded)):
            what = "persistent state" if owned else "live rows of what the target is a view of"
            label = "writes at the captured extent"
            code = "CW204" if owned else "CW202"
            flow.report(Hazard(code, node, f"padded rows write {what}", label, (SEAM,), target))
        flow.mutate(node, target, [(a, PADDED) for a in fact(target).axes])


def _depends_on_data(flow: Flow, node: fx.Node) -> bool:
    """Host syncs, sizes that only data decides, and everything that works at such sizes."""
    record = facts(node)
    op = node.target
    waits = isinstance(op, torch._ops.OpOverload) and aten.syncs(op)
    if waits or record.unnamed and _is_origin(node, record.unnamed):
        label = "the host must wait for the device to know" + ("" if is_tensor(node) else " the value")
        message = f"{op} syncs with the host" if waits else f"{op}: output size depends on data"
        flow.report(Hazard("CW002", node, message, label, (SEAM,)))
        if flow.repair == "none":
            # A naive engine records it all the same, and the device refuses.
            custom.eager_results(flow, node)
            return True
        flow.make_eager(node, "CW002")
        return True
    if record.unnamed and flow.repair != "none":
        flow.make_eager(node, "")
        return True
    return False


def _is_origin(node: fx.Node, unnamed: frozenset[str]) -> bool:
    return not any(facts(a).unnamed & unnamed for a in node.all_input_nodes)


def _outside_key(flow: Flow, node: fx.Node, found: Found) -> None:
    """Extents of symbols outside the key are captured at capacity: what is read there must be filled."""
    symbols = facts(node).extents & flow.outside
    view = found.row is not None and found.row.family == "view"
    if not symbols or view or flow.is_eager(node) or not isinstance(val(node), (torch.Tensor, tuple, list, type(None))):
        return
    names = ", ".join(sorted(symbols))
    flow.report(
        Hazard(
            "CW101",
            node,
            f"the launch of {node.target} depends on {names}, which the key does not carry",
            f"recorded for the captured {names}, replayed for another",
            (CAPACITY, SEAM),
            symbol=names,
        )
    )
