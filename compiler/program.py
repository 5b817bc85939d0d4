"""The compiled thing: pieces and seams in order, what they read and make, and how it prints."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from capwise.axes import Axis, Space, show
from capwise.facts import facts, has_fact, is_tensor, val
from capwise.labels import Spec
from capwise.ops import aten
from capwise.options import Options
from capwise.report import Report
from capwise.trace import Arrival

StepKind = Literal["piece", "seam"]


@dataclass
class Step:
    """A captured piece or a seam. inputs and outputs are names of values of the whole graph, in call order."""

    kind: StepKind
    name: str
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutated: frozenset[str] = frozenset()
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Value:
    """What the runtime must know of a value that crosses a border: its axes and dtype."""

    name: str
    axes: tuple[Axis, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Output:
    """One output of the graph: where it comes from at a step."""

    kind: Literal["value", "input", "state", "host", "constant"]
    name: str = ""
    expr: Any = None


@dataclass
class Program:
    """An ordered list of pieces and seams with their inputs, fills and guards; one for each Dynamo graph."""

    name: str
    options: Options
    space: Space
    specs: dict[str, Spec]
    arrivals: dict[str, Arrival]
    steps: list[Step]
    outputs: list[Output]
    values: dict[str, Value]
    staged_fills: dict[str, Any]
    capacity: dict[str, int]
    outside: frozenset[str]
    scratch: list[tuple[str, int, int]]
    mutated_inputs: frozenset[str]
    report: Report
    texts: dict[str, str] = field(default_factory=dict)
    module: fx.GraphModule | None = None
    whole: Mapping[str, str] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)

    @property
    def pieces(self) -> list[Step]:
        return [s for s in self.steps if s.kind == "piece"]

    @property
    def seams(self) -> list[Step]:
        return [s for s in self.steps if s.kind == "seam"]

    def text(self, after: str | None = None) -> str:
        """One line a node; of the finished program, or of the graph after one pass.

        Raises:
            KeyError: no pass of that name ran.
        """
        if after is None:
            return "\n".join(self._lines())
        if after not in self.texts:
            raise KeyError(f"after: expected one of {', '.join(self.texts)}; got {after!r}")
        return self.texts[after]

    def _lines(self) -> Iterator[str]:
        yield f"program {self.name}: {len(self.pieces)} pieces, {len(self.seams)} seams"
        for name, arrival in self.arrivals.items():
            if arrival.kind == "input":
                fill = self.staged_fills.get(arrival.name)
                yield f"  input {arrival.name}" + (f" fill {fill}" if fill is not None else "")
            del name
        for step in self.steps:
            yield f"{step.kind} {step.name}({', '.join(step.inputs)}) -> {', '.join(step.outputs) or 'nothing'}"
            for line in print_graph(step.module.graph).splitlines():
                yield f"  {line}"
        yield "return " + ", ".join(o.name or str(o.expr) for o in self.outputs)


def print_graph(graph: fx.Graph) -> str:
    """One line a node, names renumbered in order, with axes where they are known."""
    names: dict[fx.Node, str] = {}
    lines = []
    number = 0
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = node.name
            continue
        if node.op == "output":
            lines.append(f"return {_argument(node.args[0], names)}")
            continue
        names[node] = f"%{number}"
        number += 1
        args = [_argument(a, names) for a in node.args]
        args += [f"{k}={_argument(v, names)}" for k, v in node.kwargs.items() if k not in ("device", "pin_memory")]
        mark = "seam " if facts(node).eager else ""
        lines.append(f"{names[node]} = {mark}{_target(node)}({', '.join(args)}){_axes(node)}")
    return "\n".join(lines)


def _target(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


def _axes(node: fx.Node) -> str:
    if not has_fact(node):
        return ""
    value = facts(node).value
    dims = [show(a) + ("" if t.kind == "live" else f":{t}") for a, t in zip(value.axes, value.tails)]  # type: ignore
    return f"  [{', '.join(dims)}]"


def _argument(arg: Any, names: Mapping[fx.Node, str]) -> str:
    if isinstance(arg, fx.Node):
        return names.get(arg, arg.name)
    if isinstance(arg, (list, tuple)):
        return "[" + ", ".join(_argument(a, names) for a in arg) + "]"
    if isinstance(arg, int) and arg == torch.iinfo(torch.int64).max:
        return "end"
    return str(arg)


def main_device(devices: Iterable[torch.device]) -> torch.device:
    """The first that is not the host, else the host."""
    host = torch.device("cpu")
    return next((d for d in devices if d.type != "cpu"), host)


# ---------------------------------------------------------------------------------------------------------- structure
def is_free(node: fx.Node) -> bool:
    """Whether a node costs no launch and may be made again wherever it is needed: views, host arithmetic, parts of a
    result."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return is_free(node.args[0]) if isinstance(val(node.args[0]), (tuple, list)) else True
    if not isinstance(node.target, torch._ops.OpOverload):
        return not isinstance(node.target, torch._ops.HigherOrderOperator)
    schema = node.target._schema
    if schema.is_mutable or facts(node).unnamed and not is_tensor(node):
        return False
    if isinstance(val(node), (torch.SymInt, int)) and aten.base_name(node.target).startswith("sym_"):
        return True
    return bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """Arguments that the op writes. An op whose schema cannot be seen may write everything."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return [a for a in node.all_input_nodes if is_tensor(a)]
    found: list[fx.Node] = []
    for name in aten.written(node.target):
        value = aten.argument(node.target, node.args, node.kwargs, name)
        found += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, fx.Node)]
    return found


def is_part(node: fx.Node) -> bool:
    """One result of an op that does work and has several."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, fx.Node) and not is_free(source)


def extract(
    whole: fx.GraphModule, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A graph of its own for some nodes of the whole, in order; free nodes are made again inside.

    Returns:
        the module (a tuple of outputs), and the nodes of the whole that it takes, in order.
    """
    inside = set(nodes)
    taken = list(_taken(nodes, outputs, inside))
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in taken:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for node in (*nodes, *outputs):
        _make(graph, node, made)
    graph.output(tuple(made[node] for node in outputs))
    return fx.GraphModule(whole, graph), taken


def _is_inside(node: fx.Node, inside: set[fx.Node]) -> bool:
    if node in inside or node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    return node.args[0] in inside if is_part(node) else is_free(node)


def _taken(nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], inside: set[fx.Node]) -> dict[fx.Node, None]:
    found: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    stack = [*nodes, *outputs][::-1]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if _is_inside(node, inside):
            stack.extend(reversed(node.all_input_nodes))
        else:
            found[node] = None
    return found


def _make(graph: fx.Graph, node: fx.Node, made: dict[fx.Node, fx.Node]) -> None:
    stack = [node]
    while stack:
        current = stack[-1]
        missing = [a for a in current.all_input_nodes if a not in made]
        if current in made or not missing:
            if current not in made:
                made[current] = graph.node_copy(current, lambda n: made[n])
            stack.pop()
        else:
            stack.extend(missing)
