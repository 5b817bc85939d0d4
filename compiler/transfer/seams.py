"""Seams that follow from seams: an eager op sees live extents, and so must whatever stands between it and a piece."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import networkx as nx
import torch
from torch import fx

from capwise.axes import Space
from capwise.facts import fact, facts, has_fact, is_tensor, val
from capwise.program import is_free, is_part


def levels_of(order: nx.DiGraph, without: Collection[fx.Node] = ()) -> dict[fx.Node, int]:
    """The level of every op: the least that its predecessors allow, pieces at odd levels, seams at even ones.

    Args:
        order: every op that does work, in graph order, with an edge to each that must come after it.
        without: seams that are counted as captured.
    """
    captured = set(without)
    eager = {node: facts(node).eager and node not in captured for node in order}
    levels: dict[fx.Node, int] = {}
    for node, is_eager in eager.items():
        lowest = 0 if is_eager else 1
        for before in order.predecessors(node):
            lowest = max(lowest, levels[before] + int(eager[before] != is_eager))
        levels[node] = lowest
    return levels


def is_eager_view(node: fx.Node) -> bool:
    """A view that only live extents make right. It costs no launch, so it is made in every step that reads it."""
    return facts(node).eager and is_free(node)


def reads_live_only(space: Space, node: fx.Node) -> bool:
    """Whether an op reads what exists at live extents only: an eager view, or an eager result whose live part could not
    be told from its tail in a buffer at the captured extent."""
    return any(
        is_eager_view(a) or facts(a).eager and _unsliceable(space, a)
        for a in node.all_input_nodes
        if isinstance(val(a), (torch.Tensor, tuple, list))
    )


def unsliceable(space: Space, graph: fx.Graph) -> Iterator[fx.Node]:
    """Captured values whose live part cannot be told, though a seam or the caller reads it: they are made eagerly."""
    for node in graph.nodes:
        is_seam = node.op == "call_function" and facts(node).eager and not is_free(node)
        if node.op != "output" and not is_seam:
            continue
        for source in anchors(node):
            yield from _captured(space, source)
    for node in returned(graph):
        if isinstance(node, fx.Node) and is_tensor(node) and node.op == "call_function" and is_free(node):
            yield from _captured(space, node)


def _captured(space: Space, node: fx.Node) -> Iterator[fx.Node]:
    if node.op != "call_function" or facts(node).eager or not _unsliceable(space, node):
        return
    yield node
    if is_part(node):
        yield node.args[0]  # type: ignore[misc]


def _unsliceable(space: Space, node: fx.Node) -> bool:
    return has_fact(node) and any(space.is_opaque(a) for a in fact(node).axes)


def anchors(node: fx.Node) -> list[fx.Node]:
    """The nodes that do work (or graph inputs) behind a node's arguments, seen through views and host arithmetic."""
    found: dict[fx.Node, None] = {}
    stack = list(node.all_input_nodes)
    while stack:
        arg = stack.pop()
        if arg.op == "call_function" and is_free(arg):
            stack.extend(arg.all_input_nodes)
        else:
            found[arg] = None
    return list(found)


def returned(graph: fx.Graph) -> list[object]:
    """What the graph returns, in order."""
    values = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return list(values) if isinstance(values, (tuple, list)) else [values]
