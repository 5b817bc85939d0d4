"""Values that are row numbers: of padded rows too, they must be rows that exist."""

from __future__ import annotations

from torch import fx

from capwise.axes import Axis, as_expr
from capwise.facts import Tail, fact
from capwise.transfer.flow import SEAM, Flow, Hazard, Remedy


def want_numbered(flow: Flow, node: fx.Node, axis: Axis, what: str) -> None:
    """A row is found by its number only where the live rows come first: behind the tail of a part that they are joined
    to, captured numbers are others."""
    if flow.is_padded(axis) and flow.space.layout(axis)[0] != "leading":
        label = f"live rows of {what} stand behind a tail, at other numbers than without one"
        flow.report(Hazard("CW202", node, "rows are found by numbers that padding shifts", label, (SEAM,)))


def want_in_range(flow: Flow, node: fx.Node, index: fx.Node, extent: object, what: str) -> None:
    """Every padded row of `index` must be a row of an axis of this extent."""
    value = fact(index)
    if is_bounded(index, extent):
        return
    for dim in flow.padded_dims(value):
        tail = value.tails[dim]
        if tail.own or _in_range(tail, extent):
            continue
        flow.want(
            node,
            index,
            dim,
            0,
            code="CW206",
            name="in-range fill",
            message="padded rows may index out of range",
            label=f"tail rows of {index.name} index {what}",
            notes=("negative rows wrap to the last row, and too large ones fault",),
        )


def is_bounded(index: fx.Node, extent: object) -> bool:
    """Whether every element, of padded rows too, is proved to be a row of an axis of this extent."""
    value = fact(index)
    if value.low is None or value.low < 0 or value.below is None:
        return False
    return value.below == as_expr(extent)


def _in_range(tail: Tail, extent: object) -> bool:
    number = tail.constant
    if number is None:
        return False
    size = as_expr(extent)
    return number == 0 or (number > 0 and bool(size.is_Integer) and number < int(size))


def want_wrapped(flow: Flow, node: fx.Node, index: fx.Node, axis: Axis, what: str) -> bool:
    """A negative live index into a padded axis counts from the captured end, not from the live one.

    Returns whether the index was brought into range by a remedy.
    """
    value = fact(index)
    if not flow.space.is_padded(axis) or any(low is not None and low >= 0 for low in (value.low, value.live_low)):
        return False
    leading = flow.space.layout(axis)[0] == "leading"
    remedies = (
        (Remedy("wrap", "clamp", arg=index, extent=flow.space.size(axis), cost=0.1), SEAM) if leading else (SEAM,)
    )
    chosen = flow.report(
        Hazard(
            "CW206",
            node,
            "a negative row number counts from the captured end",
            f"{index.name} indexes {what}, whose captured extent is not the live one",
            remedies,
            index,
            ", ".join(sorted(flow.space.symbols(axis) & flow.space.padded)),
        )
    )
    return chosen is not None and chosen.kind == "wrap"
