"""Reads and writes of one argument in one launch that may meet (CW304).

No barrier stands between a plain load and a later plain store: other warps of the same program may be ahead or behind,
and other programs run at any time. A load and a store at the same index of the same lane are in order; all else is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.bounds import Bounds, facts_at, poly_of
from capwise.kernel_access.linear import Prover
from capwise.kernel_access.printing import text
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Poly

_MOVES = {"lane": "a lane", "trip": "an iteration", "pid": "a program"}


@dataclass(frozen=True)
class Overlap:
    """A load and a store that meet: surely (`refuted`), or unless `needs` holds."""

    load: Access
    store: Access
    verdict: str
    needs: str


def overlaps(accesses: Sequence[Access]) -> list[Overlap]:
    """Pairs of one argument's accesses that are not shown to be disjoint."""
    loads = _distinct(a for a in accesses if a.kind == "load" and not a.reason)
    stores = _distinct(a for a in accesses if a.kind == "store" and not a.reason)
    found = [_judge(load, store) for load in loads for store in stores]
    return [overlap for overlap in found if overlap is not None]


def _distinct(accesses: Iterator[Access]) -> list[Access]:
    seen: dict[tuple[Poly, tuple[Node, ...], Node | None], Access] = {}
    for access in accesses:
        seen.setdefault((access.poly, access.guards, access.mask), access)
    return list(seen.values())


def _judge(load: Access, store: Access) -> Overlap | None:
    space, table = load.space, load.table
    if load.poly == store.poly:
        if _of_program(load.poly):
            return None
        return Overlap(load, store, "assumed", "a single program, or one program that writes")
    pair = _Pair(space, table, load, store)
    same_program = load.barrier == store.barrier and not pair.disjoint(False)
    if not same_program and pair.disjoint(True):
        return None
    witness = pair.witness(same_program)
    if witness:
        return Overlap(load, store, "refuted", witness)
    if not same_program and pair.rows_agree():
        return None
    where = f"what line {load.line} reads and line {store.line} writes"
    return Overlap(load, store, "assumed", f"{where} are disjoint: {text(load.poly)} and {text(store.poly)}")


def _of_program(poly: Poly) -> bool:
    """The offset differs from program to program."""
    return any(leaf.op == "pid" for leaf in poly.leaves)


class _Pair:
    def __init__(self, space: Space, table: Mapping[int, Loop], load: Access, store: Access) -> None:
        self.space, self.table, self.load, self.store = space, table, load, store
        self.facts = facts_at(load)

    def disjoint(self, programs: bool) -> bool:
        """No lane and iteration of the load meets one of the store: of one program, or of any two."""
        if programs and not _of_program(self.load.poly) and not _of_program(self.store.poly):
            return False
        prime = Rewriter(self.space, lambda n: self._primed(n, programs))
        bounds = Bounds(self.space, self.table)
        gap = self.load.poly - prime.poly(self.store.poly)
        other = [prime.poly(f) for f in facts_at(self.store)]
        prover = Prover(self.space, lambda n: self._meaning(bounds, n, prime))
        return prover.contradiction([*self.facts, *other, gap, -gap], 2)

    def _primed(self, node: Node, programs: bool) -> Poly | None:
        """Another lane, another iteration, maybe another program."""
        if node.op == "lane":
            dim, size = node.args
            assert isinstance(dim, int) and isinstance(size, int)
            return self.space.lane(dim + 100, size)
        if node.op in ("trip", "carry") and node.args[0] in self.table:
            return self.space.leaf(node.op, *node.args, "other", low=node.low, high=node.high)
        if programs and node.op == "pid":
            return self.space.leaf("pid", node.args[0], "other", low=0)
        return None

    def _meaning(self, bounds: Bounds, node: Node, prime: Rewriter) -> Sequence[Poly]:
        if node.op == "trip" and node.args[-1] == "other":
            original = self.space.make("trip", node.args[0])
            return [prime.poly(p) for p in bounds.meaning(original)]
        if node.op == "carry" and node.args[-1] == "other":
            return []
        return bounds.meaning(node)

    def witness(self, same_program: bool) -> str:
        """An index whose neighbour's write is this read: L(v) == S(v + k) for whole k in range, and both happen.

        Within a program the neighbour is a lane or an iteration; else the next program, at some lane of it."""
        gap = self.load.poly - self.store.poly
        nodes = sorted((n for n in self.store.poly.nodes() if n.op in _MOVES), key=lambda n: n.uid)
        tries: list[dict[Node, int]] = []
        if same_program:
            tries += [{n: k} for n in nodes if n.op != "pid" and (k := self._shift(gap, n))]
        for program in (n for n in nodes if n.op == "pid"):
            for step in (1, -1):
                rest = gap - self.store.poly.coefficient(program) * step
                if not rest.terms:
                    tries.append({program: step})
                tries += [{program: step, n: k} for n in nodes if n.op == "lane" and (k := self._shift(rest, n))]
        found = next((shift for shift in tries if self._both_happen(shift)), None)
        return self._story(found) if found else ""

    def _shift(self, gap: Poly, node: Node) -> int:
        """By how much the node must move to close the gap alone; 0 where it cannot."""
        quotient = gap.divided(self.store.poly.coefficient(node)) if gap.terms else None
        k = quotient.const if quotient is not None else None
        return k if k and (node.high is None or abs(k) <= node.high) else 0

    def _both_happen(self, shift: Mapping[Node, int]) -> bool:
        moved = Rewriter(self.space, lambda n: poly_of(n) + shift[n] if n in shift else None)
        bounds = Bounds(self.space, self.table)
        facts = [*facts_at(self.store), *(f for n in shift for f in bounds.meaning(n))]
        return not Prover(self.space, bounds.meaning).contradiction([*self.facts, *map(moved.poly, facts)], 2)

    def _story(self, shift: Mapping[Node, int]) -> str:
        node, k = next(iter(shift.items()))
        return (
            f"{_MOVES[node.op]} reads at line {self.load.line} what the one {abs(k)} {'after' if k > 0 else 'before'} "
            f"it writes at line {self.store.line}, with no order between them"
        )

    def rows_agree(self) -> bool:
        """Load and store of a program stay in the same rows, so that programs meet only if they share a row."""
        gap = self.load.poly - self.store.poly
        return not any(n.op in ("pid", "load", "exit", "carry") for n in gap.leaves)
