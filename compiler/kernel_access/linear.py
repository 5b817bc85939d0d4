"""Proof of linear inequalities over integers: Fourier and Motzkin's elimination with rounding, small systems only.

Products of symbols count as symbols of their own. A proof that is not found says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from capwise.kernel_access.rewrite import substitute
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Monomial, Node, Poly

Row = dict[Monomial, int]
_MOST_ROWS = 160


def facts_of(nodes: Sequence[Node]) -> list[Poly]:
    """The polynomials that are >= 0 when the conditions hold. Disjunctions and inequalities (!=) give nothing."""
    out: list[Poly] = []
    for node in nodes:
        polys = list(node.polys())
        if node.op == "ge":
            out += polys
        elif node.op == "eq":
            out += [*polys, *(-p for p in polys)]
        elif node.op == "and":
            out += facts_of([a for a in node.args if isinstance(a, Node)])
    return out


def infeasible(polys: Sequence[Poly]) -> bool:
    """No integers make every polynomial >= 0 (monomials taken as independent). False where not shown."""
    rows = {_key(r): r for r in map(_tightened, (dict(p.terms) for p in polys))}
    while rows:
        if any(not _symbols(r) and r.get((), 0) < 0 for r in rows.values()):
            return True
        unknown = {m for r in rows.values() for m in r if m}
        if not unknown:
            return False
        target = min(unknown, key=lambda m: _cost(list(rows.values()), m))
        rows = _eliminate(list(rows.values()), target)
        if len(rows) > _MOST_ROWS:
            return False
    return False


def _symbols(row: Row) -> list[Monomial]:
    return [m for m in row if m]


def _key(row: Row) -> frozenset[tuple[Monomial, int]]:
    return frozenset(row.items())


def _cost(rows: list[Row], target: Monomial) -> tuple[int, tuple[int, ...]]:
    above = sum(r.get(target, 0) > 0 for r in rows)
    below = sum(r.get(target, 0) < 0 for r in rows)
    return above * below - above - below, tuple(n.uid for n in target)


def _tightened(row: Row) -> Row:
    """Divide by the common factor of the unknowns, rounding the constant down."""
    factor = 0
    for m, c in row.items():
        if m:
            factor = gcd(factor, c)
    if factor <= 1:
        return row
    return {m: c // factor for m, c in row.items() if c // factor or not m}


def _eliminate(rows: list[Row], target: Monomial) -> dict[frozenset[tuple[Monomial, int]], Row]:
    out = {_key(r): r for r in rows if target not in r}
    for up in (r for r in rows if r.get(target, 0) > 0):
        for down in (r for r in rows if r.get(target, 0) < 0):
            a, b = -down[target], up[target]
            mixed: Row = {}
            for row, factor in ((up, a), (down, b)):
                for m, c in row.items():
                    mixed[m] = mixed.get(m, 0) + c * factor
            tight = _tightened({m: c for m, c in mixed.items() if c})
            out[_key(tight)] = tight
    return out


class Prover:
    """Proves `poly >= 0` from facts, what nodes mean by themselves (`meaning`), and a split over choices."""

    def __init__(self, space: Space, meaning: Callable[[Node], Sequence[Poly]]) -> None:
        self.space, self.meaning = space, meaning

    def proves(self, goal: Poly, facts: Sequence[Poly], depth: int = 4) -> bool:
        """goal >= 0 wherever every fact is >= 0."""
        return self.contradiction([*facts, -goal - 1], depth)

    def contradiction(self, facts: Sequence[Poly], depth: int = 4) -> bool:
        """The facts cannot all be >= 0."""
        closed = list(facts)
        seen: set[Node] = set()
        for _ in range(3):
            fresh = {n for p in closed for n in p.nodes()} - seen
            seen |= fresh
            for node in sorted(fresh, key=lambda n: n.uid):
                closed += self.meaning(node)
                closed += self._quotient(node, facts, depth)
        choice = next((n for n in sorted(seen, key=lambda n: n.uid) if n.op == "ite"), None)
        if choice is None or depth == 0:
            return infeasible(closed)
        return all(self.contradiction(side, depth - 1) for side in self._sides(choice, facts))

    def _sides(self, choice: Node, facts: Sequence[Poly]) -> list[list[Poly]]:
        condition, a, b = choice.args
        assert isinstance(condition, Node) and isinstance(a, Poly) and isinstance(b, Poly)
        pairs = ((condition, a), (self.space.negate(condition), b))
        return [[*(substitute(self.space, f, {choice: v}) for f in facts), *facts_of([c])] for c, v in pairs]

    def _quotient(self, node: Node, facts: Sequence[Poly], depth: int) -> list[Poly]:
        """What division by a positive constant says: k*q <= a <= k*q + k - 1 where a >= 0, looser where not known."""
        if node.op not in ("div", "rem", "floor") or depth == 0:
            return []
        a, b = node.polys()
        k = b.const
        if not k or k < 0:
            return []
        me = Poly({(node,): 1})
        natural = node.op == "floor" or self.proves(a, [f for f in facts if node not in f.nodes()], depth - 1)
        if node.op == "rem":
            return [me + (0 if natural else k - 1), -me + (k - 1)]
        slack = 0 if natural else k - 1
        return [a - me * k + slack, me * k - a + (k - 1)]
