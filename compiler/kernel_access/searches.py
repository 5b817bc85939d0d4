"""Searches of boundaries, proved: the search ends at the least row r whose boundary lies above its key.

A search keeps two carried values, shifted to L and H, such that L <= r <= H, where r is the least index from L's first
value on with boundary[r] > key. It is proved iff

1. at first L <= r <= H by what r is (r <= H needs the key to lie below the last boundary, where H is no index);
2. every round reads one boundary m within [first, last] and keeps L <= r <= H: a boundary not above the key has m < r,
   one above it has r <= m, since boundaries never fall;
3. it ends with L >= H: by its own test, or since every round halves H - L and there are enough rounds.

Rounds may be those of a loop, or written out one after another (`tl.static_range`), where no loop is left in the TTIR.
A walk (one boundary after another until one lies above the key) and a count (of boundaries not above the key) end at
the same row. All inequalities are shown by `linear.Prover`; a search that is not proved is still one by its role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from capwise.kernel_access.access import Loop
from capwise.kernel_access.linear import Prover, facts_of
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Part, Poly


@dataclass(frozen=True)
class Search:
    """One search.

    arg: whose integers are the boundaries. key: what is looked for. line: where. loop: its number, None where the
    rounds are written out. first, last: L and H at first: the row is at least `first`, and is `last` where no boundary
    before that lies above the key; None: it goes on. rounds: how many there are, None for a search that goes on until
    it ends. tests: the comparisons that only steer the search."""

    arg: str
    key: Poly
    line: int
    loop: int | None
    first: Poly
    last: Poly | None
    rounds: int | None
    tests: frozenset[Node]

    @property
    def room(self) -> Poly | None:
        """What must be below 2**rounds."""
        return self.last - self.first if self.last is not None and self.rounds is not None else None

    @property
    def scalars(self) -> frozenset[str]:
        """Scalars that say where it begins and ends."""
        ends = [p for p in (self.first, self.last) if p is not None]
        return frozenset(str(n.args[0]) for p in ends for n in p.leaves if n.op == "sym")

    def mapped(self, rewriter: Rewriter) -> Search:
        """The same with parts of its tests replaced."""
        return replace(self, tests=frozenset(map(rewriter.truth, self.tests)))


@dataclass(frozen=True)
class Comparison:
    """A comparison of one boundary with a key: `node` holds iff boundary[index] <= key."""

    node: Node
    load: Node
    arg: str
    stride: Poly
    index: Poly
    key: Poly

    @property
    def offset(self) -> Poly:
        return self.index * self.stride

    @property
    def mask(self) -> Node | None:
        mask = self.load.args[2]
        return mask if isinstance(mask, Node) else None


@dataclass(frozen=True)
class Round:
    """What one round does to the two values: low and high before, and after."""

    test: Comparison
    low: Poly
    high: Poly
    low_after: Poly
    high_after: Poly


# tests ------------------------------------------------------------------------------------------------------------


def _stride(offset: Poly) -> Poly:
    """The passed stride that every term of an offset has, else 1."""
    for node in sorted(offset.nodes(), key=lambda n: n.uid):
        if node.op == "sym" and all(node in m for m in offset.terms):
            return Poly({(node,): 1})
    return Poly.of(1)


def comparisons(space: Space, node: Node) -> list[Comparison]:
    """A comparison of a loaded integer with what does not depend on it, turned so that it holds for boundary <= key;
    one for each of the loaded integers, in the order they are loaded in."""
    if node.op != "ge":
        return []
    (poly,) = node.polys()
    out = []
    for load in sorted(poly.nodes(), key=lambda n: n.uid):
        sign = poly.terms.get((load,), 0)
        offset = load.args[1] if load.op == "load" else None
        rest = poly - Poly({(load,): sign})
        if not isinstance(offset, Poly) or abs(sign) != 1 or load in rest.leaves:
            continue
        # key - boundary >= 0, or the negation of boundary - key - 1 >= 0.
        key, stride = rest if sign < 0 else -rest - 1, _stride(offset)
        index = offset.divided(stride)
        if index is not None and not _steered(key):
            holds = node if sign < 0 else space.negate(node)
            out.append(Comparison(holds, load, str(load.args[0]), stride, index, key))
    return out


def _steered(key: Poly) -> bool:
    """A key that moves with a loop or a choice is no key of one search."""
    return any(n.op in ("carry", "trip", "exit", "ite") for n in key.nodes())


def inside(parts: Iterable[Part]) -> Iterator[Node]:
    """Every node in some expressions, to any depth, each once."""
    seen: set[Node] = set()
    todo: list[Node] = []
    for part in parts:
        todo += [part] if isinstance(part, Node) else part.nodes() if isinstance(part, Poly) else ()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        for arg in node.args:
            if isinstance(arg, Node):
                todo.append(arg)
            elif isinstance(arg, Poly):
                todo += arg.nodes()


# the proof --------------------------------------------------------------------------------------------------------


@dataclass
class RoundProof:
    """Proofs of one kernel's rounds; rounds that differ in nothing but their number are proved once."""

    space: Space
    _done: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.row = self.space.leaf("opaque", 0)
        self.prover = Prover(self.space, _meaning)

    def rounds(self, one: Round, first: tuple[Poly, Poly], running: Sequence[Poly], halves: bool) -> bool:
        """Every such round keeps L <= r <= H, and halves H - L where asked; first: L and H at first."""
        shifts = shifts_of(one)
        if shifts is None:
            return False
        low, high = first[0] + shifts[0], first[1] + shifts[1]
        # The key is not below the boundary before `low`, if there is one, and is below that at `high` or before it.
        lows = [low, low - 1] if (low.const or 0) > 0 else [low]
        return any(
            self._keeps(one, shifts, (low, least), (high, most), running, halves)
            for least in lows for most in (high - 1, high)
        )  # fmt: skip

    def _keeps(
        self,
        one: Round,
        shifts: tuple[int, int],
        lows: tuple[Poly, Poly],
        highs: tuple[Poly, Poly],
        running: Sequence[Poly],
        halves: bool,
    ) -> bool:
        key = (one, shifts, lows, highs, tuple(running), halves)
        if key not in self._done:
            self._done[key] = self._prove(one, shifts, lows, highs, running, halves)
        return self._done[key]

    def _prove(
        self,
        one: Round,
        shifts: tuple[int, int],
        lows: tuple[Poly, Poly],
        highs: tuple[Poly, Poly],
        running: Sequence[Poly],
        halves: bool,
    ) -> bool:
        row, index = self.row, one.test.index
        low, high = one.low + shifts[0], one.high + shifts[1]
        (low_first, least), (high_first, most) = lows, highs
        facts = [row - low, high - row, low - low_first, high_first - high, row - low_first, most - row, *running]
        mask = one.test.mask
        on, off = facts_of([mask] if mask else []), facts_of([self.space.negate(mask)] if mask else [])
        # What is read is a boundary, so that it says where r is.
        if not all(self.prover.proves(goal, [*facts, *on]) for goal in (index - least, most - index)):
            return False
        cases = [(True, [*facts, *on, row - index - 1]), (False, [*facts, *on, index - row])]
        if mask is not None:
            cases += [(value, [*facts, *off]) for value in (True, False)]
        for value, known in cases:
            after = self._decided(one, value)
            low_after, high_after = after[0] + shifts[0], after[1] + shifts[1]
            goals = [row - low_after, high_after - row, low_after - low_first, high_first - high_after]
            goals += [(high - low) - (high_after - low_after) * 2] if halves else []
            if not all(self.prover.proves(goal, known) for goal in goals):
                return False
        return True

    def _decided(self, one: Round, value: bool) -> tuple[Poly, Poly]:
        """The values after the round, with the comparison decided."""
        test, space = one.test.node, self.space
        said = {test: space.true if value else space.false, space.negate(test): space.false if value else space.true}
        rewriter = Rewriter(space, said.get)
        return rewriter.poly(one.low_after), rewriter.poly(one.high_after)

    def ends(self, one: Round, condition: Node) -> bool:
        """Where the loop's test fails, L >= H."""
        shifts = shifts_of(one)
        over = facts_of([self.space.negate(condition)])
        if shifts is None or not over:
            return False
        return self.prover.proves((one.low + shifts[0]) - (one.high + shifts[1]), over)


def _meaning(node: Node) -> list[Poly]:
    """Bounds of a node by itself. Scalars count as not negative, as everywhere."""
    me = Poly({(node,): 1})
    out = [me - node.low] if node.low is not None else [me] if node.op == "sym" else []
    return out + ([-me + node.high] if node.high is not None else [])


def shifts_of(one: Round) -> tuple[int, int] | None:
    """What turns the low value into L (m + 1 after a boundary not above the key) and the high one into H (m after one
    above it)."""
    up = _step(one.low_after, one.test.index, (0, 1))
    down = _step(one.high_after, one.test.index, (0, -1))
    return None if up is None or down is None else (1 - up, -down)


def _step(after: Poly, index: Poly, wanted: tuple[int, int]) -> int | None:
    """How far from the index that was read one of the values chosen between lies."""
    for branch in _branches(after):
        gap = (branch - index).const
        if gap in wanted:
            return gap
    return None


def _branches(poly: Poly) -> Iterator[Poly]:
    """What nested choices choose between."""
    node = poly.node
    if node is None or node.op != "ite":
        yield poly
        return
    for arg in node.args[1:]:
        if isinstance(arg, Poly):
            yield from _branches(arg)


# loops ------------------------------------------------------------------------------------------------------------


def loop_searches(space: Space, loops: Mapping[int, Loop]) -> list[Search]:
    """Searches that loops make, as far as they are proved."""
    proof = RoundProof(space)
    found = [_loop(space, proof, loop) for loop in loops.values()]
    return [search for search in found if search is not None]


def _loop(space: Space, proof: RoundProof, loop: Loop) -> Search | None:
    parts: list[Part] = [after for _, after in loop.carried.values()]
    if loop.condition is not None:
        parts.append(loop.condition)
    tests = [t for n in inside(parts) for t in comparisons(space, n) if _moves(loop, t.index)]
    for test in sorted(tests, key=lambda t: t.node.uid):
        for attempt in (_bisects, _walks, _counts):
            found = attempt(space, proof, loop, test)
            if found is not None:
                return found
    return None


def _bisects(space: Space, proof: RoundProof, loop: Loop, test: Comparison) -> Search | None:
    """Two carried values close in on the row."""
    rounds = None if loop.trip.high is None or loop.condition is not None else loop.trip.high + 1
    running = facts_of([loop.condition] if loop.condition is not None else [])
    for low, (low_first, low_after) in loop.carried.items():
        for high, (high_first, high_after) in loop.carried.items():
            one = Round(test, poly_of(low), poly_of(high), low_after, high_after)
            shifts = shifts_of(one) if low is not high else None
            if shifts is None or not proof.rounds(one, (low_first, high_first), running, rounds is not None):
                continue
            if rounds is not None or loop.condition is not None and proof.ends(one, loop.condition):
                return _search(space, test, loop, low_first + shifts[0], high_first + shifts[1], rounds)
    return None


def _walks(space: Space, proof: RoundProof, loop: Loop, test: Comparison) -> Search | None:
    """Goes on while the boundary is not above the key, one boundary at a time, at most as far as another test says."""
    condition, trip = loop.condition, poly_of(loop.trip)
    if condition is None or _moves(loop, test.index - trip):
        return None
    parts = [p for p in (condition.args if condition.op == "and" else (condition,)) if isinstance(p, Node)]
    others = [p for p in parts if p is not test.node]
    if len(others) == len(parts) or len(others) > 1:
        return None
    start = test.index - trip
    if not others:
        return _search(space, test, loop, start, None, None)
    bound = next(others[0].polys()) + trip + 1 if others[0].op == "ge" else trip
    return None if _moves(loop, bound) else _search(space, test, loop, start, start + bound, None)


def _counts(space: Space, proof: RoundProof, loop: Loop, test: Comparison) -> Search | None:
    """Counts the boundaries of an interval that are not above the key."""
    start = test.index - poly_of(loop.trip)
    if loop.lower is None or loop.upper is None or loop.step != Poly.of(1) or _moves(loop, start) or test.mask:
        return None
    counted = space.choose(test.node, Poly.of(1), Poly.of(0))
    for node, (_, after) in loop.carried.items():
        if after in (poly_of(node) + counted, space.choose(test.node, poly_of(node) + 1, poly_of(node))):
            return _search(space, test, loop, start, start + loop.upper - loop.lower, None)
    return None


def _moves(loop: Loop, poly: Poly) -> bool:
    """Something that the loop changes is in it."""
    return bool(poly.leaves & {loop.trip, *loop.carried})


def _search(space: Space, test: Comparison, loop: Loop, first: Poly, last: Poly | None, rounds: int | None) -> Search:
    return Search(test.arg, test.key, loop.line, loop.ident, first, last, rounds, tests_of(space, test))


def tests_of(space: Space, test: Comparison) -> frozenset[Node]:
    """The comparison and the mask of what it compares, either way round."""
    both = [test.node] + ([test.mask] if test.mask is not None else [])
    return frozenset(both) | {space.negate(n) for n in both}


def poly_of(node: Node) -> Poly:
    return Poly({(node,): 1})
