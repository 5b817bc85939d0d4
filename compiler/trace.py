"""Dynamo graph -> aten graph, with mutation kept, symbols named and source lines kept.

The aten graph comes from `make_fx` over an interpreter of the Dynamo graph: no functionalisation, so in-place state
stays in place, and views share storages, which gives exact alias groups.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from capwise import compat
from capwise.kernel_nodes import Opening, open_kernels
from capwise.labels import Dim, InputError, Spec
from capwise.report import Span

_BATCH = re.compile(r"^L\['batch'\]\['(\w+)'\]$")
_LOCAL = re.compile(r"^L\['(\w+)'\]$")
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in ')


@dataclass(frozen=True)
class Arrival:
    """How one graph input gets its value at a step.

    input: the batch argument `name`. state: a parameter, buffer or other tensor that the model holds, reached by
    `source`. symbol: `expr` over the named symbols. host: a Python expression over the batch (a stride, say).
    live: the live extent of the symbol `name`, as a 0-d int64 tensor.
    """

    kind: Literal["input", "state", "symbol", "host", "live"]
    name: str
    source: str = ""
    expr: Any = None


@dataclass
class Traced:
    """An aten graph with what its inputs are and what the symbols are called.

    `symbols` maps a user's symbol to the sympy symbol of the graph's FakeTensors.
    """

    graph: fx.GraphModule
    arrivals: dict[fx.Node, Arrival]
    symbols: dict[str, sympy.Symbol]
    specs: dict[str, Spec]
    host_values: list[tuple[str, Any, Span]] = field(default_factory=list)
    guards: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> dict[sympy.Symbol, str]:
        return {symbol: name for name, symbol in self.symbols.items()}


def _state(condition: Any) -> None:
    """Tells the tracer that something holds of the sizes."""
    torch._check(condition)  # type: ignore[no-untyped-call]


class Named(torch.nn.Module):
    """The model behind a wrapper that states bounds and relations of the named axes (`torch._check`), so that one
    trace serves every batch: T == R, R == 1 and T == 1 included."""

    def __init__(self, model: Callable[..., Any], specs: Mapping[str, Spec], bounds: Mapping[str, tuple[int, int]]):
        super().__init__()
        self.model = model
        self._dims = {n: s.dims for n, s in specs.items() if s.kind in ("staged", "buffer", "int")}
        self._live = {n: s.symbols[0] for n, s in specs.items() if s.kind == "live"}
        self._bounds = dict(bounds)

    def forward(self, batch: dict[str, Any]) -> Any:
        known: dict[str, Any] = {}
        for name, dims in self._dims.items():
            if batch.get(name) is None:
                continue
            for i, dim in enumerate(dims):
                if dim.symbol is None:
                    continue
                size = batch[name] if isinstance(batch[name], int) else batch[name].shape[i]
                offset = dim.offset or 0
                if dim.symbol in known:
                    _state(size == known[dim.symbol] * dim.scale + offset)
                elif dim.scale == 1 and offset == 0:
                    known[dim.symbol] = size
                    low, high = self._bounds[dim.symbol]
                    _state(size >= low)
                    _state(size <= high)
                else:
                    low, high = self._bounds[dim.symbol]
                    _state(size >= low * dim.scale + offset)
                    _state(size <= high * dim.scale + offset)
        # A live extent given as an int is the extent itself: it was checked to be.
        live = {n: known[s] for n, s in self._live.items() if isinstance(batch.get(n), int) and s in known}
        return self.model(**{**batch, **live})


def ordered(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Arguments that carry a bare symbol come first, so that relations such as R+1 have something to refer to."""
    bare = {n for n, s in specs.items() if any(d.symbol and d.scale == 1 and not d.offset for d in s.dims)}
    return dict(sorted(specs.items(), key=lambda item: item[0] not in bare))


def mark(batch: Mapping[str, Any], specs: Mapping[str, Spec], unbacked: bool) -> dict[str, Any]:
    """The batch as the first trace sees it: staged tensors dense and with named axes marked; the caller's own tensors
    keep no mark."""
    marked: dict[str, Any] = {}
    for name, value in batch.items():
        spec = specs.get(name)
        if spec is None or spec.kind == "int" or not isinstance(value, torch.Tensor):
            marked[name] = value
            continue
        value = (
            value.detach().view_as(value)
            if spec.kind == "buffer"
            else value.detach().clone(memory_format=torch.contiguous_format)
        )
        for i, dim in enumerate(spec.dims):
            if dim.symbol is not None and spec.kind != "live":
                _mark_dim(value, i, str(dim), unbacked)
        marked[name] = value
    return marked


def _mark_dim(value: torch.Tensor, dim: int, label: str, unbacked: bool) -> None:
    if unbacked:
        torch._dynamo.decorators.mark_unbacked(value, dim, shape_id=label)
    elif value.shape[dim] > 1:
        torch._dynamo.maybe_mark_dynamic(value, dim)


def unbacked_ints(specs: Mapping[str, Spec]) -> str:
    return ",".join(f"L['batch']['{n}']" for n, s in specs.items() if s.kind == "int")


def to_aten(gm: fx.GraphModule, specs: Mapping[str, Spec], strict: bool = True) -> Traced:
    """Lowers a Dynamo graph.

    Staged inputs are dense in the result whatever strides they came with: the arena's static buffers are. Assertions
    and other nodes that only speak to the host are dropped.

    Raises:
        InputError: an axis that was named is fixed by the model to one size.
    """
    outer = list(gm.graph.find_nodes(op="placeholder"))
    values = [p.meta["example_value"] for p in outer]
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    arrivals = [_arrival(p, specs) for p in outer]

    def run(*args: Any) -> Any:
        with torch.fx.traceback.preserve_node_meta():
            return Opening(gm).run(*args)

    with compat.fake_tracing(mode), torch.no_grad():
        fakes = [_dense(p.meta["example_value"], a, specs) for p, a in zip(outer, arrivals)]
        graph = compat.make_aten(run, fakes)
    inner = list(graph.graph.find_nodes(op="placeholder"))
    named = dict(zip(inner, arrivals))
    open_kernels(graph)
    _drop_assertions(graph)
    _resolve_in_place(graph)
    symbols = _symbols(named, specs, strict)
    arrivals_by_node = _with_exprs(named, symbols)
    _rename_inputs(arrivals_by_node)
    return Traced(graph, arrivals_by_node, symbols, dict(specs))


def _rename_inputs(arrivals: Mapping[fx.Node, Arrival]) -> None:
    """Graph inputs are called what the user calls them: texts and diagnostics show them."""
    for node, arrival in arrivals.items():
        name = str(arrival.expr) if arrival.kind == "symbol" else arrival.name
        node._rename(re.sub(r"\W+", "_", name).strip("_") or "input")


def _arrival(node: fx.Node, specs: Mapping[str, Spec]) -> Arrival:
    source = compat.source_of(node)
    match = _BATCH.match(source) or _LOCAL.match(source)
    value = node.meta["example_value"]
    if isinstance(value, torch.Tensor):
        if match and (match.group(1) in specs or not source.startswith("L['self']")):
            return Arrival("input", match.group(1), source)
        return Arrival("state", _state_name(source), source)
    return Arrival("host", source, source, getattr(getattr(value, "node", None), "expr", value))


def _state_name(source: str) -> str:
    parts = re.findall(r"\['([^']+)'\]|\.(\w+)", source)
    words = [a or b for a, b in parts]
    skip = {"_modules", "_parameters", "_buffers", "self", "model"}
    return ".".join(w for w in words if w not in skip) or source


def _dense(fake: Any, arrival: Arrival, specs: Mapping[str, Spec]) -> Any:
    spec = specs.get(arrival.name)
    if arrival.kind != "input" or spec is None or spec.kind != "staged" or fake.is_contiguous():
        return fake
    return torch.empty(fake.shape, dtype=fake.dtype, device=fake.device)


def _drop_assertions(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.nodes):
        name = str(node.target)
        if node.op == "call_function" and ("_assert" in name or "sym_constrain" in name):
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code(is_impure_node=_is_impure)
    graph.recompile()


def _is_impure(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        # An op of nobody we know may do anything; aten tells by its schema.
        return target._schema.is_mutable or target.namespace not in ("aten", "prims", "prim")
    return isinstance(target, torch._ops.HigherOrderOperator)


def drop_dead_calls(traced: Traced) -> None:
    """What a compiler does that believes every schema: a call whose result nobody reads, and which declares no write,
    goes."""
    for node in reversed(list(traced.graph.graph.nodes)):
        op = node.target
        custom = isinstance(op, torch._ops.OpOverload) and op.namespace not in ("aten", "prims", "prim")
        if custom and not node.users and not op._schema.is_mutable:
            traced.graph.graph.erase_node(node)
    traced.graph.recompile()


def _resolve_in_place(graph: fx.GraphModule) -> None:
    """What an in-place op returns is its target: later uses read the target itself."""
    for node in graph.graph.nodes:
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or not op._schema.is_mutable or not node.users:
            continue
        returns = op._schema.returns
        if len(returns) == 1 and returns[0].alias_info is not None and isinstance(node.args[0], fx.Node):
            written = [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            target = node.kwargs.get(written[0].name, node.args[0])
            node.replace_all_uses_with(target)


_SIZE = re.compile(r"^L\['(?:batch'\]\[')?(\w+)'\]\.size\(\)\[(\d+)\]$")


def _symbols(named: Mapping[fx.Node, Arrival], specs: Mapping[str, Spec], strict: bool) -> dict[str, sympy.Symbol]:
    """The sympy symbol of each label, from the tensors and host integers that carry it."""
    found: dict[str, sympy.Symbol] = {}
    for node, arrival in named.items():
        spec = specs.get(arrival.name)
        if arrival.kind == "input" and spec is not None and spec.kind in ("staged", "buffer"):
            for size, dim in zip(node.meta["val"].shape, spec.dims):
                _symbol(found, arrival.name, dim, size, strict)
    for node, arrival in named.items():
        if arrival.kind != "host":
            continue
        size_of = _SIZE.match(arrival.source)
        match = _BATCH.match(arrival.source) or _LOCAL.match(arrival.source)
        spec = specs.get((size_of or match).group(1)) if size_of or match else None  # type: ignore[union-attr]
        if spec is not None and size_of and int(size_of.group(2)) < len(spec.dims):
            _symbol(found, spec.name, spec.dims[int(size_of.group(2))], node.meta["val"], False)
        elif spec is not None and spec.kind == "int":
            _symbol(found, spec.name, spec.dims[0], node.meta["val"], False)
    return found


def _symbol(found: dict[str, sympy.Symbol], name: str, dim: Dim, size: Any, strict: bool) -> None:
    if dim.symbol is None or dim.symbol in found and strict:
        return
    if not isinstance(size, torch.SymInt):
        if strict:
            raise InputError(f"{name}: the model fixes {dim} to {size}: expected a size that may change")
        return
    expr = (size.node.expr - (dim.offset or 0)) / dim.scale
    if isinstance(expr, sympy.Symbol):
        if expr not in found.values() and dim.symbol not in found:
            found[dim.symbol] = expr
    elif isinstance(size.node.expr, sympy.Symbol) and size.node.expr not in found.values():
        # Nothing tied this axis to the bare symbol: it is one of its own, known by its label.
        found[str(dim)] = size.node.expr


def _with_exprs(named: Mapping[fx.Node, Arrival], symbols: Mapping[str, sympy.Symbol]) -> dict[fx.Node, Arrival]:
    known = set(symbols.values())
    result = {}
    for node, arrival in named.items():
        expr = sympy.sympify(arrival.expr) if arrival.kind == "host" and arrival.expr is not None else None
        if expr is not None and expr.free_symbols <= known:
            arrival = Arrival("symbol", arrival.name, arrival.source, expr)
        result[node] = arrival
    return result


def span_of(node: fx.Node) -> Span:
    """The user's line that made this node: the innermost frame outside capwise and torch."""
    lines = (node.meta.get("stack_trace") or "").splitlines()
    frames = [(i, m) for i, line in enumerate(lines) if (m := _FRAME.match(line))]
    for i, match in reversed(frames):
        file = match.group(1)
        if file == __file__ or f"{compat.TORCH_ROOT}/" in file:
            continue
        return _with_columns(lines, i, Span(file, int(match.group(2))))
    return Span()


def _with_columns(lines: Sequence[str], at: int, span: Span) -> Span:
    """Columns from the caret line, where this version of torch prints one."""
    if at + 2 >= len(lines) or set(lines[at + 2].strip()) - {"^", "~"} or not lines[at + 2].strip():
        return _columns_from_source(span)
    shown, carets = lines[at + 1], lines[at + 2]
    start = len(carets) - len(carets.lstrip()) - (len(shown) - len(shown.lstrip()))
    text = compat.source_line(span.file, span.line)
    indent = len(text) - len(text.lstrip())
    return Span(span.file, span.line, indent + start + 1, indent + start + 1 + len(carets.strip()))


def _columns_from_source(span: Span) -> Span:
    text = compat.source_line(span.file, span.line)
    indent = len(text) - len(text.lstrip())
    return Span(span.file, span.line, indent + 1, len(text.rstrip()) + 1) if text.strip() else span


def argument_names(model: Callable[..., Any]) -> list[str] | None:
    """The names that the model's call takes; None where it takes any."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]


def argument_of(node: fx.Node) -> str | None:
    """The batch argument that a Dynamo graph input is, None for state and host numbers."""
    source = compat.source_of(node)
    match = _BATCH.match(source) or _LOCAL.match(source)
    is_tensor = isinstance(node.meta["example_value"], torch.Tensor)
    return match.group(1) if match and is_tensor and match.group(1) != "self" else None
