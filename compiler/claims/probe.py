"""A draft of a contract for an op that nobody speaks for: the strongest claims that samples do not refute.

Axes are told by what changes from sample to sample; each further claim starts strong and is weakened until the samples
stop refuting it. So a draft is *assumed*: samples that differ little refute little. Read it before declaring it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from capwise.claims import effects, layout, refuted, rows, tails
from capwise.claims.calls import Calls, Sample, resolved
from capwise.ops import contract as c

_LOCALITIES: tuple[c.Locality, ...] = ("row", "segment", "prefix")


@dataclass
class Draft:
    """A contract that no sample refutes. notes: what was seen on the way, and what is left open."""

    op: torch._ops.OpOverload
    contract: c.Contract
    samples: int
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """The contract as Python that declares it."""
        name = self.op._schema.name
        lines = [f"# Drafted from {self.samples} samples: assumed, not proved.", *(f"# {n}" for n in self.notes)]
        lines += [f'@contract("{name}")', f"def {name.split('::')[1]}():", "    return Contract("]
        lines += [f"        {line}," for line in _fields(self.contract)]
        return "\n".join([*lines, "    )"])


def probe(op: Any, samples: Sequence[Sample]) -> Draft:
    """Drafts a contract.

    Args:
        op, samples: as for `check_contract`; samples at two or more extents of every symbol.

    Raises:
        ValueError: an argument changes its rank from sample to sample, or fewer than two samples.
    """
    overload = resolved(op)
    if len(samples) < 2:
        raise ValueError(f"samples: expected at least two, at different extents; got {len(samples)}")
    return _Prober(overload, samples).draft()


class _Prober:
    def __init__(self, op: torch._ops.OpOverload, samples: Sequence[Sample]) -> None:
        self.op, self.given = op, len(samples)
        lower = [one for one in map(_lowered, samples) if not Calls(op, c.Contract(), one).run().error]
        self.samples = [*samples, *lower]
        self.calls = [Calls(op, c.Contract(), sample) for sample in self.samples]
        self.results = [calls.run() for calls in self.calls]
        self.notes: list[str] = []
        # Whether some argument has no harmless tail: then nothing is local.
        self.lost = False
        for result in self.results:
            if result.error:
                raise ValueError(f"samples: {op} raises {result.error}")

    def draft(self) -> Draft:
        labels = self._labels()
        bounds = self._boundaries(labels)
        held = c.Contract(locality="global", state=self._state(labels), source="declared")
        arguments = {n: c.Axes(axes, write=n in self._changed()) for n, axes in labels.items()}
        arguments = {n: replace(a, tail=c.Last()) if n in bounds else a for n, a in arguments.items()}
        held = _with(held, arguments, bounds)
        if self._refutes(held, "hidden"):
            held = replace(held, hidden=True)
        if self._refutes(held, "syncs"):
            held = replace(held, syncs=True)
        if self._refutes(held, "host"):
            held = replace(held, host=self._host(held))
        if self._refutes(held, "overlap"):
            held = replace(held, overlap=True)
        held = self._strides(held)
        held = self._tails(held)
        held = self._locality(held)
        for one in refuted(self.op, self.samples, held):
            self.notes.append(f"still refuted: {one}")
        return Draft(self.op, held, self.given, self.notes)

    def _refutes(self, held: c.Contract, name: str) -> bool:
        found = [one for one in refuted(self.op, self.samples, held, [effects]) if one.field.startswith(name)]
        self.notes += [str(one) for one in found if name in ("hidden", "syncs", "overlap")]
        return bool(found)

    # ------------------------------------------------------------------------------------------------ axes
    def _labels(self) -> dict[str, tuple[str | int | None, ...]]:
        """Axes of arguments and results: sizes that change together carry one symbol, one more makes it boundaries."""
        shapes = self._shapes()
        vectors: list[tuple[int, ...]] = []
        for name, seen in shapes.items():
            if len({len(s) for s in seen}) > 1:
                raise ValueError(f"{name}: expected the same number of dimensions in every sample")
            vectors += [v for v in zip(*seen) if len(set(v)) > 1 and v not in vectors]
        less = {v: tuple(n - 1 for n in v) for v in vectors}
        bases = [v for v in vectors if less[v] not in vectors and not self._are_bounds(v)]
        label = self._told_by_boundaries()
        names = iter([n for n in ["T", "R", "S", "U", "V", "W"] if n not in label.values()])
        for vector in bases:
            if vector not in label:
                label[vector] = next(names, f"N{len(label)}")
        for vector in vectors:
            base = less[vector]
            if vector not in label:
                label.setdefault(base, next(names, f"N{len(label)}"))
                label[vector] = f"{label[base]}+1"
        return {
            name: tuple(label.get(v, v[0] if not set(v) - {v[0]} else None) for v in zip(*seen))
            for name, seen in shapes.items()
            if any(v in label for v in zip(*seen))
        }

    def _shapes(self) -> dict[str, list[tuple[int, ...]]]:
        tensors = [{**calls.tensors, **result.outs} for calls, result in zip(self.calls, self.results)]
        return {n: [tuple(t[n].shape) for t in tensors] for n in tensors[0] if all(n in t for t in tensors)}

    def _told_by_boundaries(self) -> dict[tuple[int, ...], str]:
        """The first list of boundaries has R+1 entries, and its last one is T."""
        for name in self.calls[0].tensors:
            values = [calls.given[name] for calls in self.calls]
            if all(_is_boundary(v) for v in values):
                return {
                    tuple(int(v[-1]) for v in values): "T",
                    tuple(len(v) - 1 for v in values): "R",
                    tuple(len(v) for v in values): "R+1",
                }
        return {}

    def _are_bounds(self, vector: tuple[int, ...]) -> bool:
        """Whether some argument of these sizes is a list of boundaries."""
        return any(
            all(_is_boundary(c.given[n]) for c in self.calls)
            for n, seen in self._shapes().items()
            if n in self.calls[0].given and tuple(s[0] for s in seen if len(s) == 1) == vector
        )

    def _boundaries(self, labels: dict[str, Any]) -> set[str]:
        """Arguments that rise from zero to the number of rows of another axis."""
        return {n for n in labels if n in self.calls[0].given and all(_is_boundary(c.given[n]) for c in self.calls)}

    # ------------------------------------------------------------------------------------------------ effects
    def _changed(self) -> set[str]:
        changed = set()
        for calls, result in zip(self.calls, self.results):
            changed |= {n for n, t in calls.tensors.items() if not torch.equal(t, result.after[n])}
        for name in sorted(changed - self.calls[0].written):
            self.notes.append(f"{name} is written, which mutates_args leaves out")
        return changed & self.calls[0].written

    def _state(self, labels: dict[str, Any]) -> tuple[str, ...]:
        """What is written and has no axis of the batch."""
        return tuple(sorted(n for n in self.calls[0].written if n not in labels))

    def _host(self, held: c.Contract) -> tuple[str, ...]:
        ints = [n for n, v in self.calls[0].given.items() if type(v) is int]
        return tuple(n for n in ints if self._host_is(held, tuple(i for i in ints if i != n)))

    def _host_is(self, held: c.Contract, others: tuple[str, ...]) -> bool:
        found = refuted(self.op, self.samples, replace(held, host=others), [effects])
        return any(one.field == "host" for one in found)

    # ------------------------------------------------------------------------------------------------ weakening
    def _strides(self, held: c.Contract) -> c.Contract:
        for name in self.calls[0].tensors:
            for need in (c.Unit(), c.Contiguous()):
                found = refuted(self.op, self.samples, held, [layout])
                if not any(one.field == f"strides of {name}" for one in found):
                    break
                held = replace(held, strides={**held.strides, name: need})
        return held

    def _tails(self, held: c.Contract) -> c.Contract:
        """For each padded argument the weakest tail that does; where none does, the op is global."""
        for name in [n for n in held.arguments if n in self.calls[0].given]:
            if isinstance(held.arguments[name].tail, c.Last):
                continue
            for tail in self._candidates(name):
                held = _with_tail(held, name, tail)
                if not self._tail_refuted(held, name):
                    break
            else:
                self.notes.append(f"no tail of {name} that was tried is harmless: padded, it stays a seam")
                held, self.lost = _without(held, name), True
        return held

    def _candidates(self, name: str) -> Iterator[c.Tail]:
        yield c.Any()
        dtype = self.calls[0].given[name].dtype
        if dtype.is_floating_point:
            yield from (c.Finite(), c.Fill(0.0), c.Fill(float("-inf")), c.Fill(1.0))
        elif dtype == torch.bool:
            yield from (c.Fill(False), c.Fill(True))
        else:
            yield from (c.Fill(0), c.Fill(-1), c.Last())

    def _tail_refuted(self, held: c.Contract, name: str) -> bool:
        found = refuted(self.op, self.samples, held, [tails])
        fields = [one.field.removeprefix("tail of ").split(", ") for one in found]
        return any(name in names for names in fields)

    def _locality(self, held: c.Contract) -> c.Contract:
        """The narrowest that holds. Nothing is said where no row of a result could show it."""
        bounded = any(isinstance(a.tail, c.Last) for a in held.requests.values())
        named = [n for n in held.rows if n in self.calls[0].given]
        shown = [n for n, a in held.rows.items() if (a.write or n not in self.calls[0].given) and named]
        if not shown:
            return replace(held, locality="segment" if bounded and not self.lost else "global")
        for locality in _LOCALITIES:
            trial = replace(held, locality=locality)
            if (locality != "segment" or bounded) and not refuted(self.op, self.samples, trial, [rows]):
                return trial
        return held


def _lowered(sample: Sample) -> Sample:
    """The same call with negative floats: a fill of zero is neutral to a maximum of positive numbers only."""
    args, kwargs = sample

    def one(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
        return -value.abs() - 1 if is_float else value

    return tuple(one(a) for a in args), {n: one(v) for n, v in kwargs.items()}


def _is_boundary(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dim() != 1 or value.dtype.is_floating_point or len(value) < 2:
        return False
    return value.dtype != torch.bool and int(value[0]) == 0 and bool((value.diff() >= 0).all()) and int(value[-1]) > 0


def _with(held: c.Contract, arguments: dict[str, c.Axes], bounds: set[str]) -> c.Contract:
    """Requests are what has the boundaries' axis; the rest is rows."""
    symbols = {str(label).removesuffix("+1") for n in bounds for label in arguments[n].axes if isinstance(label, str)}
    requests = {
        n: a
        for n, a in arguments.items()
        if any(isinstance(x, str) and x.removesuffix("+1") in symbols for x in a.axes)
    }
    return replace(held, rows={n: a for n, a in arguments.items() if n not in requests}, requests=requests)


def _with_tail(held: c.Contract, name: str, tail: c.Tail) -> c.Contract:
    def one(part: Any) -> dict[str, c.Axes]:
        return {n: replace(a, tail=tail) if n == name else a for n, a in part.items()}

    return replace(held, rows=one(held.rows), requests=one(held.requests))


def _without(held: c.Contract, name: str) -> c.Contract:
    keep: Callable[[Any], dict[str, c.Axes]] = lambda part: {n: a for n, a in part.items() if n != name}
    return replace(held, rows=keep(held.rows), requests=keep(held.requests))


def _fields(held: c.Contract) -> Iterator[str]:
    for part in ("rows", "requests"):
        entries = [f"{n!r}: {_axes(a)}" for n, a in getattr(held, part).items()]
        if entries:
            yield f"{part}={{{', '.join(entries)}}}"
    yield f"locality={held.locality!r}"
    if held.strides:
        yield "strides={" + ", ".join(f"{n!r}: {type(s).__name__}()" for n, s in held.strides.items()) + "}"
    for name in ("host", "state"):
        if getattr(held, name):
            yield f"{name}={getattr(held, name)!r}"
    yield from (f"{name}=True" for name in ("syncs", "hidden", "overlap") if getattr(held, name))


def _axes(axes: c.Axes) -> str:
    more = [] if isinstance(axes.tail, c.Any) else [f"tail={axes.tail!r}"]
    return f"Axes({', '.join([repr(axes.axes), *more, *(['write=True'] if axes.write else [])])})"
