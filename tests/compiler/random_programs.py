"""Random small programs: a generator over a table of rows, a history of batches, and what must hold.

A program is straight-line Python over named values. A row of the table (the .txt beside this file) reads
`kind: statements`: the last statement is the value, `{T8}` an operand of that kind, `{=T8}` one whose bits do not
depend on rounding (what compares or sorts needs one, or eager and replay may differ by a rounding), `{~T8}` one in
memory of the program's own, which the row writes. `{T8.1}` is the same operand wherever it stands in the row, `$a` a
local name. A row of kind `!` has no value.

What is right is what `capwise.verify` compares with: eager, where each ATen op reads before it writes. The rows of the
group `overlap` read what they write, and eager's own result then depends on the order in which a kernel takes the rows.

Kinds: T8 is float32 [T, 8]; T24 is [T, 2, 4]; M2 is [2*T, 4], T-major, and H2 the same head-major; `i` and `b` lead
integers and bools. ids are rows of `table`; seg are request numbers; qsl are boundaries.
"""

from __future__ import annotations

import linecache
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import capwise

INPUTS = {"x": "T8", "y": "T8", "ids": "ids", "slots": "slots", "scale": "R", "query_start_loc": "qsl"}
_OPERAND = re.compile(r"\{([=~]?)(\w+)(?:\.(\d))?\}")


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    kind: str
    text: str
    lossy: bool = False
    is_view: bool = False


def table() -> dict[str, list[Row]]:
    """The rows of each group."""
    groups: dict[str, list[Row]] = {}
    group, marks = "", []
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("["):
            group, *marks = line.strip("[]").split()
        elif line and not line.startswith("#"):
            kind, text = line.split(": ", 1)
            groups.setdefault(group, []).append(Row(kind, text, "lossy" in marks, "view" in marks))
    return groups


ROWS = table()
WEIGHTS = {"local": 4, "prefix": 2, "mix": 8, "state": 3, "overlap": 1, "whole": 1, "opaque": 2, "sync": 1}


@torch.library.custom_op("random_programs::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    """Mixes all rows: nothing but running it at the live extents is right."""
    return x.flip(0) * 0.5 + x.sum() * 0.0625 + x.shape[0]


@opaque.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("random_programs::opaque_", mutates_args=("x",))
def opaque_(x: torch.Tensor) -> None:
    """Mixes all rows in place."""
    x.copy_(x.flip(0) * 0.5 + x.mean())


@torch.library.custom_op("random_programs::pair", mutates_args=())
def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x - x.mean(0), x.mean(0)


@pair.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[1:])


@dataclass(frozen=True)
class Value:
    """A named value. root: whose memory it is in; the program's own where `own`. exact: free of rounding."""

    name: str
    kind: str
    root: str
    own: bool
    exact: bool


@dataclass(frozen=True)
class Statement:
    """One row with its operands filled in. `out` is None for a row of kind `!`."""

    row: Row
    operands: tuple[Value, ...]
    out: Value | None
    number: int

    def lines(self) -> list[str]:
        names = iter(self.operands)
        text = _OPERAND.sub(lambda m: next(names).name, self.row.text).replace("$", f"v{self.number}_")
        *before, last = text.split("; ")
        return [*before, last if self.out is None else f"{self.out.name} = {last}"]


@dataclass(frozen=True)
class Program:
    """Statements, what is returned, whether slots have a null row, and the history as (T, R, seed) triples."""

    statements: tuple[Statement, ...]
    returned: tuple[str, ...]
    null: bool
    history: tuple[tuple[int, int, int], ...]
    is_local: bool

    def source(self) -> str:
        lines = [line for s in self.statements for line in s.lines()]
        body = ["T, R = x.shape[0], slots.shape[0]", *lines, f"return {', '.join(self.returned)}"]
        head = f"def forward(self, {', '.join(INPUTS)}):"
        return "\n".join([head, *[f"    {line}" for line in body]]) + "\n"

    def __str__(self) -> str:
        return f"{self.source()}# (T, R, seed): {list(self.history)}; null row: {self.null}"


# ---------------------------------------------------------------------------------------------------------- generator
class _Maker:
    def __init__(self, rng: random.Random, table: Sequence[Row]) -> None:
        self.rng, self.table = rng, table
        self.statements: list[Statement] = []
        self.values = [Value(name, kind, name, False, True) for name, kind in INPUTS.items()]

    def pool(self, mark: str, kind: str) -> list[Value]:
        found = [v for v in self.values if v.kind == kind]
        if mark == "=":
            found = [v for v in found if v.exact]
        return [v for v in found if v.own] if mark == "~" else found

    def value(self, mark: str, kind: str, depth: int) -> Value | None:
        """An operand: a value that there is, or one made for the purpose."""
        pool = self.pool(mark, kind)
        if pool and (depth > 2 or self.rng.random() < 0.85):
            at = len(pool) - 1
            while at > 0 and self.rng.random() < 0.6:
                at -= 1
            return pool[at]
        if depth > 3 or mark == "~":
            return None
        makers = [r for r in self.table if r.kind == kind and not (mark == "=" and r.lossy)]
        for _ in range(4 if makers else 0):
            made = self.apply(self.rng.choice(makers), depth + 1)
            if made is not None and made.out is not None and (mark != "=" or made.out.exact):
                return made.out
        return pool[-1] if pool else None

    def apply(self, row: Row, depth: int = 0) -> Statement | None:
        operands: list[Value] = []
        labelled: dict[str, Value] = {}
        for mark, kind, label in _OPERAND.findall(row.text):
            value = labelled.get(label) if label else None
            value = value or self.value(mark, kind, depth)
            if value is None:
                return None
            operands.append(value)
            if label:
                labelled[label] = value
        return self.emit(row, operands)

    def emit(self, row: Row, operands: Sequence[Value]) -> Statement:
        number = len(self.statements)
        exact = not row.lossy and all(v.exact for v in operands)
        out = None
        if row.kind != "!":
            view = row.is_view and bool(operands)
            state = not view and row.text in ("self.buf[:T]", "self.total", "self.state[:R]")
            root = operands[0].root if view else f"v{number}"
            own = operands[0].own if view else not state
            reads = "self.state" in row.text or "self.buf" in row.text or "self.total" in row.text
            out = Value(f"v{number}", row.kind, root, own, exact and not reads)
            self.values.append(out)
        elif "{~" in row.text and not exact:
            self.forget(operands[0].root)
        elif row.text.startswith("y["):
            self.forget("y", exact)
        statement = Statement(row, tuple(operands), out, number)
        self.statements.append(statement)
        return statement

    def forget(self, root: str, exact: bool = False) -> None:
        """What was written with roundings is no longer free of them."""
        self.values = [replace(v, exact=v.exact and exact) if v.root == root else v for v in self.values]

    def returned(self) -> list[str]:
        used = {v.name for s in self.statements for v in s.operands}
        made = [s.out.name for s in self.statements if s.out is not None]
        free = [n for n in made if n not in used]
        return free[-4:] + self.rng.sample(made, min(1, len(made))) if made else ["x"]


def program(rng: random.Random, is_local: bool | None = None, size: int = 8) -> Program:
    """A random program.

    Args:
        rng: any source of choices, also one of hypothesis.
        is_local: only rows that stay in their row or look back; None for either.
        size: most statements asked for; operands that there are none of add to it.
    """
    is_local = rng.random() < 0.25 if is_local is None else is_local
    null = rng.random() < 0.3
    weights = {"local": 4, "prefix": 2} if is_local else WEIGHTS
    groups = list(weights)
    maker = _Maker(rng, [row for g in groups if g != "sync" for row in ROWS[g]])
    for _ in range(rng.randint(1, size)):
        (group,) = rng.choices(groups, [weights[g] for g in groups])
        maker.apply(rng.choice(ROWS[group]))
    returned = list(dict.fromkeys(maker.returned()))
    if rng.random() < 0.15:
        returned.append("x")
    return Program(tuple(maker.statements), tuple(returned), null, history(rng), is_local)


def history(rng: random.Random) -> tuple[tuple[int, int, int], ...]:
    """Extents of a few steps: a large one, then others, T == R, T == 1 and R == 1 among them."""
    special = [(1, 1), (4, 4), (5, 1), (8, 2), (1, 3), (3, 2), (9, 4), (7, 5), (2, 2), (30, 3)]
    steps = [(rng.randint(6, 20), rng.randint(2, 6))]
    steps += rng.sample(special, 2)
    steps += [(rng.randint(1, 12), rng.randint(1, 6))]
    if rng.random() < 0.4:
        rng.shuffle(steps)
    return tuple((t, r, rng.randrange(1000)) for t, r in steps)


def batch(t: int, r: int, seed: int) -> dict[str, torch.Tensor]:
    """Floats are multiples of 1/4, so that few sums round; requests may be empty; slots are distinct and not 0."""
    g = torch.Generator().manual_seed(seed)
    inner = torch.randint(0, t + 1, (r - 1,), generator=g).sort().values
    boundaries = torch.cat([torch.zeros(1), inner, torch.full((1,), t)]).to(torch.int32)
    return {
        "x": torch.randint(-8, 9, (t, 8), generator=g) / 4,
        "y": torch.randint(-8, 9, (t, 8), generator=g) / 4,
        "ids": torch.randint(0, 12, (t,), generator=g),
        "slots": torch.randperm(11, generator=g)[:r] + 1,
        "scale": torch.randint(-4, 5, (r,), generator=g) / 4,
        "query_start_loc": boundaries,
    }


# ---------------------------------------------------------------------------------------------------------- running
class Model(nn.Module):
    """What every program may use. `forward` is a program's own."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)

        def quarters(*shape: int) -> torch.Tensor:
            return torch.randint(-3, 4, shape, generator=g) / 4

        self.weight, self.bias = nn.Parameter(quarters(8, 8)), nn.Parameter(quarters(8))
        self.taps, self.table = nn.Parameter(quarters(8, 1, 3)), nn.Parameter(quarters(12, 8))
        self.register_buffer("ones", torch.ones(8))
        self.register_buffer("state", quarters(12, 8))
        self.register_buffer("buf", quarters(64, 8))
        self.register_buffer("total", quarters(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def model(source: str) -> nn.Module:
    name = f"<program {hash(source) & 0xFFFFFFFF:08x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(source, name, "exec"), space)
    return type("RandomProgram", (Model,), {"forward": space["forward"]})()


def case(one: Program) -> capwise.Case:
    slots = capwise.Input("R", null=0) if one.null else ("R",)
    named = {"x": ("T", 8), "y": ("T", 8), "ids": ("T",), "slots": slots, "scale": ("R",), "query_start_loc": ("R+1",)}
    batches = [batch(*extents) for extents in one.history]
    sizes = {"capture_sizes": [1, 2, 4, 8, 16, 24]}
    return capwise.Case(
        model(one.source()), batches, inputs=named, capacity={"T": 32, "R": 8}, options=sizes, name="random"
    )


def is_valid(one: Program) -> bool:
    """Whether eager itself runs it."""
    made = case(one)
    try:
        with torch.no_grad():
            for given in made.batches:
                made.model(**{k: v.clone() for k, v in given.items()})
    except (RuntimeError, IndexError, ValueError):
        return False
    return True


def failure(one: Program, modes: Sequence[str] = ("auto", "split")) -> str | None:
    """What is wrong with how a program is served; None where nothing is."""
    for mode in modes:
        torch._dynamo.reset()
        try:
            result = capwise.verify(case(one), repair=mode)
        except Exception as error:  # noqa: BLE001 - whatever the compiler dies of is the finding
            return f"{mode}: crash: {type(error).__name__}: {str(error)[:300]}"
        if not result.ok:
            return f"{mode}: {result}"
        codes = {d.code for d in result.report}
        if "CW901" in codes:
            notes = [f"{d.node}: {d.message}" for d in result.report if d.code == "CW901"]
            return f"{mode}: CW901 {notes}"
        if one.is_local and mode == "auto" and result.report.seams:
            return f"{mode}: a row-local program has seams: {result.report.seams}"
    return None


def smaller(one: Program) -> Iterator[Program]:
    """Programs with one step, output or statement less; a value that is gone is replaced by an earlier one."""
    for i in range(len(one.history)):
        if len(one.history) > 1:
            yield replace(one, history=one.history[:i] + one.history[i + 1 :])
    for name in one.returned:
        if len(one.returned) > 1:
            yield replace(one, returned=tuple(n for n in one.returned if n != name))
    for at in reversed(range(len(one.statements))):
        yield from _without(one, at)


def _without(one: Program, at: int) -> Iterator[Program]:
    gone = one.statements[at]
    rest = one.statements[:at] + one.statements[at + 1 :]
    if gone.out is None:
        yield replace(one, statements=rest)
        return
    known = [Value(n, k, n, False, True) for n, k in INPUTS.items()]
    known += [s.out for s in one.statements[:at] if s.out is not None]
    is_used = gone.out.name in one.returned or any(gone.out in s.operands for s in rest)
    for other in known if is_used else known[:1]:
        if is_used and other.kind != gone.out.kind and any(gone.out in s.operands for s in rest):
            continue
        swapped = tuple(
            replace(s, operands=tuple(other if v.name == gone.out.name else v for v in s.operands)) for s in rest
        )
        returned = tuple(dict.fromkeys(other.name if n == gone.out.name else n for n in one.returned))
        yield replace(one, statements=swapped, returned=returned)


def shrink(one: Program, fails: Callable[[Program], bool], most: int = 200) -> Program:
    """The same failure with less program: greedy, at most so many tries."""
    tries = 0
    progress = True
    while progress and tries < most:
        progress = False
        for candidate in smaller(one):
            tries += 1
            if tries >= most:
                break
            if is_valid(candidate) and fails(candidate):
                one, progress = candidate, True
                break
    return one
