"""Launches of Triton kernels: the derived contract, and what only the caller can answer for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from capwise.derive import Derivation, Rounds, Unproved
from capwise.facts import fact, val
from capwise.ops import aten
from capwise.ops import contract as c
from capwise.transfer import custom
from capwise.transfer.flow import SEAM, Flow, Hazard
from capwise.transfer.row_numbers import want_in_range


def launch(flow: Flow, node: fx.Node, found: Derivation) -> None:
    """A kernel whose contract was read off it."""
    assert found.contract is not None
    for write in found.unproved:
        _unproved(flow, node, write)
    for slot, target in found.in_range.items():
        _in_range(flow, node, slot, target)
    for need in found.rounds:
        _rounds(flow, node, need)
    custom.declared(flow, node, _with_nulls(flow, node, found))


def _argument(node: fx.Node, name: str) -> fx.Node:
    assert isinstance(node.target, torch._ops.OpOverload)
    value = aten.argument(node.target, node.args, node.kwargs, name)
    assert isinstance(value, fx.Node)
    return value


def _with_nulls(flow: Flow, node: fx.Node, found: Derivation) -> c.Contract:
    """Of several slot values that stop the writes, the one that the user calls null."""
    contract = found.contract
    assert contract is not None
    requests = dict(contract.requests)
    for name, nulls in found.nulls.items():
        spec = flow.spec(flow.root(_argument(node, name)) or "")
        if name in requests and spec is not None and spec.null in nulls:
            requests[name] = replace(requests[name], tail=c.Fill(spec.null), null=spec.null)
    return replace(contract, requests=requests)


def _in_range(flow: Flow, node: fx.Node, slot: str, target: str) -> None:
    rows = val(_argument(node, target)).shape
    if len(rows):
        want_in_range(flow, node, _argument(node, slot), rows[0], f"rows of {target}")


def _rounds(flow: Flow, node: fx.Node, need: Rounds) -> None:
    """A search that has too few rounds for its captured rows ends elsewhere than eager's."""
    most = {s: m for s, n in flow.space.names.items() if (m := flow.space.most.get(n)) is not None}
    if not need.suffice(most):
        message = f"the search of {need.arg} in {node.target} is captured over more rows than its rounds settle"
        label = f"{need.rounds} rounds settle {2**need.rounds - 1} rows; {need.room.subs(most)} are captured"
        flow.report(Hazard("CW101", node, message, label, (SEAM,), _argument(node, need.arg)))


def _unproved(flow: Flow, node: fx.Node, write: Unproved) -> None:
    """Padded programs write what lives. The user's null slot takes their writes, where one is named; else a seam."""
    target = _argument(node, write.arg)
    owned = flow.is_owned(target)
    code = "CW204" if owned else "CW202"
    what = f"persistent state {flow.owner(target)!r}" if owned else f"live rows of {write.arg}"
    slot = _argument(node, write.slot) if write.slot is not None else None
    spec = flow.spec(flow.root(slot) or "") if slot is not None else None
    label, notes = "; ".join(write.path[:2]), ("nothing keeps padded programs from this write",)
    if slot is None or spec is None or spec.null is None or flow.owner(target) in flow.whole:
        flow.report(Hazard(code, node, f"padded rows write {what}", label, (SEAM,), slot or target, notes=notes))
        return
    for dim in flow.padded_dims(fact(slot)):
        if fact(slot).tails[dim].is_value(spec.null):
            flow.scratch.append((flow.owner(target), 0, spec.null))
            continue
        flow.prospective.append((flow.owner(target), 0, spec.null))
        flow.want(
            node, slot, dim, spec.null, code=code, message=f"padded rows write {what}", label=label, notes=notes,
            name="null slot fill",
        )  # fmt: skip
