"""Whether an access is followed to the end: every leaf of its offset and conditions can be computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.symbolic import Node, Poly

_NEVER = frozenset({"opaque", "obool", "last"})


class Followed:
    """Answers for one kernel. `written` are the arguments its launch writes: what is loaded from those may change."""

    def __init__(self, table: Mapping[int, Loop], written: frozenset[str]) -> None:
        self.table, self.written = table, written
        self._memo: dict[Node, bool] = {}
        self._loops: dict[int, bool] = {}

    def offset(self, access: Access) -> bool:
        """The offset is exact."""
        return not access.reason and access.arg is not None and self.expression(access.poly)

    def condition(self, access: Access) -> bool:
        """Whether and how often the access happens is exact too."""
        parts = [*access.guards, *([access.mask] if access.mask else [])]
        return all(self.nodes(p.leaves) for p in parts) and all(self.loop(ident) for ident in access.loops)

    def expression(self, poly: Poly) -> bool:
        """Every leaf is followed."""
        return self.nodes(poly.leaves)

    def nodes(self, leaves: Iterable[Node]) -> bool:
        """All of these leaves are followed."""
        return all(self._leaf(leaf) for leaf in leaves)

    def _leaf(self, leaf: Node) -> bool:
        if leaf not in self._memo:
            self._memo[leaf] = True
            self._memo[leaf] = self._judge(leaf)
        return self._memo[leaf]

    def _judge(self, leaf: Node) -> bool:
        if leaf.op in _NEVER:
            return False
        if leaf.op == "load":
            return leaf.args[0] not in self.written
        if leaf.op not in ("carry", "exit"):
            return True
        ident = leaf.args[0]
        assert isinstance(ident, int)
        steps = [pair for n, pair in self.table[ident].carried.items() if n.args[:3] == leaf.args[:3]]
        whole = leaf.op == "carry" or self.loop(ident)
        return whole and all(self.expression(p) for pair in steps for p in pair)

    def loop(self, ident: int) -> bool:
        """How often a loop runs is followed."""
        if ident not in self._loops:
            self._loops[ident] = True
            loop = self.table[ident]
            polys = [p for p in (loop.lower, loop.upper, loop.step) if p is not None]
            leaves = frozenset().union(*(p.leaves for p in polys), loop.condition.leaves if loop.condition else ())
            self._loops[ident] = self.nodes(leaves)
        return self._loops[ident]
