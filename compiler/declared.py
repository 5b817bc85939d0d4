"""Declared contracts held against the kernels that the op launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from capwise.kernel_access import prove_sentinel
from capwise.opening import Opened, OpenedLaunch, Sample, open_op
from capwise.ops import contract as c


class ContractError(ValueError):
    """A declaration that a kernel contradicts; the message names the op and the kernel."""


def check_declared(op: torch._ops.OpOverload, contract: c.Contract, samples: Sequence[Sample]) -> Opened:
    """Holds a declared contract against what the op launches for sample calls.

    Returns:
        what was read off the kernels; what they do not say is left to the declaration.

    Raises:
        ContractError: a kernel does what the contract rules out.
        ValueError: as for `open_op`.
    """
    known = {a.name for a in op._schema.arguments}
    axes = {n: labels_of(a, n, samples) for n, a in contract.arguments.items() if n in known and _changes(a)}
    opened = open_op(op, samples, axes)
    latched = [r for r in opened.reasons if r.startswith("CW103") and not contract.hidden]
    found = latched + [line for one in opened.launches for line in contradictions(op, contract, one)]
    if found:
        raise ContractError(f"contract of {op}: " + "; ".join(dict.fromkeys(found)))
    return opened


def labels_of(axes: c.Axes, name: str, samples: Sequence[Sample]) -> tuple[str | int | None, ...]:
    """The labels of an argument: of its leading dimensions, where it may have more of them than were declared."""
    ranks = {v.dim() for _, kwargs in samples if isinstance(v := kwargs.get(name), torch.Tensor)}
    more = max(ranks, default=0) - len(axes.axes)
    return (*axes.axes, *[None] * more)


def contradictions(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    """What one launch does against the contract, a line each."""
    for rule in (_writes, _strides, _boundaries, _orders, _locality, _row_numbers, _slots):
        yield from rule(op, contract, one)


def _place(one: OpenedLaunch, pointer: str) -> str:
    row = one.derivation.call.summary[pointer]
    return f"kernel {one.derivation.call.name} (line {row.line})"


def _pairs(op: torch._ops.OpOverload, one: OpenedLaunch) -> Iterator[tuple[str, str]]:
    """Pointer arguments that the op's own arguments stand behind; each with the op's name."""
    known = {a.name for a in op._schema.arguments}
    touched = {row.arg for row in one.derivation.call.summary.arguments}
    yield from ((p, n) for p, n in one.names.items() if n in known and p in touched and n is not None)


def _writes(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    for pointer, name in _pairs(op, one):
        stores = set(one.derivation.call.summary[pointer].access) - {"load"}
        if stores and name not in written:
            yield f"{_place(one, pointer)} writes {name}, which mutates_args leaves out"


def _strides(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    for pointer, name in _pairs(op, one):
        need, said = one.derivation.strides.get(pointer), contract.strides.get(name)
        if need is not None and not isinstance(said, (type(need), c.Contiguous)):
            taken = "takes its strides at run time" if said is None else f"asks for {type(said).__name__.lower()}"
            yield f"{_place(one, pointer)} needs {type(need).__name__.lower()} stride of {name}; the contract {taken}"


def _boundaries(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    """A list of boundaries has one axis: what is read of a table, in loops too, are no boundaries."""
    for pointer, name in _pairs(op, one):
        axes = contract.arguments.get(name)
        role = one.derivation.call.summary[pointer].role
        listed = axes is not None and len(axes.axes) == 1 and _changes(axes)
        if axes is not None and listed and role == "boundary" and not isinstance(axes.tail, c.Last):
            yield f"{_place(one, pointer)} searches {name}; the contract wants {axes.tail} in its tail, not Last()"


def _changes(axes: c.Axes) -> bool:
    return any(isinstance(label, str) for label in axes.axes)


def _orders(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    for pointer, name in one.names.items():
        rows = [r for r in one.derivation.call.summary.arguments if r.arg == pointer]
        for hazard in (h for r in rows for h in r.hazards):
            if hazard.verdict == "refuted" and hazard.code == "CW304" and not contract.overlap:
                yield f"{_place(one, pointer)} reads and writes {name} out of order: {hazard.needs}"


def _locality(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    found = one.derivation.contract
    if found is not None and contract.locality == "row" and found.locality in ("prefix", "segment"):
        yield f"kernel {one.derivation.call.name} reads other rows than its own; the contract says row by row"


def _row_numbers(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    """Whatever stands in the tail of a row number is used as one, so that any tail may name a row that is not there."""
    for pointer, name in _pairs(op, one):
        axes, target = contract.arguments.get(name), one.derivation.in_range.get(pointer)
        if target is not None and axes is not None and isinstance(axes.tail, c.Any) and _changes(axes):
            whose = one.names.get(target) or target
            yield f"{_place(one, pointer)} takes any value of {name} for a row of {whose}; the contract wants none"


def _slots(op: torch._ops.OpOverload, contract: c.Contract, one: OpenedLaunch) -> Iterator[str]:
    """With the tails that the contract declares, a padded program must write nothing that lives."""
    tails: dict[str, int | str] = {}
    for pointer, name in _pairs(op, one):
        axes = contract.arguments.get(name)
        if axes is not None and isinstance(axes.tail, c.Last):
            tails[pointer] = "last"
        elif axes is not None and isinstance(axes.tail, c.Fill) and isinstance(axes.tail.value, int):
            tails[pointer] = axes.tail.value
    states = {p for p, n in _pairs(op, one) if n in contract.state and not _changes(contract.arguments[n])}
    if not tails or not states or not all(_by_program(one, p) for p in tails):
        return
    proof = prove_sentinel(one.derivation.call.summary, tails, tuple(states))  # type: ignore[arg-type]
    if proof.verdict == "refuted":
        wanted = ", ".join(f"{one.names[p]} = {v}" for p, v in tails.items())
        yield f"kernel {one.derivation.call.name} writes state with {wanted}: {proof.path[0]}"


def _by_program(one: OpenedLaunch, pointer: str) -> bool:
    """Each program reads rows of its own of this argument: else no program is a padded one."""
    return all(any(n.op == "pid" for n in a.poly.leaves) for a in one.derivation.call.summary[pointer].accesses)
