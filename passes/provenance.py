"""Which symbols reach each value through sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from capwise.axes import as_expr
from capwise.compilation import CompilerPass
from capwise.facts import facts, val


class Provenance(CompilerPass):
    """A symbol reaches a node iff it stands in a size of what the node reads or makes, or in a host integer it takes;
    a symbol that no input carries is decided by data."""

    name = "provenance"
    gives = ("symbols",)

    def run(self, graph: fx.Graph) -> bool:
        names = self.state.space.names
        for node in graph.nodes:
            own = _symbols(val(node))
            read = set().union(*[_symbols(val(a)) for a in node.all_input_nodes])
            record = facts(node)
            record.extents = frozenset(names[s] for s in own | read if s in names)
            if node.op == "call_function":
                record.unnamed = frozenset(str(s) for s in own | read if s not in names and _unbacked(s))
        return False


def _unbacked(symbol: Any) -> bool:
    """Sizes that data decides are unbacked symbols; strides of inputs and unnamed sizes are backed ones."""
    return str(symbol).startswith(("u", "zuf"))


def _symbols(value: Any) -> set[Any]:
    if isinstance(value, torch.Tensor):
        sizes = [s for s in value.shape if not isinstance(s, int)]
        return set().union(*[as_expr(s).free_symbols for s in sizes]) if sizes else set()
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return set(as_expr(value).free_symbols)
    if isinstance(value, (tuple, list)):
        return set().union(*[_symbols(v) for v in value])
    return set()
