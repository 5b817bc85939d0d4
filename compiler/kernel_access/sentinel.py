"""Does a tail value keep padded programs from touching anything that lives?

A padded program is one whose program id is past the live extent, so that what it reads of the given arguments at that
id is the tail value (what a search or a loop reads there may be live). Where it searches boundaries for its own id,
that id is not below the last of them, and no boundary is above the last. It may store to rows of its own (rows that the
same id names are tail rows too); it must not store through a loaded slot, to rows that boundaries name, or to what
programs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from capwise.kernel_access.access import Access
from capwise.kernel_access.bounds import Bounds
from capwise.kernel_access.follow import Followed
from capwise.kernel_access.linear import Prover, facts_of
from capwise.kernel_access.printing import text
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.summary import KernelSummary
from capwise.kernel_access.symbolic import Node, Poly, addressing

Tail = int | Literal["last"]
Index = Literal["pid", "lane"]


@dataclass(frozen=True)
class Proof:
    """verdict: proved, refuted or unknown. path: for refuted, the store and the conditions it happens under; for
    unknown, what was not decided; for proved, what keeps each store from happening."""

    verdict: Literal["proved", "refuted", "unknown"]
    path: tuple[str, ...]


def prove_sentinel(
    summary: KernelSummary, tails: Mapping[str, Tail], own: tuple[str, ...] = (), by: Index = "pid"
) -> Proof:
    """With these tail values a padded program stores nothing to live rows or owned state.

    tails: argument name to the integer that its tail holds, or "last" for boundaries whose tail repeats the last live
    one. own: arguments whose rows a program id names but which are owned all the same (a state addressed by request).
    by: "lane" where one program has all rows, a lane each: then a padded lane is meant.
    Raises: KeyError for an argument that the kernel does not have."""
    for name in tails:
        if name not in summary.signature:
            raise KeyError(name)
    if not summary.accesses and summary.unknown:
        return Proof("unknown", summary.unknown)
    judge = _Judge(summary, tails, own, by)
    proofs = [judge.store(a) for a in summary.accesses if a.kind != "load"]
    for verdict in ("refuted", "unknown"):
        lines = tuple(line for proof in proofs if proof.verdict == verdict for line in proof.path)
        if lines:
            return Proof("refuted" if verdict == "refuted" else "unknown", lines)
    return Proof("proved", tuple(dict.fromkeys(line for proof in proofs for line in proof.path)))


def _row_ids(offset: Poly, by: Index) -> set[Node]:
    """Program ids (or lanes) in the offset of a read at the program's own row; none where a loop or memory says what is
    read."""
    where = addressing(offset)
    if any(n.op in ("trip", "carry", "exit", "load", "found") for n in where):
        return set()
    return {n for n in where if n.op == by}


class _Judge:
    def __init__(self, summary: KernelSummary, tails: Mapping[str, Tail], own: tuple[str, ...], by: Index) -> None:
        self.space: Space = summary.space
        self.loops, self.tails, self.own, self.by = summary.loops, tails, own, by
        written = frozenset(a.arg for a in summary.accesses if a.kind != "load" and a.arg)
        self.follow = Followed(summary.loops, written)
        self.tail = Rewriter(self.space, self._tail)
        tailed = [a.poly for a in summary.accesses if a.kind == "load" and a.arg in tails]
        self.rows = {n for poly in tailed for n in _row_ids(poly, by)}
        self.bounds = Bounds(self.space, self.loops)
        searches = [s for s in summary.searches if tails.get(s.arg) == "last" and _row_ids(s.key, by)]
        self.beyond = [s.key - self.space.leaf("last", s.arg) for s in searches]

    def _tail(self, node: Node) -> Poly | None:
        """What a load of a tailed argument gives; where its mask may be off, its default stays possible."""
        arg = str(node.args[0]) if node.op == "load" else ""
        if arg not in self.tails:
            return None
        if not _row_ids(next(node.polys()), self.by):
            return None
        value = self.tails[arg]
        poly = self.space.leaf("last", arg) if value == "last" else Poly.of(value)
        _, _, mask, other = node.args
        if isinstance(mask, Node) and isinstance(other, Poly):
            return self.space.choose(self.tail.truth(mask), poly, self.tail.poly(other))
        return poly

    def store(self, access: Access) -> Proof:
        """One store or atomic."""
        where = f"{access.arg or 'an unknown pointer'} at line {access.line}"
        if access.reason:
            return Proof("unknown", (f"{where}: {access.reason}",))
        condition = self.tail.truth(access.condition)
        if self._never(access, condition):
            return Proof("proved", (f"{where}: not reached",))
        offset = self.tail.poly(access.poly)
        if access.arg not in self.own and self._own_row(access, offset):
            return Proof("proved", (f"{where}: rows of the padded program itself",))
        shown = f"{where} is written at {text(offset)}"
        if condition is not self.space.true:
            shown += f" when {text(condition)}"
        return Proof(self._reachable(access, condition), (shown,))

    def _never(self, access: Access, condition: Node) -> bool:
        """Conditions contradict each other, or a loop around has no iteration."""
        if condition is self.space.false:
            return True
        facts = [*facts_of([condition]), *self.beyond]
        for ident in access.loops:
            loop = self.loops[ident]
            if loop.upper is not None:
                facts.append(self.tail.poly(loop.upper - loop.index - 1))
            elif loop.condition is not None:
                facts += self._entry(loop.ident, access)
        return Prover(self.space, self._meaning).contradiction(facts, 3)

    def _entry(self, ident: int, access: Access) -> list[Poly]:
        """The test of a while loop at its first iteration, where the access stands behind it."""
        loop = self.loops[ident]
        if loop.condition is None or not {loop.condition} & set(access.guards):
            return []
        first: dict[Node, Poly] = {n: init for n, (init, _) in loop.carried.items()}
        first[loop.trip] = Poly.of(0)
        entered = Rewriter(self.space, first.get).truth(loop.condition)
        test = self.tail.truth(entered)
        return [Poly.of(-1)] if test is self.space.false else facts_of([test])

    def _meaning(self, node: Node) -> list[Poly]:
        if node.op in ("carry", "exit", "trip"):
            return [self.tail.poly(p) for p in self.bounds.meaning(node)]
        if node.op == "load" and self.beyond and self.tails.get(str(node.args[0])) == "last" and node.args[2] is None:
            return [self.space.leaf("last", str(node.args[0])) - Poly({(node,): 1})]
        return self.bounds.meaning(node)

    def _own_row(self, access: Access, offset: Poly) -> bool:
        """The ids that make the program a padded one are in the offset, and nothing that memory named was."""
        named = any(n.op in ("load", "exit", "carry", "last", "found") for n in access.poly.leaves)
        mine = {n for n in addressing(offset) if n.op == self.by}
        return not named and bool(mine) and self.rows <= mine

    def _reachable(self, access: Access, condition: Node) -> Literal["refuted", "unknown"]:
        """Refuted only where nothing undecided stands before the store."""
        parts = condition.args if condition.op == "and" else (condition,)
        plain = all(isinstance(p, Node) and (p.op in ("ge", "eq", "true", "not")) for p in parts)
        loops = all(self.follow.loop(ident) for ident in access.loops)
        return "refuted" if plain and loops and self.follow.condition(access) else "unknown"
