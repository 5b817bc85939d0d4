"""What one compilation knows, and the base of its passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import networkx as nx
import sympy
import torch
from torch import fx
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from capwise.allow import allowed
from capwise.axes import Space
from capwise.facts import val
from capwise.ops import aten
from capwise.options import Options
from capwise.program import main_device
from capwise.report import Report
from capwise.trace import Arrival, Traced
from capwise.transfer.flow import Hazard, Remedy, Value


@dataclass
class Compilation:
    """Everything between the trace and the Program.

    exact: symbols whose captured extent is the live one (all but the first of a key). capacity: captured extent of
    symbols outside the key. strided: staged inputs that some batch brought with a stride. whole: states that this
    graph, or an earlier one of the model, reads to the last row, and the node that does. taken: states of which an
    earlier graph's padded rows write a row. caps: largest extent of a symbol that is recorded.
    """

    traced: Traced
    options: Options
    space: Space
    outside: frozenset[str]
    capacity: dict[str, int]
    strided: frozenset[str] = frozenset()
    report: Report = field(default_factory=Report)
    hazards: list[Hazard] = field(default_factory=list)
    trial: list[Hazard] = field(default_factory=list)
    staged_fills: dict[str, Value] = field(default_factory=dict)
    scratch: list[tuple[str, int, int]] = field(default_factory=list)
    whole: dict[str, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    caps: dict[str, int] = field(default_factory=dict)
    eager: dict[fx.Node, str] = field(default_factory=dict)
    live: dict[str, fx.Node] = field(default_factory=dict)
    fills: int = 0
    copies: int = 0
    order: nx.DiGraph = field(default_factory=nx.DiGraph)
    levels: dict[fx.Node, int] = field(default_factory=dict)
    steps: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> fx.Graph:
        return self.traced.graph.graph

    def last_symbol(self, name: str) -> sympy.Symbol:
        """Stands for the last live value of an input."""
        return sympy.Symbol(f"last_{name}")

    def record(self, hazard: Hazard) -> None:
        """Notes a hazard that no tail is part of: its author's word stands, else its first remedy is taken."""
        reason = allowed(hazard.node, hazard.code)
        if reason is not None:
            hazard.verdict, hazard.chosen = "assumed", Remedy("allow", "allow")
            hazard.notes += (f"allowed: {reason}",)
        elif hazard.remedies and self.options.repair != "none":
            hazard.chosen = hazard.remedies[0]
        self.hazards.append(hazard)

    def live_scalar(self, symbol: str) -> fx.Node:
        """The graph input that holds the live extent of a symbol on the device, made at first use."""
        if symbol not in self.live:
            first = next(iter(self.graph.nodes))
            with self.graph.inserting_before(first):
                node = self.graph.placeholder(f"live_{symbol}")
            mode = fake_mode(self.graph)
            with mode:
                node.meta["val"] = torch.empty((), dtype=torch.int64, device=device_of(self.graph))
            self.traced.arrivals[node] = Arrival("live", symbol, expr=self.space.sympy[symbol])
            self.live[symbol] = node
        return self.live[symbol]


class CompilerPass(PassBase):
    """One idea. `needs` and `gives` name facts; the pipeline checks their order when it is built."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    gives: ClassVar[tuple[str, ...]] = ()
    codes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, state: Compilation) -> None:
        super().__init__()
        self.state = state

    def call(self, graph_module: fx.GraphModule) -> PassResult:
        changed = self.run(graph_module.graph)
        if changed:
            graph_module.graph.lint()
            graph_module.recompile()
        return PassResult(graph_module, changed)

    def run(self, graph: fx.Graph) -> bool:
        """Does the work; returns whether the graph changed."""
        raise NotImplementedError(type(self).__name__)


def fake_mode(graph: fx.Graph) -> Any:
    for node in graph.nodes:
        if isinstance(val(node), torch.Tensor):
            return val(node).fake_mode
    raise ValueError("graph: expected at least one tensor")


def device_of(graph: fx.Graph) -> torch.device:
    """Where the program runs: the device of its tensors, some of which the host may hold."""
    return main_device(val(n).device for n in graph.nodes if isinstance(val(n), torch.Tensor))


class Editor:
    """Inserts nodes with their fake values, attributed to the user's line of the node that they serve."""

    def __init__(self, state: Compilation, before: fx.Node) -> None:
        self.state, self.before = state, before
        self.mode = fake_mode(state.graph)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.state.graph.inserting_before(self.before):
            node = self.state.graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        if target is torch.ops.aten.copy_.default:
            # It returns what it writes. Running it would ask whether sizes are equal (torch 2.11 decides that by a
            # guard), which the analysis knows where the sizes alone do not show it.
            node.meta["val"] = values[0][0]
        else:
            with self.mode, torch.no_grad():
                node.meta["val"] = target(*values[0], **values[1])
        node.meta["stack_trace"] = self.before.meta.get("stack_trace")
        return node

    def size(self, node: fx.Node, dim: int) -> Any:
        size = node.meta["val"].shape[dim]
        return size if isinstance(size, int) else self.call(torch.ops.aten.sym_size.int, node, dim)

    def expression(self, expr: Any) -> fx.Node:
        """An affine expression over live extents, as a 0-d int64 tensor."""
        total: fx.Node | None = None
        constant = 0
        for term in expr.expand().as_ordered_terms():
            scale, symbol = term.as_coeff_Mul()
            if symbol == 1:
                constant += int(scale)
                continue
            scalar = self.state.live_scalar(self.state.space.names[symbol])
            if scale != 1:
                scalar = self.call(torch.ops.aten.mul.Tensor, scalar, int(scale))
            total = scalar if total is None else self.call(torch.ops.aten.add.Tensor, total, scalar)
        if total is None:
            raise ValueError(f"expression: expected a live extent; got {expr}")
        return self.call(torch.ops.aten.add.Tensor, total, constant) if constant else total


def replace_read(node: fx.Node, old: fx.Node, new: fx.Node) -> None:
    """Another value for `old` in every argument that a call reads; what it writes stays."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        node.replace_input_with(old, new)
        return
    written = aten.written(op)

    def replaced(name: str, value: Any) -> Any:
        return value if name in written else fx.node.map_arg(value, lambda n: new if n is old else n)

    args = [replaced(a.name, value) for a, value in zip(op._schema.arguments, node.args)]
    node.args, node.kwargs = tuple(args), {name: replaced(name, value) for name, value in node.kwargs.items()}
