"""Rows: which rows of the output see which rows of the arguments, and requests in another order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from capwise.claims.calls import Calls, Refuted, Result, Values
from capwise.ops import contract as c


def check(calls: Calls) -> Iterator[Refuted]:
    yield from _locality(calls)
    yield from _permuted(calls)


def boundaries(calls: Calls) -> torch.Tensor | None:
    """The request boundaries among the arguments."""
    found = [n for n, a in calls.axes.items() if isinstance(a.tail, c.Last) and calls.given[n].dim() == 1]
    return calls.given[found[0]].long() if found else None


def token_symbol(calls: Calls) -> str | None:
    """The symbol that rows of the contract's `rows` go along."""
    named = [d.symbol for n in calls.contract.rows if n in calls.specs for d in calls.specs[n].dims]
    return next((s for s in named if s is not None), None)


def _locality(calls: Calls) -> Iterator[Refuted]:
    """Another row's content changes nothing outside of the rows that may see it."""
    symbol, locality = token_symbol(calls), calls.contract.locality
    if symbol is None or locality not in ("row", "prefix", "segment") or calls.live[symbol] < 2:
        return
    starts = boundaries(calls)
    if locality == "segment" and starts is None:
        return
    base = calls.run()
    count = calls.live[symbol]
    for row in sorted({0, count // 2, count - 1}):
        seeing = torch.zeros(count, dtype=torch.bool)
        if locality == "row":
            seeing[row] = True
        elif locality == "prefix":
            seeing[row:] = True
        else:
            assert starts is not None
            request = int(torch.searchsorted(starts, torch.tensor(row), right=True)) - 1
            seeing[int(starts[request]) : int(starts[request + 1])] = True
        for name in [n for n in calls.contract.rows if n in calls.axes and symbol in calls.specs[n].symbols]:
            given = _with_row(calls, name, symbol, row)
            if given is None:
                continue
            seen = calls.apart(base, calls.run(given), exact=True, but=_masks(calls, base, symbol, seeing))
            if seen:
                yield Refuted("locality", f"{locality}, but with another row {row} of {name} {seen}")
                return


def _with_row(calls: Calls, name: str, symbol: str, row: int) -> Values | None:
    """The sample with another row's content in a row; None where there is no such row. What the op writes is changed
    too, so that rows are told apart by what they read."""
    value = calls.given[name]
    dim = next(d for d, one in enumerate(calls.specs[name].dims) if one.symbol == symbol)
    spec = calls.specs[name].dims[dim]
    if spec.scale != 1 or spec.offset:
        return None
    other = value.clone()
    source = value.select(dim, (row + 1) % value.shape[dim])
    other.select(dim, row).copy_(source * 3 + 1 if value.dtype.is_floating_point else source)
    return {**calls.given, name: other}


def _masks(calls: Calls, base: Result, symbol: str, seeing: torch.Tensor) -> dict[str, torch.Tensor]:
    """Elements that may change, by tensor: rows that see the changed one, and state, which has rows of its own."""
    masks: dict[str, torch.Tensor] = {}
    for name, value in base.tensors().items():
        axes = calls.contract.arguments.get(name)
        dims = [d for d, label in enumerate(axes.axes) if label == symbol] if axes is not None else []
        if not dims:
            masks[name] = torch.ones_like(value, dtype=torch.bool)
            continue
        shape = [1] * value.dim()
        shape[dims[0]] = len(seeing)
        masks[name] = seeing.view(shape).expand(value.shape)
    return masks


def _permuted(calls: Calls) -> Iterator[Refuted]:
    """Requests in reverse order, with their rows: outputs are the same, in that order."""
    starts, symbol = boundaries(calls), token_symbol(calls)
    if starts is None or symbol is None or len(starts) < 3 or calls.contract.locality not in ("row", "segment"):
        return
    if any(d.scale != 1 for n in calls.specs for d in calls.specs[n].dims if d.symbol is not None):
        return
    lengths = starts.diff().flip(0)
    tokens = torch.cat([torch.arange(int(a), int(b)) for a, b in zip(starts[:-1].flip(0), starts[1:].flip(0))])
    requests = torch.arange(len(starts) - 1).flip(0)
    turned = {symbol: tokens}
    bound = {n: a for n, a in calls.axes.items() if isinstance(a.tail, c.Last)}
    for name in bound:
        turned |= {d.symbol: requests for d in calls.specs[name].dims if d.symbol is not None}
    given: Values = dict(calls.given)
    for name in calls.axes:
        if name in bound:
            given[name] = torch.cat([starts[:1], starts[0] + lengths.cumsum(0)]).to(calls.given[name].dtype)
        else:
            given[name] = _turned(calls.given[name], [d.symbol for d in calls.specs[name].dims], turned)
    base, got = calls.run(), calls.run(given)
    expected = _in_order(calls, base, turned)
    if not got.error:
        _renumber(expected, got, requests)
    seen = calls.apart(expected, got, exact=False)
    if seen:
        yield Refuted("requests", f"in reverse order, {seen}")


def _renumber(expected: Result, got: Result, requests: torch.Tensor) -> None:
    """An output that holds the number of a request holds its new one where requests are turned."""
    for name, value in expected.outs.items():
        if value.is_floating_point() or value.dtype == torch.bool or not value.numel():
            continue
        if 0 <= int(value.min()) and int(value.max()) < len(requests):
            renumbered = requests[value.long()].to(value.dtype)
            if torch.equal(renumbered, got.outs[name]):
                expected.outs[name] = renumbered


def _turned(value: torch.Tensor, symbols: list[str | None], turned: dict[str, Any]) -> torch.Tensor:
    for dim, symbol in enumerate(symbols):
        if symbol in turned and value.shape[dim] == len(turned[symbol]):
            value = value.index_select(dim, turned[symbol])
    return value


def _in_order(calls: Calls, result: Result, turned: dict[str, Any]) -> Result:
    """A result as it should be with the requests turned; state stays where it is."""
    made = Result(dict(result.outs), dict(result.after), result.error)
    for part in (made.outs, made.after):
        for name, value in part.items():
            axes = calls.contract.arguments.get(name)
            if axes is not None:
                part[name] = _turned(value, [a if isinstance(a, str) else None for a in axes.axes], turned)
    return made
