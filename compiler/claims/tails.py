"""Tails: what stands past the live extent is what the contract asks for, or anything; live rows do not see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from capwise.claims.calls import MORE, Calls, Refuted, Result
from capwise.ops import contract as c


def check(calls: Calls) -> Iterator[Refuted]:
    """Padded along one symbol at a time, with the tails asked for: as live. Then noise where anything goes."""
    base = calls.run()
    for symbol in calls.live:
        padded = calls.run(calls.padded(frozenset({symbol})))
        seen = calls.apart(base, padded, exact=False)
        if seen:
            fields = [n for n in calls.axes if symbol in calls.specs[n].symbols]
            yield Refuted(
                f"tail of {', '.join(fields)}", f"{symbol} padded from {calls.live[symbol]} by {MORE}: {seen}"
            )
            continue
        yield from _results(calls, symbol, base, padded)
        for name, axes in calls.axes.items():
            if symbol in calls.specs[name].symbols and isinstance(axes.tail, (c.Any, c.Finite)):
                yield from _noise(calls, symbol, name, axes, base)


def _results(calls: Calls, symbol: str, base: Result, padded: Result) -> Iterator[Refuted]:
    """Padded rows of a result hold what the contract says of its tail."""
    for name, value in padded.outs.items():
        axes = calls.contract.arguments.get(name)
        if axes is None or symbol not in axes.axes or not isinstance(axes.tail, c.Fill):
            continue
        dim, wanted = axes.axes.index(symbol), calls.wanted(axes)
        live = base.outs[name].shape[dim]
        tail = value.narrow(dim, live, value.shape[dim] - live)
        if bool((tail != wanted).any()):
            yield Refuted(f"tail of {name}", f"{symbol} padded by {MORE}: it does not hold {wanted}")


def _noise(calls: Calls, symbol: str, name: str, axes: c.Axes, base: Any) -> Iterator[Refuted]:
    tame = calls.run(calls.padded(frozenset({symbol})))
    for what, value in noises(calls.given[name], finite=isinstance(axes.tail, c.Finite)):
        given = calls.padded(frozenset({symbol}), {name: value})
        seen = calls.apart(_live(calls, tame, base), calls.run(given), exact=True)
        if seen:
            yield Refuted(f"tail of {name}", f"with {what} there: {seen}")
            return


def _live(calls: Calls, padded: Any, base: Any) -> Any:
    """The padded result, live rows only: the shapes that the sample gives."""
    for part, model in ((padded.outs, base.outs), (padded.after, base.after)):
        for name, value in model.items():
            part[name] = part[name][tuple(slice(0, n) for n in value.shape)]
    return padded


def noises(live: torch.Tensor, finite: bool = False) -> Iterator[tuple[str, Any]]:
    """Harmful values of a tensor's dtype, with words for them."""
    if live.dtype.is_floating_point:
        if not finite:
            yield "NaN", float("nan")
            yield "infinity", float("inf")
        yield "large numbers", torch.finfo(live.dtype).max / 1e6
        yield "other numbers", -1.5
    elif live.dtype == torch.bool:
        yield "True", True
        yield "False", False
    else:
        yield "large integers", torch.iinfo(live.dtype).max // 2
        yield "negative integers", -7
        if live.numel():
            yield "a live value", live.flatten()[0].item()
