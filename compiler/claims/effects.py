"""Effects: what an op writes, reads beside its arguments, asks the device for, and leaves to the order of programs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from capwise.claims.calls import Calls, Refuted, Result, copied
from capwise.claims.hidden import influences
from capwise.runtime.tape import CaptureError, Tape, kernels_run_by, record
from capwise.verify.compare import difference
from capwise.verify.order import Order, ordered


def check(calls: Calls) -> Iterator[Refuted]:
    base = calls.run()
    yield from _writes(calls, base)
    if not calls.contract.hidden:
        yield from _hidden(calls, base)
    yield from _recorded(calls)


def _writes(calls: Calls, base: Result) -> Iterator[Refuted]:
    """What an argument holds changes only where schema and contract say so."""
    for name, value in calls.tensors.items():
        changed = difference(value, base.after[name], exact=True) is not None
        axes = calls.contract.arguments.get(name)
        if changed and name not in calls.written:
            yield Refuted("mutates_args", f"{name} is written, which the schema leaves out")
        elif changed and axes is not None and not axes.write and name not in calls.contract.state:
            yield Refuted(f"write of {name}", "it is written")


def never_written(runs: Sequence[tuple[Calls, Result]]) -> Iterator[Refuted]:
    """An argument that is said to be written changes in some sample."""
    contract = runs[0][0].contract
    for name in [n for n, axes in contract.arguments.items() if axes.write]:
        held = [(calls.tensors[name], result.after[name]) for calls, result in runs if name in calls.tensors]
        if held and all(difference(before, after, exact=True) is None for before, after in held):
            yield Refuted(f"write of {name}", "no sample changes it")


def _hidden(calls: Calls, base: Result) -> Iterator[Refuted]:
    """The same call gives the same, whatever else has changed."""
    seen = calls.apart(base, calls.run(), exact=True)
    if seen:
        yield Refuted("hidden", f"the same call again: {seen}")
        return
    for what in influences(calls.op, lambda: calls.apart(base, calls.run(), exact=True)):
        yield Refuted("hidden", f"it depends on {what}")
        return


def _recorded(calls: Calls) -> Iterator[Refuted]:
    """A recording holds the op: it does not sync, its launches are the same for other values, and its programs may run
    in any order."""
    try:
        tape, given = _tape(calls)
    except CaptureError as error:
        if not calls.contract.syncs:
            yield Refuted("syncs", str(error))
        return
    for name, value in calls.given.items():
        if type(value) is not int or name in calls.contract.host:
            continue
        try:
            other, _ = _tape(calls, **{name: value + 1})
        except Exception:  # noqa: BLE001 - a value that the op does not take
            continue
        if _shapes(tape) != _shapes(other):
            yield Refuted("host", f"{name} shapes the launches")
    if calls.contract.overlap or not any(launch.grid is not None for launch in tape.launches):
        return
    orders: tuple[Order, Order] = ("permuted", "deferred")
    for order in orders:
        if not _agrees(calls, order):
            yield Refuted("overlap", f"with programs {order}, its results differ")
            return


def _tape(calls: Calls, **other: int) -> tuple[Tape, dict[str, object]]:
    given = copied({**calls.given, **other})
    _, tape = record(lambda: calls.op(**given), ())
    return tape, given


def _shapes(tape: Tape) -> list[object]:
    """Kernels, grids and sizes: what a value may not shape. Scalars may differ: content is an argument."""
    sizes = [[out.size for out in launch.outs] for launch in tape.launches]
    return [(launch.name, launch.grid, size) for launch, size in zip(tape.launches, sizes)]


def _agrees(calls: Calls, order: Order) -> bool:
    results = []
    orders: tuple[Order, Order] = ("natural", order)
    for one in orders:
        given = copied(calls.given)
        with kernels_run_by(ordered(one)), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            out, _ = record(functools.partial(calls.op, **given), ())
        leaves = [out] if isinstance(out, torch.Tensor) else list(out or ())
        after = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
        results.append(Result({f"out{i}": t.clone() for i, t in enumerate(leaves)}, after))
    natural, other = results
    return not calls.apart(natural, other, exact=True)
