"""Integer expressions of a kernel: interned nodes and polynomials over them.

A `Poly` is a sum of integer coefficients times products of `Node`s. A node is a leaf (scalar argument, program id, lane
of a tensor dimension, trip of a loop) or an operation that is not polynomial (division, minimum, choice, loaded value).
Truth values are nodes too ("ge": poly >= 0, "eq": poly == 0, and, or, not). Values are mathematical integers: that no
machine width was exceeded is a separate obligation (`Access.narrow`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Union

Monomial = tuple["Node", ...]
Part = Union["Poly", "Node", str, int, None]
SEARCHED = frozenset({"found", "probe"})
LEAVES = SEARCHED | {"sym", "pid", "grid", "lane", "trip", "carry", "exit", "opaque", "obool", "load", "last"}


class Node:
    """One interned symbol or operation. Compare with `is`; `low` and `high` are constant bounds or None."""

    __slots__ = ("args", "high", "leaves", "low", "op", "uid")

    def __init__(self, uid: int, op: str, args: tuple[Part, ...]) -> None:
        self.uid, self.op, self.args = uid, op, args
        self.low: int | None = None
        self.high: int | None = None
        leaves: set[Node] = {self} if op in LEAVES else set()
        for arg in args:
            if isinstance(arg, Poly):
                leaves.update(*(n.leaves for m in arg.terms for n in m))
            elif isinstance(arg, Node):
                leaves |= arg.leaves
        self.leaves: frozenset[Node] = frozenset(leaves)

    def polys(self) -> Iterator[Poly]:
        """Polynomial operands."""
        return (a for a in self.args if isinstance(a, Poly))

    def __repr__(self) -> str:
        return f"{self.op}{list(self.args)}"


class Poly:
    """Immutable polynomial with integer coefficients."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._hash: int | None = None

    @staticmethod
    def of(value: int) -> Poly:
        """A constant."""
        return Poly({(): value})

    @property
    def const(self) -> int | None:
        """The value of a constant, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def node(self) -> Node | None:
        """The node, where this is one node with coefficient 1."""
        if len(self.terms) == 1:
            ((m, c),) = self.terms.items()
            if c == 1 and len(m) == 1:
                return m[0]
        return None

    def nodes(self) -> set[Node]:
        """Nodes of the monomials, not what is inside of them."""
        return {n for m in self.terms for n in m}

    @property
    def leaves(self) -> frozenset[Node]:
        """Every leaf in it, to any depth."""
        return frozenset().union(*(n.leaves for n in self.nodes()))

    def order(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """A key that sorts polynomials the same way in every run."""
        return tuple(sorted((tuple(n.uid for n in m), c) for m, c in self.terms.items()))

    def coefficient(self, node: Node) -> Poly:
        """What multiplies `node` (its square counts as node times node)."""
        out: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            if node in m:
                i = m.index(node)
                out[m[:i] + m[i + 1 :]] = c
        return Poly(out)

    def divided(self, by: Poly) -> Poly | None:
        """Exact quotient by a single term, or None."""
        if len(by.terms) != 1:
            return by_itself(self, by)
        ((m0, c0),) = by.terms.items()
        out: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            rest = list(m)
            for n in m0:
                if n not in rest:
                    return None
                rest.remove(n)
            if c % c0:
                return None
            out[tuple(rest)] = c // c0
        return Poly(out)

    def __add__(self, other: Poly | int) -> Poly:
        terms = dict(self.terms)
        for m, c in _poly(other).terms.items():
            terms[m] = terms.get(m, 0) + c
        return Poly(terms)

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Poly | int) -> Poly:
        return self + (-_poly(other))

    def __mul__(self, other: Poly | int) -> Poly:
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in _poly(other).terms.items():
                m = tuple(sorted(m1 + m2, key=_uid)) if m1 and m2 else m1 or m2
                terms[m] = terms.get(m, 0) + c1 * c2
        return Poly(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __repr__(self) -> str:
        return " + ".join("*".join([str(c), *map(repr, m)]) for m, c in self.terms.items()) or "0"


def _made_of(node: Node) -> tuple[Part, ...]:
    """Operands that the value itself is made of. What a search found is one thing, whatever it took to find it."""
    if node.op in SEARCHED:
        return ()
    return node.args[1:2] if node.op == "load" else node.args[1:] if node.op == "ite" else node.args


def addressing(poly: Poly, through_loads: bool = True) -> set[Node]:
    """Leaves that an integer is made of; what only chooses between values (conditions, masks) is left out, and so are
    the addresses of loaded values unless `through_loads`."""
    seen: set[Node] = set()
    todo = poly.nodes()
    while todo:
        node = todo.pop()
        seen.add(node)
        parts = _made_of(node) if through_loads or node.op != "load" else ()
        todo |= {n for p in parts if isinstance(p, Poly) for n in p.nodes()} - seen
    return {node for node in seen if node.op in LEAVES}


def by_itself(a: Poly, b: Poly) -> Poly | None:
    """Quotient of a polynomial by a multiple of itself with an integer factor, or None."""
    if not b.terms or a.terms.keys() != b.terms.keys():
        return None
    factors = {c / b.terms[m] for m, c in a.terms.items()}
    factor = factors.pop()
    return Poly.of(int(factor)) if not factors and factor == int(factor) else None


def _uid(node: Node) -> int:
    return node.uid


def _poly(value: Poly | int) -> Poly:
    return value if isinstance(value, Poly) else Poly.of(value)


def interval(poly: Poly) -> tuple[int | None, int | None]:
    """Constant bounds from those of the nodes; None where there is none."""
    low: int | None = 0
    high: int | None = 0
    for m, c in poly.terms.items():
        lo, hi = _product(m)
        lo, hi = (lo, hi) if c > 0 else (hi, lo)
        low = None if low is None or lo is None else low + c * lo
        high = None if high is None or hi is None else high + c * hi
    return low, high


def _product(m: Monomial) -> tuple[int | None, int | None]:
    if len(m) == 1:
        return m[0].low, m[0].high
    low, high = 1, 1
    for n in m:
        if n.low is None or n.low < 0:
            return None, None
        low *= n.low
    for n in m:
        if n.high is None:
            return low, None
        high *= n.high
    return low, high
