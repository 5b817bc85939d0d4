"""Null slots: the row that a slot's null value names is neither read nor written."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from capwise.claims.calls import Calls, Refuted
from capwise.ops import contract as c


def check(calls: Calls) -> Iterator[Refuted]:
    for name, axes in calls.axes.items():
        into = calls.given.get(axes.into or "")
        if axes.null is not None and isinstance(into, torch.Tensor) and calls.given[name].numel():
            yield from _null(calls, name, axes, into)


def _null(calls: Calls, name: str, axes: c.Axes, state: torch.Tensor) -> Iterator[Refuted]:
    """One live slot becomes null; whatever the null row holds, it holds afterwards, and nothing else sees it."""
    assert axes.into is not None and axes.null is not None
    slots = calls.given[name].clone()
    slots.view(-1)[0] = axes.null
    inside = 0 <= axes.null < len(state)
    results = []
    for fill in (1, 5):
        mine = state.clone()
        if inside:
            mine[axes.null] = fill
        result = calls.run({**calls.given, name: slots, axes.into: mine})
        if result.error:
            yield Refuted(f"null of {name}", f"with {axes.null} for a slot it raises {result.error}")
            return
        if inside and not torch.equal(result.after[axes.into][axes.null], mine[axes.null]):
            yield Refuted(f"null of {name}", f"row {axes.null} of {axes.into} is written")
            return
        results.append(result)
    one, other = results
    seen = calls.apart(one, other, exact=True)
    if seen:
        yield Refuted(f"null of {name}", f"row {axes.null} of {axes.into} is read: {seen}")
