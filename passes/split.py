"""Cuts the graph into pieces and seams."""

from __future__ import annotations

from itertools import groupby

from torch import fx

from capwise.axes import as_expr
from capwise.compilation import CompilerPass
from capwise.facts import fact, facts, has_fact, is_tensor, val
from capwise.program import Output, Step, Value, extract, is_free, is_part, written_arguments
from capwise.transfer.seams import returned


class Split(CompilerPass):
    """Ops of one level are one step; a value crosses a border iff another step or the caller reads it."""

    name = "split"
    needs = ("levels",)
    gives = ("steps",)

    def run(self, graph: fx.Graph) -> bool:
        state = self.state
        ordered = sorted(state.levels, key=lambda n: state.levels[n])
        groups = {level: list(nodes) for level, nodes in groupby(ordered, key=lambda n: state.levels[n])}
        home = {node: level for level, nodes in groups.items() for node in nodes}
        wanted = [n for n in _views(graph) if self._is_made_at_home(n, home)]
        borders = _borders(groups, home, wanted, graph)
        state.steps = [self._step(level, nodes, borders[level]) for level, nodes in sorted(groups.items())]
        state.outputs = [self._output(a) for a in returned(graph)]
        loose = [n for n in _views(graph) if n not in wanted]
        if loose:
            state.steps.append(self._epilogue(loose))
        return False

    def _step(self, level: int, nodes: list[fx.Node], outputs: list[fx.Node]) -> Step:
        eager = level % 2 == 0
        module, taken = extract(self.state.traced.graph, nodes, outputs)
        return self._make(
            "seam" if eager else "piece", f"{'seam' if eager else 'piece'}{level // 2}", module, taken, outputs, nodes
        )

    def _epilogue(self, views: list[fx.Node]) -> Step:
        """Returned views that no step made, those of inputs and state among them: made eagerly from live tensors."""
        module, taken = extract(self.state.traced.graph, [], views)
        return self._make("seam", "views", module, taken, views, [])

    def _make(
        self,
        kind: str,
        name: str,
        module: fx.GraphModule,
        taken: list[fx.Node],
        outputs: list[fx.Node],
        nodes: list[fx.Node],
    ) -> Step:
        for node in (*taken, *outputs):
            if is_tensor(node):
                axes = fact(node).axes if has_fact(node) else tuple(self.state.space.axis(s) for s in val(node).shape)
                value = val(node)
                self.state.values[node.name] = Value(node.name, axes, value.dtype, value.device)
        storages = {fact(a).storage for n in nodes for a in written_arguments(n) if has_fact(a)}
        mutated = frozenset(t.name for t in taken if has_fact(t) and fact(t).storage in storages)
        ops = tuple(str(n.target) for n in nodes)
        return Step(kind, name, module, tuple(t.name for t in taken), tuple(o.name for o in outputs), mutated, ops)  # type: ignore[arg-type]

    def _is_made_at_home(self, view: fx.Node, home: dict[fx.Node, int]) -> bool:
        """A returned view is made in the step that made what it looks at, unless it is right at live extents only, or
        that memory is written in another step."""
        base = _base(view)
        if base not in home or facts(view).eager or not has_fact(view):
            return False
        storage = fact(view).storage
        writes = [home[n] for n in home for a in written_arguments(n) if has_fact(a) and fact(a).storage == storage]
        return all(level == home[base] for level in writes)

    def _output(self, arg: object) -> Output:
        if not isinstance(arg, fx.Node):
            return Output("constant", expr=arg)
        if not is_tensor(arg):
            unknown = facts(arg).unnamed
            return Output("value", arg.name) if unknown else Output("host", arg.name, as_expr(val(arg)))
        if arg.op == "placeholder":
            arrival = self.state.traced.arrivals[arg]
            return Output(
                "input" if arrival.kind == "input" else "state", arrival.name if arrival.kind == "input" else arg.name
            )
        return Output("value", arg.name)


def _views(graph: fx.Graph) -> list[fx.Node]:
    """Returned values that are views."""
    nodes = dict.fromkeys(a for a in returned(graph) if isinstance(a, fx.Node))
    return [n for n in nodes if is_tensor(n) and n.op == "call_function" and is_free(n)]


def _base(node: fx.Node) -> fx.Node:
    """What a view looks at."""
    while node.op == "call_function" and is_free(node) and node.all_input_nodes:
        node = next(
            (a for a in node.all_input_nodes if is_tensor(a) or isinstance(val(a), (tuple, list))),
            node.all_input_nodes[0],
        )
    return node.args[0] if is_part(node) else node  # type: ignore[return-value]


def _borders(
    groups: dict[int, list[fx.Node]], home: dict[fx.Node, int], wanted: list[fx.Node], graph: fx.Graph
) -> dict[int, list[fx.Node]]:
    """For each level, its values that are read elsewhere."""
    borders: dict[int, dict[fx.Node, None]] = {level: {} for level in groups}

    def read(node: fx.Node, level: int | None) -> None:
        source = node.args[0] if is_part(node) else node
        if source in home and home[source] != level:  # type: ignore[index]
            borders[home[source]][node] = None  # type: ignore[index]

    for level, nodes in groups.items():
        for node in nodes:
            for arg in _behind(node):
                read(arg, level)
    for result in returned(graph):
        if not isinstance(result, fx.Node) or result.op != "call_function":
            continue
        if result in wanted:
            borders[home[_base(result)]][result] = None
            continue
        for arg in [result] if is_part(result) or not is_free(result) else _behind(result):
            read(arg, None)
    return {level: list(found) for level, found in borders.items()}


def _behind(node: fx.Node) -> list[fx.Node]:
    """Values that a node reads, seen through free nodes; parts of results count as values."""
    found: dict[fx.Node, None] = {}
    stack = list(node.all_input_nodes)
    while stack:
        arg = stack.pop()
        if arg.op == "call_function" and is_free(arg) and not is_part(arg):
            stack.extend(arg.all_input_nodes)
        else:
            found[arg] = None
    return list(found)
