"""Searches whose rounds are written out one after another (`tl.static_range`): no loop is left of them in the TTIR.

The rounds are found again as a chain of choices by comparisons of a boundary with one key, and proved as those of a
loop are, with two symbols for what stands before a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from capwise.kernel_access.access import Access
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.searches import (
    Comparison,
    Round,
    RoundProof,
    Search,
    comparisons,
    inside,
    poly_of,
    shifts_of,
    tests_of,
)
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Part, Poly


@dataclass(frozen=True)
class _Choice:
    """One of the two values after a round that is written out: `yes` after a boundary not above the key."""

    test: Comparison
    yes: Poly
    no: Poly


@dataclass(frozen=True)
class Unrolled:
    """A search whose rounds are written out: what it ends with, which is `shift` below the row, the values between
    rounds, and what bounds these whatever the boundaries are (None: not known)."""

    search: Search
    end: Node
    shift: int
    between: tuple[tuple[Node, Poly | None, Poly | None], ...]

    def leaves(self, space: Space) -> dict[Node, Poly]:
        """The values in leaves: "found" is the row that it ends at, "probe" any other value."""
        search, out = self.search, {}
        for node, low, high in self.between:
            op, shift = ("found", self.shift) if node is self.end else ("probe", 0)
            limits = (p + shift if p is not None else None for p in (low, high))
            out[node] = space.leaf(op, search.arg, poly_of(node) + shift, search.first, search.last, *limits) - shift
        return out


def ends_of(node: Node) -> tuple[Poly, ...]:
    """Where the search behind a leaf begins and ends."""
    return tuple(p for p in node.args[2:4] if isinstance(p, Poly))


def within(node: Node) -> list[Poly]:
    """Polynomials that are >= 0 by where the search behind a leaf moves."""
    low, high = node.args[4:6]
    out = [poly_of(node) - low] if isinstance(low, Poly) else []
    return out + ([high - poly_of(node)] if isinstance(high, Poly) else [])


def unrolled_searches(space: Space, accesses: Sequence[Access], more: Sequence[Part]) -> list[Unrolled]:
    """Searches whose rounds are written out one after another, as far as they are proved.

    more: other expressions that may hold what they end with."""
    lines = {(a.arg, a.poly): a.line for a in accesses if a.kind == "load"}
    parts: list[Part] = [p for a in accesses for p in (a.poly, a.mask, *a.guards)]
    choices = dict(_choices(space, inside([*parts, *more])))
    lows = {n: c for n, c in choices.items() if (c.yes - c.test.index).const in (0, 1) and not _is_index(c.no, c)}
    highs = {c.test.node: n for n, c in choices.items() if (c.no - c.test.index).const in (0, -1)}
    before = {node for c in lows.values() if (node := c.no.node) in lows}
    proof = RoundProof(space)
    out: list[Unrolled] = []
    for last in sorted(lows.keys() - before, key=lambda n: n.uid):
        chain = [last]
        while (node := lows[chain[0]].no.node) in lows:
            assert node is not None
            chain.insert(0, node)
        found = _Written(space, proof, choices, [(n, lows[n], highs.get(lows[n].test.node)) for n in chain]).search()
        if found is not None:
            line = lines.get((found.search.arg, lows[chain[0]].test.offset), 0)
            out.append(replace(found, search=replace(found.search, line=line)))
    return out


def _is_index(poly: Poly, choice: _Choice) -> bool:
    """Near the index that was read: the value moves on either side, so that it is not the one kept."""
    return (poly - choice.test.index).const is not None


def _choices(space: Space, nodes: Iterator[Node]) -> Iterator[tuple[Node, _Choice]]:
    tests: dict[Node, list[Comparison]] = {}
    for node in nodes:
        if node.op != "ite":
            continue
        condition, a, b = node.args
        assert isinstance(condition, Node) and isinstance(a, Poly) and isinstance(b, Poly)
        if condition not in tests:
            tests[condition] = comparisons(space, condition)
        # The boundary is loaded after the key, since its index depends on earlier ones.
        for test in tests[condition][-1:]:
            yield node, _Choice(test, a, b) if test.node is condition else _Choice(test, b, a)


@dataclass
class _Written:
    """The rounds of one value, first to last: its choice in each, and the other value's, where it is used."""

    space: Space
    proof: RoundProof
    choices: Mapping[Node, _Choice]
    chain: Sequence[tuple[Node, _Choice, Node | None]]

    def search(self) -> Unrolled | None:
        """The search, if every round is proved, with what stands before each as two symbols."""
        start = self.chain[0][2]
        if start is None or len({(c.test.arg, c.test.stride, c.test.key) for _, c, _ in self.chain}) != 1:
            return None
        first = (self.chain[0][1].no, self.choices[start].yes)
        shifts: tuple[int, int] | None = None
        rounds: list[Round] = []
        for number in range(len(self.chain)):
            one = self._round(number, first, shifts)
            shifts = shifts_of(one) if one is not None else None
            if one is None or shifts is None or not self.proof.rounds(one, first, (), True):
                return None
            rounds.append(one)
        assert shifts is not None
        test, low, high = self.chain[0][1].test, first[0] + shifts[0], first[1] + shifts[1]
        tests = frozenset(t for _, c, _ in self.chain for t in tests_of(self.space, c.test))
        found = Search(test.arg, test.key, 0, None, low, high, len(self.chain), tests)
        return Unrolled(found, self.chain[-1][0], shifts[0], self._between(first, rounds))

    def _round(self, number: int, first: tuple[Poly, Poly], shifts: tuple[int, int] | None) -> Round | None:
        low_node, choice, high_node = self.chain[number]
        earlier = self.chain[number - 1][2] if number else None
        high = first[1] if number == 0 else poly_of(earlier) if earlier is not None else None
        if high is None or (high_node is not None and self.choices[high_node].yes != high):
            return None
        if high_node is not None:
            after = poly_of(high_node)
        else:
            # Nothing uses the last round's high value: that it could be had is enough.
            assert shifts is not None
            after = self.space.choose(choice.test.node, high, choice.test.index - shifts[1])
        one = Round(choice.test, choice.no, high, poly_of(low_node), after)
        return _generic(self.space, one) if number else one

    def _between(
        self, first: tuple[Poly, Poly], rounds: Sequence[Round]
    ) -> tuple[tuple[Node, Poly | None, Poly | None], ...]:
        """Every value after a round, with the bounds that hold at first and survive every round."""
        symbols = _symbols(self.space)
        limits = [first[0], first[0] - 1, first[1], first[1] + 1]
        kept = [(k, s, t) for k in (0, 1) for s in (1, -1) for t in (limits[:2] if s > 0 else limits[2:])]
        prover = self.proof.prover
        kept = [(k, s, t) for k, s, t in kept if prover.proves((first[k] - t) * s, [])]
        while True:
            facts = [(symbols[k] - t) * s for k, s, t in kept]
            alive = [b for b in kept if all(self._survives(one, b, first, facts) for one in dict.fromkeys(rounds))]
            if len(alive) == len(kept):
                break
            kept = alive

        def limit(which: int, sign: int) -> Poly | None:
            return next((t for k, s, t in kept if (k, s) == (which, sign)), None)

        values = [(node, 0) for node, _, _ in self.chain] + [(node, 1) for _, _, node in self.chain if node is not None]
        return tuple((node, limit(which, 1), limit(which, -1)) for node, which in values)

    def _survives(
        self, one: Round, bound: tuple[int, int, Poly], first: tuple[Poly, Poly], facts: Sequence[Poly]
    ) -> bool:
        which, sign, limit = bound
        after = (one.low_after, one.high_after)[which]
        return self.proof.prover.proves((after - limit) * sign, facts)


def _symbols(space: Space) -> tuple[Poly, Poly]:
    """What stands for the two values before a round."""
    return space.leaf("opaque", -1), space.leaf("opaque", -2)


def _generic(space: Space, one: Round) -> Round | None:
    """The round with symbols for what stands before it, and for the boundary that it reads."""
    low, high = one.low.node, one.high.node
    if low is None or high is None:
        return None
    symbols: dict[Node, Poly | Node] = dict(zip((low, high), _symbols(space)))
    before, test = Rewriter(space, dict(symbols).get), one.test
    index, mask = before.poly(test.index), before.truth(test.mask) if test.mask is not None else None
    load = space.make("load", test.arg, index * test.stride, mask, None)
    node = space.ge(test.key - poly_of(load))
    after = Rewriter(space, {**symbols, test.node: node, space.negate(test.node): space.negate(node)}.get)
    renamed = Comparison(node, load, test.arg, test.stride, index, test.key)
    polys = (after.poly(p) for p in (one.low, one.high, one.low_after, one.high_after))
    return Round(renamed, *polys)
