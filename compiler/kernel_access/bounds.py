"""Extent of an access: the largest and smallest offset, as expressions in arguments and grid.

A bound is found by adding non-negative multiples of facts (masks, conditions, loop tests, ranges) until no lane,
program id, loop or loaded value is left. Scalars count as not negative and divisors as at least 1; loaded values are
bounded by `max(arg)` and `min(arg)`. What was so taken for granted is kept in `taken`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.linear import Prover, facts_of
from capwise.kernel_access.printing import text
from capwise.kernel_access.rewrite import substitute
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import SEARCHED, Node, Poly, interval
from capwise.kernel_access.unrolled import within

_INSIDE = frozenset({"lane", "pid", "trip", "carry", "exit", "load", "opaque", "obool", "last", "found", "probe"})
_MOST_STEPS = 40
_MOST_WORK = 2000


def inner(node: Node) -> bool:
    """Depends on the program, a lane, a loop or memory."""
    return any(leaf.op in _INSIDE for leaf in node.leaves)


def poly_of(node: Node) -> Poly:
    """The node as a polynomial."""
    return Poly({(node,): 1})


@dataclass
class _Move:
    """One way to remove a node: the result, whether a condition said so, and what was taken for granted."""

    result: Poly
    given: bool
    taken: frozenset[str]

    @property
    def left(self) -> int:
        """How many nodes remain to be removed."""
        return sum(inner(n) for n in self.result.nodes())


@dataclass
class Bounds:
    """Bounds under the facts of one place in a kernel. `work` left: long chains of choices stay unbounded."""

    space: Space
    table: Mapping[int, Loop]
    facts: Sequence[Poly] = ()
    taken: set[str] = field(default_factory=set)
    depth: int = 0
    work: list[int] = field(default_factory=lambda: [_MOST_WORK])

    def upper(self, poly: Poly) -> Poly | None:
        """A largest value in arguments and grid, or None."""
        seen: set[Poly] = set()
        for _ in range(_MOST_STEPS):
            inside = sorted((n for n in poly.nodes() if inner(n)), key=lambda n: n.uid)
            if not inside:
                return poly
            seen.add(poly)
            best = self._best(poly, inside, self._moves, seen)
            if best is None or best.left >= len(inside):
                best = self._best(poly, inside, self._more_moves, seen) or best
            if best is None:
                return None
            self.taken |= best.taken
            poly = best.result
        return None

    def _best(
        self, poly: Poly, inside: Sequence[Node], ways: Callable[[Poly, Node], Iterator[_Move]], seen: set[Poly]
    ) -> _Move | None:
        """The move that leaves least, of those what a condition said."""
        moves = (m for n in inside for m in ways(poly, n) if m.result not in seen)
        return min(moves, key=lambda m: (m.left, not m.given), default=None)

    def lower(self, poly: Poly) -> Poly | None:
        """A smallest value, or None."""
        found = self.upper(-poly)
        return None if found is None else -found

    def natural(self, poly: Poly) -> bool:
        """Not negative, at most with what is taken for granted of scalars and loaded values."""
        sign, taken = self.sign(poly)
        if sign > 0 and poly.terms:
            self.taken |= taken
            return True
        return not poly.terms or Prover(self.space, self.meaning).proves(poly, self.facts, 2)

    def sign(self, poly: Poly) -> tuple[int, frozenset[str]]:
        """1 or -1 where all terms agree (0 where not), and what that takes for granted."""
        signs = {c > 0 for c in poly.terms.values()}
        if len(signs) != 1:
            return (0, frozenset()) if signs else (1, frozenset())
        taken: set[str] = set()
        for node in poly.nodes():
            if node.low is not None and node.low >= 0:
                continue
            if node.op in ("sym", "maxof", "minof", "load"):
                taken.add(f"{text(node) if node.op != 'load' else f'min({node.args[0]})'} >= 0")
            elif not self._natural_node(node):
                return 0, frozenset()
        return (1 if signs.pop() else -1), frozenset(taken)

    def _natural_node(self, node: Node) -> bool:
        if self.depth > 3:
            return False
        if node.op in ("div", "rem", "min", "floor", "max"):
            return all(self._deeper().natural(p) for p in node.polys())
        if node.op == "ite":
            return all(self._deeper(c).natural(p) for c, p in self._sides(node))
        if node.op in ("carry", "exit"):
            return Prover(self.space, self.meaning).proves(poly_of(node), self.facts, 2)
        return False

    def _sides(self, node: Node) -> list[tuple[Node, Poly]]:
        condition, a, b = node.args
        assert isinstance(condition, Node) and isinstance(a, Poly) and isinstance(b, Poly)
        return [(condition, a), (self.space.negate(condition), b)]

    def _deeper(self, condition: Node | None = None) -> Bounds:
        facts = [*self.facts, *facts_of([condition] if condition else [])]
        return Bounds(self.space, self.table, facts, self.taken, self.depth + 1, self.work)

    # ways to remove a node ----------------------------------------------------------------------------------------

    def _moves(self, poly: Poly, node: Node) -> Iterator[_Move]:
        coefficient = poly.coefficient(node)
        for fact in self.facts:
            yield from self._move(poly, node, coefficient, fact, True)
        for fact in self.meaning(node):
            yield from self._move(poly, node, coefficient, fact, False)

    def _more_moves(self, poly: Poly, node: Node) -> Iterator[_Move]:
        """Dearer ones: bounds of operations, and a coefficient taken apart."""
        coefficient = poly.coefficient(node)
        wants_high = self.sign(coefficient)[0] >= 0
        for fact in self._replacements(node, wants_high):
            yield from self._move(poly, node, coefficient, fact, False)
        if self.sign(coefficient)[0] == 0:
            yield from self._split(poly, node, coefficient)

    def _move(self, poly: Poly, node: Node, coefficient: Poly, fact: Poly, given: bool) -> Iterator[_Move]:
        """poly + q * fact, where q >= 0 takes the node out."""
        own = fact.coefficient(node)
        self.work[0] -= 1
        if not own.terms or self.work[0] < 0:
            return
        factor = (-coefficient).divided(own)
        if factor is None:
            return
        sign, taken = self.sign(factor)
        result = poly + factor * fact
        if sign > 0 and node not in result.nodes():
            yield _Move(result, given, taken)

    def _split(self, poly: Poly, node: Node, coefficient: Poly) -> Iterator[_Move]:
        """A coefficient of mixed signs: its positive terms take the largest value, its negative ones the smallest."""
        me = poly_of(node)
        rest = poly - coefficient * me
        for keep, high in ((1, True), (-1, False)):
            part = Poly({m: c for m, c in coefficient.terms.items() if c * keep > 0})
            facts = [*self.facts, *self.meaning(node), *self._replacements(node, high)]
            moves = [m for f in facts for m in self._move(part * me, node, part, f, False)]
            if not moves:
                return
            rest = rest + moves[-1].result
        yield _Move(rest, False, frozenset())

    def meaning(self, node: Node) -> list[Poly]:
        """Polynomials that are >= 0 by what the node is."""
        me = poly_of(node)
        out = [me - node.low] if node.low is not None else []
        out += [-me + node.high] if node.high is not None else []
        if node.op == "pid":
            out.append(self.space.leaf("grid", node.args[0], low=1) - me - 1)
        elif node.op == "trip":
            loop = self.table[_ident(node)]
            if loop.upper is not None:
                out.append(loop.upper - loop.index - 1)
        elif node.op in ("carry", "exit"):
            out += instantiated(self, node)
        elif node.op in ("sym", "maxof", "minof"):
            out.append(me)
        elif node.op in SEARCHED:
            out += within(node)
        elif node.op == "div":
            a, b = node.polys()
            most = interval(a)[1]
            if most is not None and most <= 0 and self.sign(b)[0] > 0:
                out += [-me, me - a]  # rounded towards zero
        elif node.op in ("min", "max"):
            out += [(p - me) * (1 if node.op == "min" else -1) for p in node.polys()]
        return out

    def _replacements(self, node: Node, high: bool) -> Iterator[Poly]:
        """Facts `bound - node >= 0` (or `node - bound`) with a bound that has nothing inner left."""
        me = poly_of(node)
        if node.op == "load":
            kind = "maxof" if high else "minof"
            bound: Poly | None = self.space.leaf(kind, node.args[0])
        elif node.op == "trip" and high:
            bound = self._last_trip(self.table[_ident(node)])
        elif self.depth > 4 or self.work[0] < 0:
            return
        else:
            bound = self._operation(node, high)
        if bound is not None:
            yield bound - me if high else me - bound

    def _last_trip(self, loop: Loop) -> Poly | None:
        """Number of the last iteration of a loop with a constant step."""
        if loop.lower is None or loop.upper is None or loop.step is None or self.depth > 4:
            return None
        room = self._deeper().upper(loop.upper - loop.lower - 1)
        return self.space.floor(room, loop.step.const) if room is not None and loop.step.const else None

    def _operation(self, node: Node, high: bool) -> Poly | None:
        if node.op in ("div", "rem", "floor"):
            return self._division(node, high)
        if node.op == "ite":
            sides = [(self._deeper(c), p) for c, p in self._sides(node)]
        elif node.op in ("min", "max"):
            sides = [(self._deeper(), p) for p in node.polys()]
        else:
            return None
        found = [b.upper(p) if high else b.lower(p) for b, p in sides]
        known = [p for p in found if p is not None]
        if len(known) < 2:
            return None
        outward = self.space.maximum if high else self.space.minimum
        return outward(known[0], known[1]) if node.op not in ("min", "max") else self._same(node, known)

    def _same(self, node: Node, known: list[Poly]) -> Poly:
        pick = self.space.minimum if node.op == "min" else self.space.maximum
        return pick(known[0], known[1])

    def _division(self, node: Node, high: bool) -> Poly | None:
        """Of natural numbers only: floor and remainder of what may be negative stay unknown."""
        a, b = node.polys()
        divisor_sign, taken = self.sign(b)
        if inner_poly(b) or divisor_sign <= 0 or not self._deeper().natural(a):
            return None
        self.taken |= {t.replace(">= 0", ">= 1") for t in taken}
        if node.op == "rem":
            return b - 1 if high else Poly.of(0)
        bound = self._deeper().upper(a) if high else Poly.of(0)
        if bound is None:
            return None
        return self.space.floor(bound, b.const) if b.const else self.space.div(bound, b)


def inner_poly(poly: Poly) -> bool:
    """Some node of it depends on the program."""
    return any(inner(n) for n in poly.nodes())


def _ident(node: Node) -> int:
    assert isinstance(node.args[0], int)
    return node.args[0]


# loop invariants --------------------------------------------------------------------------------------------------


def instantiated(bounds: Bounds, node: Node) -> list[Poly]:
    """Invariants of the loop that speak of this carried or final value, over the lanes it is used at."""
    loop = bounds.table.get(_ident(node))
    if loop is None or node.op == "exit" and node.args[1] == -1:
        return []
    mine = next((n for n in loop.carried if n.args[:3] == node.args[:3]), None)
    if mine is None:
        return []
    swap = {mine: poly_of(node)}
    for old, new in zip(mine.polys(), node.polys()):
        if old.node is not None:
            swap[old.node] = new
    return [
        substitute(bounds.space, p, swap) for p in invariants(bounds.space, bounds.table, loop) if mine in p.nodes()
    ]


def invariants(space: Space, table: Mapping[int, Loop], loop: Loop) -> list[Poly]:
    """Polynomials over carried values that stay >= 0: candidates that hold at first and survive every iteration.

    Candidates compare each carried value with the first values, their ends, the bounds of the loop and 0; those that
    do not survive under all the others are dropped until nothing more falls."""
    if loop.invariants is not None:
        return loop.invariants
    loop.invariants = []
    plain = Bounds(space, {k: v for k, v in table.items() if v is not loop})
    prover = Prover(space, lambda n: plain.meaning(n) if n is not loop.trip else [poly_of(n)])
    entry = facts_of(loop.guards)
    firsts = {n: first for n, (first, _) in loop.carried.items()}
    kept = [c for c in _candidates(loop) if prover.proves(substitute(space, c, firsts), entry, 2)]
    running = [loop.upper - loop.index - 1] if loop.upper is not None else facts_of([loop.condition or space.true])
    nexts = {n: after for n, (_, after) in loop.carried.items()}
    changed = True
    while changed and kept:
        facts = [*entry, *running, *kept]
        alive = [c for c in kept if prover.proves(substitute(space, c, nexts), facts)]
        changed, kept = len(alive) < len(kept), alive
    loop.invariants = kept
    return kept


def _candidates(loop: Loop) -> list[Poly]:
    if len(loop.carried) > 6:
        return []
    limits = {Poly.of(0), *(first for first, _ in loop.carried.values())}
    limits |= {Poly.of(end) for first, _ in loop.carried.values() for end in interval(first) if end is not None}
    limits |= {p for p in (loop.lower, loop.upper) if p is not None}
    ordered = sorted(limits, key=Poly.order)
    return [c for node in loop.carried for limit in ordered for c in (poly_of(node) - limit, limit - poly_of(node))]


def facts_at(access: Access, assumed: Sequence[tuple[tuple[Node, ...], Node]] = ()) -> list[Poly]:
    """What is >= 0 where the access happens: conditions, mask, loop tests, and assumptions stated in the kernel."""
    facts = facts_of([*access.guards, *([access.mask] if access.mask else [])])
    for ident in access.loops:
        loop = access.table[ident]
        if loop.upper is not None:
            facts.append(loop.upper - loop.index - 1)
    holding = set(access.guards)
    return facts + facts_of([said for where, said in assumed if set(where) <= holding])


def extent(access: Access, assumed: Sequence[tuple[tuple[Node, ...], Node]] = ()) -> tuple[Poly | None, frozenset[str]]:
    """One past the largest offset, None where not bounded, and what was taken for granted."""
    bounds = Bounds(access.space, access.table, facts_at(access, assumed))
    high = bounds.upper(access.poly)
    return None if high is None else high + 1, frozenset(bounds.taken)
