"""Loops: a value carried round a loop has a closed form in the trip count, or stays a symbol with a recurrence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capwise.kernel_access.access import Loop
from capwise.kernel_access.parse import Op, parse_type
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Part, Poly, interval
from capwise.kernel_access.values import BlockPtr, Bool, Case, Int, Ptr, Shape, Unknown, Value, lanes, mapped

if TYPE_CHECKING:
    from capwise.kernel_access.machine import Machine

_ALWAYS = frozenset({"sym", "pid", "grid", "lane", "last"})


@dataclass
class Slot:
    """One integer that a loop carries: part `part` of carried value `position`."""

    position: int
    part: int
    shape: Shape
    init: Poly
    carry: Poly
    value: Poly
    delta: Poly | None = None


def parts(space: Space, value: Value) -> list[Poly]:
    """The integers in a value: itself, 0 or 1, how far a pointer was moved, the offsets of a block."""
    if isinstance(value, Int):
        return [value.poly]
    if isinstance(value, Bool):
        return [space.choose(value.node, Poly.of(1), Poly.of(0))]
    if isinstance(value, Ptr):
        return [Poly.of(0)] if all(c.base for c in value.cases) else []
    return [offset.poly for offset in value.offsets] if isinstance(value, BlockPtr) else []


def with_parts(space: Space, first: Value, polys: Sequence[Poly], narrow: frozenset[Poly]) -> Value:
    """The value that has these integers, otherwise like the first one carried."""
    if not polys:
        return Unknown(first.shape, "carried round a loop") if isinstance(first, Ptr) else first
    if isinstance(first, Int):
        return replace(first, poly=polys[0], narrow=first.narrow | narrow)
    if isinstance(first, Bool):
        return replace(first, node=space.negate(space.eq(polys[0])))
    if isinstance(first, Ptr):
        return replace(
            first, cases=tuple(replace(c, offset=c.offset + polys[0], narrow=c.narrow | narrow) for c in first.cases)
        )
    assert isinstance(first, BlockPtr)
    moved = tuple(replace(o, poly=p, narrow=o.narrow | narrow) for o, p in zip(first.offsets, polys, strict=True))
    return replace(first, offsets=moved)


def next_parts(space: Space, first: Value, carried: Value, after: Value) -> list[Poly] | None:
    """The integers of the value that goes round, or None where it is no longer the same thing moved."""
    if isinstance(first, Ptr):
        return _moved(first, after)
    if type(first) is not type(after) or not isinstance(after, (Int, Bool, BlockPtr)):
        return None
    if isinstance(after, BlockPtr):
        assert isinstance(carried, BlockPtr)
        if replace(after, offsets=carried.offsets) != carried:
            return None
    return parts(space, after)


def _moved(first: Ptr, after: Value) -> list[Poly] | None:
    if not isinstance(after, Ptr) or len(after.cases) != len(first.cases):
        return None
    pairs = list(zip(first.cases, after.cases, strict=True))
    if any(a.base != b.base or a.when is not b.when for a, b in pairs):
        return None
    moves = {b.offset - a.offset for a, b in pairs}
    return list(moves) if len(moves) == 1 else None


class Carried:
    """The values carried by one loop: trial run, closed forms, and what stays a recurrence."""

    def __init__(self, machine: Machine, loop: Loop, first: Sequence[Value]) -> None:
        self.machine, self.loop, self.first = machine, loop, list(first)
        self.narrow: list[frozenset[Poly]] = [frozenset() for _ in first]
        self.mark = machine.space.mark
        self.slots: list[Slot] = []
        for position, value in enumerate(first):
            for part, poly in enumerate(parts(machine.space, value)):
                shape = () if isinstance(value, BlockPtr) else value.shape
                bounds = (0, 1) if isinstance(value, Bool) else (None, None)
                args: tuple[Part, ...] = (loop.ident, position, part, *lanes(machine.space, shape))
                carry = machine.space.leaf("carry", *args, low=bounds[0], high=bounds[1])
                self.slots.append(Slot(position, part, shape, poly, carry, carry))

    def values(self, pick: Callable[[Slot], Poly]) -> list[Value]:
        """Carried values with each slot as `pick` says."""
        out = []
        for position, first in enumerate(self.first):
            polys = [pick(s) for s in self.slots if s.position == position]
            out.append(with_parts(self.machine.space, first, polys, self.narrow[position]))
        return out

    def trial(self, body: Callable[[list[Value]], list[Value]]) -> None:
        """Run the body once on symbols, keep nothing of it but how the symbols change."""
        machine = self.machine
        if not self.slots:
            return
        step, barriers, assumed = machine.step, machine.barriers, len(machine.assumed)
        machine.muted += 1
        current = self.values(lambda s: s.carry)
        after = body(current)
        machine.muted -= 1
        machine.step, machine.barriers = step, barriers
        del machine.assumed[assumed:]
        self._drop_changed(current, after)
        self._close(self._next(current, after))

    def _drop_changed(self, current: Sequence[Value], after: Sequence[Value]) -> None:
        """Values that come back as something else are not followed."""
        for position, first in enumerate(self.first):
            has = [s for s in self.slots if s.position == position]
            if has and next_parts(self.machine.space, first, current[position], after[position]) is None:
                self.slots = [s for s in self.slots if s.position != position]
                fresh = self.machine.truth(first.shape) if isinstance(first, Bool) else None
                self.first[position] = fresh or Unknown(first.shape, "carried round a loop in a way not followed")

    def _next(self, current: Sequence[Value], after: Sequence[Value]) -> list[Poly]:
        polys: list[Poly] = []
        for position, first in enumerate(self.first):
            if any(s.position == position for s in self.slots):
                found = next_parts(self.machine.space, first, current[position], after[position])
                polys += found or []
                self.narrow[position] = self._lasting(after[position])
        return polys

    def _lasting(self, value: Value) -> frozenset[Poly]:
        """Obligations of the body that hold for every iteration alike."""
        sources: list[Int | Case] = []
        if isinstance(value, Int):
            sources = [value]
        elif isinstance(value, Ptr):
            sources = list(value.cases)
        elif isinstance(value, BlockPtr):
            sources = list(value.offsets)
        return frozenset(p for source in sources for p in source.narrow if self.invariant(p))

    def _close(self, after: Sequence[Poly]) -> None:
        """Closed forms: slots that stay as they are, then those that grow by the same each time."""
        known = self._constant(after)
        trip = Poly({(self.loop.trip,): 1})
        for slot, poly in zip(self.slots, after, strict=True):
            delta = known.poly(poly) - known.poly(slot.carry)
            if self.invariant(delta):
                slot.delta = delta
                slot.value = slot.init + delta * trip

    def _constant(self, after: Sequence[Poly]) -> Rewriter:
        """Replaces slots that never change: the largest set that stays at its first values if it starts there."""
        same = {s.carry.node: s.init for s in self.slots if s.carry.node is not None}
        while True:
            known = Rewriter(self.machine.space, dict(same).get)
            pairs = zip(self.slots, after, strict=True)
            moved = {s.carry.node for s, p in pairs if s.carry.node in same and known.poly(p) != s.init}
            if not moved:
                return known
            same = {node: init for node, init in same.items() if node not in moved}

    def invariant(self, poly: Poly) -> bool:
        """Every leaf was there before the loop."""
        leaves = poly.leaves - {self.loop.trip}
        fixed = all(leaf.op in _ALWAYS or leaf.op == "load" or leaf.uid < self.mark for leaf in leaves)
        return fixed and self.loop.trip not in poly.leaves

    def settle(self, current: Sequence[Value], after: Sequence[Value]) -> None:
        """After the kept run: recurrences of the slots without closed form go into the loop."""
        space = self.machine.space
        for slot in self.slots:
            if slot.delta is not None:
                continue
            first, position = self.first[slot.position], slot.position
            found = next_parts(space, first, current[position], after[position])
            node = slot.carry.node
            assert node is not None
            if found is None:
                self.machine.note(f"a value carried round the loop at line {self.loop.line}")
                found = [space.leaf("opaque", self.machine.fresh())] * (slot.part + 1)
            self.loop.carried[node] = (slot.init, found[slot.part])
            self.loop.shapes[node] = slot.shape

    def exits(self, count: Poly | None) -> dict[Node, Poly]:
        """Trip and carried symbols to what they are when the loop is left; `count` is the number of trips if known."""
        space = self.machine.space
        out = {self.loop.trip: count if count is not None else space.leaf("exit", self.loop.ident, -1, 0, low=0)}
        for slot in self.slots:
            node = slot.carry.node
            assert node is not None
            args: tuple[Part, ...] = (self.loop.ident, slot.position, slot.part, *lanes(space, slot.shape))
            out[node] = space.leaf("exit", *args, low=node.low, high=node.high)
        return out


def _new_loop(machine: Machine, op: Op, high: int | None) -> Loop:
    ident = machine.fresh()
    trip = machine.space.make("trip", ident, low=0, high=high)
    return Loop(ident, trip, tuple(machine.inside), op.line, machine.guards_with(machine.space.true))


def _replaced(machine: Machine, values: Sequence[Value], mapping: dict[Node, Poly]) -> list[Value]:
    rewriter = Rewriter(machine.space, mapping.get)
    out: list[Value] = []
    for value in values:
        if isinstance(value, BlockPtr):
            offsets = tuple(replace(o, poly=rewriter.poly(o.poly)) for o in value.offsets)
            out.append(replace(value, offsets=offsets))
        else:
            out.append(mapped(value, rewriter.poly, rewriter.truth))
    return out


def for_loop(machine: Machine, op: Op) -> list[Value]:
    """scf.for: index in [lower, upper) by a positive step."""
    space = machine.space
    index, names = op.operands[0], op.operands[4:]
    bounds = [machine.get(n) for n in op.operands[1:4]]
    kind = parse_type(op.types.strip() or "i32")
    ints = [b if isinstance(b, Int) else machine.opaque(kind) for b in bounds]
    lower, upper, step = (b.poly for b in ints if isinstance(b, Int))
    width = max(b.bits for b in ints if isinstance(b, Int))
    narrow = frozenset().union(*(b.narrow for b in ints if isinstance(b, Int)))
    count = space.maximum(Poly.of(0), space.div(upper - lower + step - 1, step))
    first = [machine.get(n) for n in names[1::2]]
    if count.const == 0:
        return first
    most = interval(count)[1]
    loop = _new_loop(machine, op, None if most is None else most - 1)
    loop.lower, loop.upper, loop.step = lower, upper, step
    machine.loops[loop.ident] = loop

    def body(values: list[Value]) -> list[Value]:
        machine.env[index] = Int(loop.index, (), width, narrow)
        machine.env.update(zip(names[0::2], values, strict=True))
        machine.inside.append(loop.ident)
        results = machine.blocks(op.regions[0])
        machine.inside.pop()
        return results

    carried = Carried(machine, loop, first)
    carried.trial(body)
    current = carried.values(lambda s: s.value)
    carried.settle(current, body(current))
    return _replaced(machine, current, carried.exits(count))


def while_loop(machine: Machine, op: Op) -> list[Value]:
    """scf.while: the first region gives the condition and what it passes on, the second the next values."""
    before, after = op.regions
    names = re.findall(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)", op.text)
    first = [machine.get(source) for _, source in names]
    loop = _new_loop(machine, op, None)
    machine.loops[loop.ident] = loop
    passed: list[Value] = []

    def body(values: list[Value]) -> list[Value]:
        machine.env.update(zip((n for n, _ in names), values, strict=True))
        machine.inside.append(loop.ident)
        test, *rest = machine.blocks(before)
        passed[:] = rest
        node = test.node if isinstance(test, Bool) else machine.truth(()).node
        loop.condition = node
        machine.env.update(zip((n for n, _ in after[0].args), rest, strict=True))
        with machine.under(node):
            results = machine.blocks(after)
        machine.inside.pop()
        return results

    carried = Carried(machine, loop, first)
    carried.trial(body)
    current = carried.values(lambda s: s.value)
    carried.settle(current, body(current))
    return _replaced(machine, passed, carried.exits(None))
