"""Control flow of one region: block order, dominators, and the condition under which a block runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from capwise.kernel_access.parse import Block
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node


@dataclass
class Flow:
    """Blocks in an order where predecessors come first, and immediate dominators by label.

    `cyclic` is set when a branch goes back: nothing else is filled in then."""

    blocks: dict[str, Block]
    order: tuple[str, ...] = ()
    dominator: dict[str, str] = field(default_factory=dict)
    predecessors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cyclic: bool = False


def flow(blocks: Sequence[Block]) -> Flow:
    """The graph of a region; the first block is the entry. Unreachable blocks are left out."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    entry = blocks[0].label
    graph.add_node(entry)
    for block in blocks:
        for label, _ in block.ops[-1].successors if block.ops else ():
            graph.add_edge(block.label, label)
    graph = graph.subgraph({entry} | nx.descendants(graph, entry))
    by_label = {block.label: block for block in blocks}
    if not nx.is_directed_acyclic_graph(graph):
        return Flow(by_label, cyclic=True)
    order = tuple(nx.lexicographical_topological_sort(graph, key=list(by_label).index))
    dominator = {k: v for k, v in nx.immediate_dominators(graph, entry).items() if k != entry and v is not None}
    return Flow(by_label, order, dominator, {label: tuple(graph.predecessors(label)) for label in order})


class Conditions:
    """Conditions on edges in, conditions on blocks out.

    A block runs iff its immediate dominator runs and one of the ways from there is taken; so the condition of a block
    is a conjunction along the dominator tree, and the join of a fork adds nothing."""

    def __init__(self, space: Space, graph: Flow) -> None:
        self._space, self._graph = space, graph
        self._edges: dict[tuple[str, str], Node] = {}
        self._region: dict[str, Node] = {}

    def edge(self, source: str, target: str, condition: Node) -> None:
        """The branch from source to target is taken iff the condition holds (two edges to one target: either)."""
        old = self._edges.get((source, target), self._space.false)
        self._edges[source, target] = self._space.either([old, condition])

    def enter(self, label: str) -> Node:
        """Condition of the block, all of whose predecessors have their edges."""
        if label in self._graph.dominator:
            arrivals = [self.arrival(source, label) for source in self._graph.predecessors[label]]
            self._region[label] = self._space.either(arrivals)
        return self._space.both(self._chain(label, None))

    def arrival(self, source: str, label: str) -> Node:
        """That control comes to `label` from `source`, given that the dominator of `label` runs."""
        edge = self._edges.get((source, label), self._space.false)
        return self._space.both([edge, *self._chain(source, self._graph.dominator[label])])

    def _chain(self, label: str, stop: str | None) -> list[Node]:
        out = []
        while label != stop and label in self._graph.dominator:
            out.append(self._region[label])
            label = self._graph.dominator[label]
        return out
