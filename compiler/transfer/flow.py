"""The state of the forward analysis: facts so far, hazards met, remedies chosen.

A transfer function reads the facts of a node's arguments, asks `Flow` for the tails that its op needs, and sets the
fact of the result. Where an argument's tail is not what the op needs, that is a hazard; the remedy chosen at once
decides what the analysis believes from there on. The graph itself is changed later, from the list of hazards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sympy
import torch
from torch import fx

from capwise.allow import allowed
from capwise.axes import ONE, Axis, Rows, Space, as_expr, only_grows
from capwise.facts import PADDED, Fact, Tail, fact, facts, filled, has_fact, storage_of, val
from capwise.labels import Spec
from capwise.ops import aten
from capwise.options import Repair
from capwise.program import is_free
from capwise.trace import Arrival, Traced
from capwise.transfer.scalars import convertible, tensor_overload

LAST = "last"
Value = Any  # a number, or LAST

_SCALAR_MAKERS = (torch.ops.aten.scalar_tensor.default,)
_TRANSPARENT = ("_to_copy", "clone", "view", "unsqueeze", "alias", "expand", "slice")

RemedyKind = Literal[
    "allow", "capacity", "generator", "fill", "scalar", "keep", "dense", "back", "wait", "hold", "format", "widen",
    "wrap", "stage", "guard", "temporary", "seam",
]


# What repair="split" takes: nothing that changes the graph.
_IN_PLACE = ("capacity", "generator", "seam", "stage", "guard")


@dataclass(frozen=True)
class Fix:
    """The tail of one argument of one node, along one dimension, made to hold a value."""

    arg: fx.Node
    dim: int
    value: Value


@dataclass(frozen=True)
class Remedy:
    """One way to remove a hazard. `label` is what reports say; cost is in launches a step. `name` is that of the
    op that is called to remove it."""

    kind: RemedyKind
    label: str
    fixes: tuple[Fix, ...] = ()
    arg: fx.Node | None = None
    dim: int = 0
    extent: Any = None
    cost: float = 0.0
    name: str = ""


SEAM = Remedy("seam", "seam", cost=2.0)


@dataclass
class Hazard:
    """A place where replay could differ from eager, before it becomes a Diagnostic."""

    code: str
    node: fx.Node
    message: str
    label: str
    remedies: tuple[Remedy, ...]
    arg: fx.Node | None = None
    symbol: str = ""
    notes: tuple[str, ...] = ()
    verdict: Literal["refuted", "assumed"] = "refuted"
    chosen: Remedy | None = None

    @property
    def identity(self) -> tuple[str, str, str]:
        return (self.code, self.node.name, self.arg.name if self.arg is not None else "")


@dataclass
class Flow:
    """One forward run over a graph.

    staged_fills: what the arena writes into the tails of staged inputs, by argument name. eager: nodes that were made
    seams before this run.
    padded: symbols whose captured extent may exceed the live one. outside: symbols that no key carries.
    scratch: (state, dimension, row) that padded rows write; prospective: those that a chosen fill will make so. whole:
    states of which every row is read, and by which node: they can have no such row.
    """

    traced: Traced
    space: Space
    repair: Repair
    outside: frozenset[str]
    staged_fills: Mapping[str, Value]
    eager: Mapping[fx.Node, str] = field(default_factory=dict)
    hazards: list[Hazard] = field(default_factory=list)
    groups: dict[int, list[fx.Node]] = field(default_factory=dict)
    scratch: list[tuple[str, int, int]] = field(default_factory=list)
    prospective: list[tuple[str, int, int]] = field(default_factory=list)
    whole: Mapping[str, str] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")
    last_write: dict[int, fx.Node] = field(default_factory=dict)
    keepers: dict[int, list[fx.Node]] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------------ facts
    def spec(self, name: str) -> Spec | None:
        return self.traced.specs.get(name)

    def arrival(self, node: fx.Node) -> Arrival | None:
        return self.traced.arrivals.get(node)

    def set(self, node: fx.Node, value: Fact) -> None:
        facts(node).value = value
        self.groups.setdefault(value.storage, []).append(node)
        if value.keeps is not None:
            self.keepers.setdefault(fact(value.keeps).storage, []).append(node)

    def fresh(
        self, node: fx.Node, axes: Sequence[Axis], tails: Sequence[Tail], sources: Iterable[fx.Node] = (), **more: Any
    ) -> Fact:
        """A new value in pool memory."""
        inputs = frozenset().union(*[fact(s).inputs for s in sources if has_fact(s)])
        value = Fact(tuple(axes), tuple(tails), storage_of(val(node)), "pool", node.name, inputs=inputs, **more)
        self.set(node, value)
        return value

    def axes_of(self, node: fx.Node) -> list[Axis]:
        """Axes by sizes alone."""
        return self.axes_by_size(val(node))

    def axes_by_size(self, value: torch.Tensor) -> list[Axis]:
        return [self.space.axis(size) for size in value.shape]

    def plain_tails(self, axes: Sequence[Axis], tail: Tail = PADDED) -> list[Tail]:
        return [tail if self.space.is_padded(a) else Tail("live") for a in axes]

    def is_padded(self, axis: Axis) -> bool:
        return self.space.is_padded(axis)

    def padded_dims(self, value: Fact) -> list[int]:
        return [d for d, axis in enumerate(value.axes) if self.space.is_padded(axis)]

    def root(self, node: fx.Node) -> str | None:
        """The named input that these values are, seen through conversions and views."""
        while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
            if not isinstance(node.target, torch._ops.OpOverload) or aten.base_name(node.target) not in _TRANSPARENT:
                return None
            node = node.args[0]
        arrival = self.arrival(node)
        return arrival.name if arrival is not None and arrival.kind == "input" else None

    # ------------------------------------------------------------------------------------------------ hazards
    def report(self, hazard: Hazard) -> Remedy | None:
        """Records a hazard and chooses its remedy by the repair mode. What its author answers for stays as it is."""
        reason = allowed(hazard.node, hazard.code)
        if reason is not None:
            hazard.verdict, hazard.chosen = "assumed", Remedy("allow", "allow")
            hazard.notes += (f"allowed: {reason}",)
        elif self.repair == "auto":
            hazard.chosen = hazard.remedies[0] if hazard.remedies else None
        elif self.repair == "split":
            hazard.chosen = next((r for r in hazard.remedies if r.kind in _IN_PLACE), None)
        self.hazards.append(hazard)
        if hazard.chosen is not None and hazard.chosen.kind == "seam":
            self.make_eager(hazard.node, hazard.code)
        return hazard.chosen

    def make_eager(self, node: fx.Node, code: str) -> None:
        record = facts(node)
        if not record.eager and self.repair != "none":
            record.eager, record.why_eager = True, code

    def is_eager(self, node: fx.Node) -> bool:
        return facts(node).eager

    def can_fill(self, node: fx.Node, dim: int) -> bool:
        """Whether the tail is one block, at least once the axis is taken apart into its atoms."""
        axis = fact(node).axes[dim]
        if self.space.layout(axis)[0] == "leading":
            return True
        padded = [a for a in axis if self.space.is_padded((a,))]
        return len(padded) == 1 and isinstance(padded[0], Rows)

    def want(
        self,
        node: fx.Node,
        arg: fx.Node,
        dim: int,
        value: Value,
        *,
        code: str = "CW202",
        message: str,
        label: str,
        also: Sequence[Fix] = (),
        notes: tuple[str, ...] = (),
        name: str | None = None,
    ) -> Tail:
        """The tail of `arg` along `dim` after it was made sure to hold `value` (None: nothing helps but a seam).

        Returns the tail that the op sees; the tail as it is where nothing was done.
        """
        value_fact = fact(arg)
        tail = value_fact.tails[dim]
        if not self.space.is_padded(value_fact.axes[dim]) or self._holds(tail, value):
            return tail
        remedies: list[Remedy] = []
        if value is not None and self.can_fill(arg, dim) and not self.is_written_through(node, arg):
            fixes = (Fix(arg, dim, value), *also)
            remedies.append(Remedy("fill", name or f"fill {show_value(value)}", fixes, cost=0.1))
        symbol = ", ".join(sorted(self.space.symbols(value_fact.axes[dim]) & self.space.padded))
        direct = value_fact.origin in ("staged", "buffer") and code == "CW202" and value == LAST
        hazard = Hazard(
            "CW201" if direct else code,
            node,
            message,
            label,
            (*remedies, SEAM),
            arg,
            symbol,
            (*notes, f"{arg.name} is {value_fact}"),
        )
        chosen = self.report(hazard)
        if chosen is not None and chosen.kind == "fill":
            return filled(None, own=True) if value == LAST else filled(value)
        return tail

    def is_written_through(self, node: fx.Node, arg: fx.Node) -> bool:
        """A view of a filled copy is a view of another tensor: writes to the one do not reach the other."""
        last = self.last_write.get(fact(arg).storage)
        return last is not None and node < last and is_free(node)

    def _holds(self, tail: Tail, value: Value) -> bool:
        if value is None:
            return False
        return tail.own if value == LAST else tail.is_value(value)

    def agree(self, node: fx.Node, met: Sequence[Axis], by_size: Axis) -> Axis:
        """One axis out of those that meet in a dimension. Live parts that are laid out differently clash."""
        met = [axis for axis in dict.fromkeys(met) if axis != ONE]
        if not met:
            return by_size
        if len(met) == 1 or len({self.space.layout(a) for a in met}) == 1 or not any(self.is_padded(a) for a in met):
            return met[0]
        self.report(
            Hazard(
                "CW202",
                node,
                "two axes of equal size but different meaning meet",
                "live rows of one operand stand beside padded rows of the other",
                (SEAM,),
            )
        )
        return (self.space.opaque(self.space.size(met[0])),)

    def keep_rows(self, node: fx.Node, target: fx.Node) -> bool:
        """A write must leave alone what stands past its live rows, unless that is a tail of the program's own memory.

        Returns whether there is nothing to leave alone.
        """
        padded = self.padded_dims(fact(target))
        owned = self.is_owned(target)
        if not padded or not owned and all(self.covers(target, d) for d in padded):
            return True
        remedies = [SEAM]
        if len(padded) == 1 and self.can_fill(target, padded[0]):
            remedies.insert(0, Remedy("keep", "masked write", arg=target, dim=padded[0], cost=0.1))
        symbols = ", ".join(sorted(self.space.symbols(fact(target).axes[padded[0]]) & self.space.padded))
        what = f"persistent state {self.owner(target)!r}" if owned else "live rows of what the target is a view of"
        self.report(
            Hazard(
                "CW204" if owned else "CW202",
                node,
                f"padded rows write {what}",
                f"writes {symbols} rows at the captured extent, of which only the live ones are this step's",
                tuple(remedies),
                target,
                symbols,
            )
        )
        return False

    def scalars(self, node: fx.Node, arguments: Iterable[Any], can_be_tensor: bool) -> None:
        """Host integers in the content of a value: a recording freezes the captured extent, not the live one."""
        for argument in arguments:
            symbols = self.content_symbols(argument)
            if not symbols:
                continue
            names = ", ".join(sorted(symbols))
            possible = can_be_tensor and convertible(self.space, argument)
            possible = possible and (node.target in _SCALAR_MAKERS or tensor_overload(node, argument) is not None)
            remedy = (Remedy("scalar", "device scalar", arg=argument, cost=0.1),) if possible else ()
            self.report(
                Hazard(
                    "CW102",
                    node,
                    f"host value computed from {names} is frozen at capture",
                    f"{val(argument)} is a number here, not an extent",
                    (*remedy, SEAM),
                    argument,
                    names,
                    ("a recording holds the captured extent, a replay needs the live one",),
                )
            )

    def least(self, expr: sympy.Expr) -> int | None:
        """The least value of an expression over extents: a named extent is at least 1, a named int at least 0. None
        where the expression may fall as an extent grows."""
        if not only_grows(expr):
            return int(expr) if expr.is_Integer else None
        ints = {s for spec in self.traced.specs.values() if spec.kind == "int" for s in spec.symbols}
        value = expr.subs({s: int(n not in ints) for n, s in self.space.sympy.items()})
        return int(value) if value.is_Integer else None

    def content_symbols(self, argument: Any) -> frozenset[str]:
        """Padded symbols in a host scalar argument."""
        value = val(argument) if isinstance(argument, fx.Node) else None
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return frozenset()
        free = as_expr(value).free_symbols
        return frozenset(self.space.names[s] for s in free if s in self.space.names) & self.space.padded

    # ------------------------------------------------------------------------------------------------ mutation
    def mutate(self, node: fx.Node, target: fx.Node, written: Sequence[tuple[Axis, Tail]]) -> None:
        """Rows written through one view change what is known of every view of that storage."""
        worst: dict[str, Tail] = {}
        for axis, tail in written:
            for symbol in self.space.symbols(axis) & self.space.padded:
                worst[symbol] = tail
        for keeper in self.keepers.pop(fact(target).storage, []):
            facts(keeper).value = replace(fact(keeper), keeps=None)
        for other in self.groups.get(fact(target).storage, []):
            value = fact(other)
            tails = [self._joined(a, t, worst) for a, t in zip(value.axes, value.tails)]
            sources = frozenset().union(*[fact(a).inputs for a in node.all_input_nodes if has_fact(a)])
            facts(other).value = Fact(
                value.axes, tuple(tails), value.storage, value.origin, value.source, inputs=value.inputs | sources
            )

    def _joined(self, axis: Axis, tail: Tail, worst: Mapping[str, Tail]) -> Tail:
        hit = [worst[s] for s in self.space.symbols(axis) if s in worst]
        return tail if tail.kind == "live" or all(t == tail for t in hit) else PADDED

    def covers(self, target: fx.Node, dim: int) -> bool:
        """Whether the tail rows of a written view are tail rows of the memory that it looks at, or nothing."""
        if self.space.is_opaque(fact(target).axes[dim]):
            return False
        base = val(self.groups[fact(target).storage][0])
        mine = val(target)
        if _same(mine.numel(), base.numel()):
            return True
        stride, size = mine.stride(dim), mine.shape[dim]
        start = mine.storage_offset() - base.storage_offset()
        for length, step in zip(base.shape, base.stride()):
            if not _same(step, stride):
                continue
            known = isinstance(start, int) and isinstance(step, int) and step > 0
            if _same(length, size + start // step if known else size):
                return True
        return False

    def is_owned(self, node: fx.Node) -> bool:
        """Whether writing here writes state that outlives the step."""
        origins = {fact(n).origin for n in self.groups.get(fact(node).storage, [node]) if has_fact(n)}
        return bool(origins & {"state", "static", "buffer"})

    def owner(self, node: fx.Node) -> str:
        """The name of the state behind a view."""
        for other in self.groups.get(fact(node).storage, []):
            if other.op == "placeholder":
                return fact(other).source
        return fact(node).source


def _same(a: object, b: object) -> bool:
    return sympy.expand(as_expr(a) - as_expr(b)) == 0


def show_value(value: Value) -> str:
    return "last" if value == LAST else f"{value:g}" if isinstance(value, float) else str(value)


def extreme(dtype: torch.dtype, which: str) -> float | int | bool:
    """The lowest ("-max") or highest ("max") value of a dtype; infinities where it has them."""
    if dtype.is_floating_point:
        return float("inf") if which == "max" else float("-inf")
    if dtype == torch.bool:
        return which == "max"
    info = torch.iinfo(dtype)
    return info.max if which == "max" else info.min


def broadcast_dim(out_rank: int, rank: int, dim: int) -> int | None:
    """The dimension of an operand that meets dimension `dim` of the result; None where it has none."""
    mine = dim - (out_rank - rank)
    return mine if mine >= 0 else None
