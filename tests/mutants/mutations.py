"""What is broken, one thing at a time, and the tests that are there to notice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import capwise.models.unit_stride_conv  # noqa: F401  registers ops
import capwise.ops  # noqa: F401  registers ops
from capwise import pipeline
from capwise.ops import aten
from capwise.ops import contract as c
from capwise.passes import fill
from capwise.runtime import arena, executor

PASSES = Path("tests/passes")
# Passes that are tested with others.
ELSEWHERE = {
    "launches": "tests/passes/test_launches.py",
    "copy_back": "tests/passes/test_mutation.py",
    "finish": "tests/passes/test_asynchronous.py",
    "read_format": "tests/passes/test_formats.py",
    "widen": "tests/passes/test_launches.py",
}
ATEN = (
    "tests/ops/test_aten.py",
    "tests/compiler/transfer/test_inner.py",
    "tests/compiler/transfer/test_families.py",
    "tests/passes/test_padding.py",
)
FILLS = (
    "tests/compiler/runtime/test_arena.py",
    "tests/passes/test_fill.py",
    "tests/models/test_seed_faults.py::test_s1_a_naive_engine_is_wrong_and_capwise_is_not",
)


@dataclass(frozen=True)
class Mutant:
    """name: what is broken. apply: breaks it, in a process of its own. tests: arguments of pytest."""

    name: str
    apply: Callable[[], None]
    tests: tuple[str, ...]


def mutants() -> Iterator[Mutant]:
    yield from _passes()
    yield from _contracts()
    yield from _table()
    yield from _fills()


# ------------------------------------------------------------------------------------------------------------ passes
def _passes() -> Iterator[Mutant]:
    for one in dict.fromkeys(pipeline.pipeline()):
        file = PASSES / f"test_{Path(inspect.getfile(one)).name}"
        if one.name in ELSEWHERE:
            file = Path(ELSEWHERE[one.name])
        yield Mutant(f"pass {one.name} is identity", functools.partial(_identity, one), (str(file),))


def _identity(one: type) -> None:
    one.run = lambda self, graph: False  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------------ contracts
def _contracts() -> Iterator[Mutant]:
    """Every claim of every declared contract of the shipped ops, denied or left out."""
    for op, held in sorted(c.all_declared().items(), key=lambda item: str(item[0])):
        name = op._schema.name.partition("::")[2]
        if op.namespace != "capwise" and not name.startswith("unit_stride"):
            continue
        tests = (
            "tests/compiler/test_opening.py",
            "tests/ops/test_op_contracts.py",
            "tests/ops/test_gdn_chunked.py",
            "tests/mutants/shipped.py",
            "tests/ops/test_attention_capture.py",
            "-k",
            f"{name} or one_piece_a_bucket",
        )
        for what, other in _denied(held):
            yield Mutant(f"contract {op._schema.name}: {what}", functools.partial(_declare, op, other), tests)


def _declare(op: torch._ops.OpOverload, other: c.Contract) -> None:
    c._DECLARED[op] = other


def _denied(held: c.Contract) -> Iterator[tuple[str, c.Contract]]:
    for part in ("rows", "requests"):
        for name, axes in getattr(held, part).items():
            for what, other in _denied_axes(axes):
                yield f"{name} {what}", replace(held, **{part: {**getattr(held, part), name: other}})
    for locality in ("row",) if held.locality != "row" else ("global",):
        yield f"locality is {locality}", replace(held, locality=locality)
    for name in held.strides:
        yield f"strides of {name} left out", replace(held, strides={n: s for n, s in held.strides.items() if n != name})
    for part in ("host", "state"):
        for name in getattr(held, part):
            yield f"{part} {name} left out", replace(held, **{part: tuple(n for n in getattr(held, part) if n != name)})
    for flag in ("syncs", "hidden", "overlap"):
        yield f"{flag} is {not getattr(held, flag)}", replace(held, **{flag: not getattr(held, flag)})


def _denied_axes(axes: c.Axes) -> Iterator[tuple[str, c.Axes]]:
    if not any(isinstance(label, str) for label in axes.axes):
        return
    if isinstance(axes.tail, c.Any):
        yield "tail is Fill(1)", replace(axes, tail=c.Fill(1))
    else:
        yield "tail is Any", replace(axes, tail=c.Any())
    if isinstance(axes.tail, c.Fill) and not isinstance(axes.tail.value, str):
        yield "fill is another", replace(axes, tail=c.Fill(axes.tail.value + 1))
    if axes.null is not None:
        yield "null left out", replace(axes, null=None)
        yield "null is another", replace(axes, null=axes.null + 1)
    if axes.into is not None:
        yield "into left out", replace(axes, into=None, null=None)
    yield f"write is {not axes.write}", replace(axes, write=not axes.write)


# -------------------------------------------------------------------------------------------------------- ATen table
def _table() -> Iterator[Mutant]:
    """Every row of the table denied: the op mixes nothing (or everything), or another value is neutral."""
    rows: dict[int, list[str]] = {}
    for name, row in aten.TABLE.items():
        rows.setdefault(id(row), []).append(name)
    for names in rows.values():
        row = aten.TABLE[names[0]]
        shown = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for what, other in _denied_rows(row):
            yield Mutant(f"table {shown}: {what}", functools.partial(_tabled, names, other), ATEN)


def _tabled(names: list[str], other: aten.Row | None) -> None:
    table = dict(aten.TABLE)
    for name in names:
        if other is None:
            del table[name]
        else:
            table[name] = other
    aten.TABLE = table  # type: ignore[misc]
    for function in vars(aten).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _denied_rows(row: aten.Row) -> Iterator[tuple[str, aten.Row | None]]:
    yield "left out", None
    if row.family != "pointwise":
        yield "is pointwise", aten.Row("pointwise")
    if row.neutral is not None:
        yield "another neutral value", replace(row, neutral=_another(row.neutral))
        yield "no neutral value", replace(row, neutral=None)


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    words = {"-max": "max", "max": "-max", "last": 0, "by direction": "-max"}
    return words[value] if isinstance(value, str) else 0.5


# ------------------------------------------------------------------------------------------------------------ fills
def _fills() -> Iterator[Mutant]:
    """How tails are filled: in the arena, by the pass, and for whom."""
    yield Mutant("fill: the arena writes another constant", _arena_constant, FILLS)
    yield Mutant("fill: the arena writes zero for the last value", _arena_last, FILLS)
    yield Mutant("fill: the arena fills one row too late", _arena_late, FILLS)
    yield Mutant("fill: the arena fills nothing", _arena_nothing, FILLS)
    yield Mutant("fill: the pass writes another constant", _pass_constant, FILLS)
    yield Mutant("fill: the pass masks one row too late", _pass_late, FILLS)
    yield Mutant("fill: the pass repeats the row before the last", _pass_last, FILLS)
    yield Mutant("fill: no live extent is written", _live_extent, FILLS)


def _constant(value: Any) -> Any:
    return (not value) if isinstance(value, bool) else 0 if value in (float("inf"), float("-inf")) else value + 1


def _arena_constant() -> None:
    made = arena.TailFill.__init__

    def init(self: Any, place: Any, dim: Any, live: Any, affine: Any, value: Any) -> None:
        made(self, place, dim, live, affine, value if value == arena.LAST else _constant(value))

    arena.TailFill.__init__ = init  # type: ignore[method-assign]


def _arena_last() -> None:
    made = arena.TailFill.__init__

    def init(self: Any, place: Any, dim: Any, live: Any, affine: Any, value: Any) -> None:
        made(self, place, dim, live, affine, 0 if value == arena.LAST else value)

    arena.TailFill.__init__ = init  # type: ignore[method-assign]


def _arena_late() -> None:
    made = arena.TailFill.__init__

    def init(self: Any, place: Any, dim: Any, live: Any, affine: Any, value: Any) -> None:
        made(self, place, dim, live, (affine[0], affine[1] + 1), value)

    arena.TailFill.__init__ = init  # type: ignore[method-assign]


def _arena_nothing() -> None:
    arena.TailFill.__call__ = lambda self: None  # type: ignore[method-assign]


def _pass_constant() -> None:
    cast = fill._cast
    fill._cast = lambda value, dtype: cast(_constant(value), dtype)


def _pass_late() -> None:
    mask = fill.row_mask
    le = torch.ops.aten.le.Tensor

    def late(edit: Any, rows: Any, bound: Any, after: int) -> Any:
        made = mask(edit, rows, bound, after)
        first = made
        while first.target is not torch.ops.aten.lt.Tensor:
            first = first.args[0]
        first.target = le
        return made

    fill.row_mask = late


def _pass_last() -> None:
    tail = fill.Fill._tail

    def before(self: Any, edit: Any, arg: Any, dim: int, live: Any, value: Any) -> Any:
        made = tail(self, edit, arg, dim, live, value)
        if value == fill.LAST:
            (less,) = [a for a in made.args[2].args if getattr(a, "target", None) is torch.ops.aten.sub.Tensor]
            less.args = (less.args[0], 2)
        return made

    fill.Fill._tail = before  # type: ignore[method-assign]


def _live_extent() -> None:
    staging = executor.Executor._staging

    def stale(self: Any, bound: Any, batch: Any) -> Any:
        kept = dict(bound.live)
        bound.live = {name: bound.captured.get(name, n) for name, n in kept.items()}
        try:
            return staging(self, bound, batch)
        finally:
            bound.live = kept

    executor.Executor._staging = stale  # type: ignore[method-assign]
