"""How a piece's arguments become a compiled function's inputs, and its results the piece's outputs.

Inductor sees a function without aliasing: one integer a symbol, then tensors of which no two share memory if either is
written, and results that are all fresh. What aliases in the piece is rebuilt round it by `as_strided`, from the layouts
that the analysis graph holds, so that no part of the program depends on how a version of AOTAutograd replays views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from capwise.lower.errors import LoweringError

Extents = tuple[int, ...]


def expression(value: Any) -> sympy.Expr:
    """The sympy expression of an int or SymInt."""
    return value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(int(value))


@dataclass(frozen=True)
class Region:
    """Where a tensor lies in its storage, in elements, over the analysis graph's symbols."""

    size: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    offset: sympy.Expr

    @staticmethod
    def of(val: torch.Tensor) -> Region:
        return Region(
            tuple(map(expression, val.shape)), tuple(map(expression, val.stride())), expression(val.storage_offset())
        )

    @property
    def end(self) -> sympy.Expr:
        """One past the last element, for a region that is not empty."""
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride))

    def symbols(self) -> set[sympy.Symbol]:
        return {s for e in (*self.size, *self.stride, self.offset) for s in e.free_symbols}


@dataclass(frozen=True)
class Solver:
    """Reads one symbol off the arguments: `(argument's value or size - shift) / scale`."""

    arg: int
    dim: int | None
    scale: int
    shift: int

    def __call__(self, args: Sequence[Any]) -> int:
        value = args[self.arg] if self.dim is None else args[self.arg].shape[self.dim]
        return (int(value) - self.shift) // self.scale


@dataclass(frozen=True)
class Input:
    """One tensor the compiled function takes: argument `arg`, or the flat memory round it up to element `flat`."""

    arg: int
    region: Region
    val: torch.Tensor
    flat: sympy.Expr | None = None


@dataclass(frozen=True)
class Argument:
    """What a placeholder is made of inside: a value over the symbols, or input `source`, seen through `view`."""

    value: Any = None
    source: int | None = None
    view: Region | None = None


@dataclass(frozen=True)
class Output:
    """What the caller gets: a value, argument `arg` or result `result`; seen through `view`, relative to it, if set."""

    value: Any = None
    arg: int | None = None
    result: int | None = None
    view: Region | None = None


@dataclass
class Binding:
    """The piece's whole calling convention.

    Attributes:
        names: the symbols the piece depends on; an `Extents` tuple holds one int for each, in this order.
        returned: the fx nodes the compiled function returns, in order.
        constants: tensors the piece reads through get_attr; passed as inputs, after those of `inputs`.
    """

    gm: GraphModule
    names: tuple[str, ...]
    symbols: dict[str, sympy.Symbol]
    solvers: tuple[Solver, ...]
    inputs: list[Input] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    returned: list[Node] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

    def extents(self, args: Sequence[Any]) -> Extents:
        """The extents these arguments have."""
        return tuple(solve(args) for solve in self.solvers)

    def pick(self, named: Mapping[str, int]) -> Extents:
        """The extents of a bucket; raises LoweringError for a bucket that leaves out a symbol the piece depends on."""
        missing = [n for n in self.names if n not in named]
        if missing:
            raise LoweringError(f"the bucket {dict(named)} has no extent for {missing[0]}")
        return tuple(int(named[n]) for n in self.names)

    def evaluate(self, expr: sympy.Expr, extents: Extents) -> int:
        value = expr.xreplace({self.symbols[n]: sympy.Integer(v) for n, v in zip(self.names, extents)})
        if not value.is_Integer:
            raise LoweringError(
                f"an output's layout, {expr}, is not fixed by {', '.join(self.names) or 'the arguments'}"
            )
        return int(value)

    def collect(self, extents: Extents) -> Callable[[Sequence[Any]], list[Any]]:
        """A function from the piece's arguments to the compiled function's tensors, at these extents."""
        constants = list(self.constants.values())
        flats = [
            None if i.flat is None else (self.evaluate(i.flat, extents), self.evaluate(i.region.offset, extents))
            for i in self.inputs
        ]
        plan = [(i.arg, flat) for i, flat in zip(self.inputs, flats)]

        def run(args: Sequence[Any]) -> list[Any]:
            tensors = [args[a] if flat is None else _flat(args[a], *flat) for a, flat in plan]
            return tensors + constants

        return run

    def deliver(self, extents: Extents) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]:
        """A function from the piece's arguments and the compiled function's results to the outputs, at extents."""
        plan = [(o, o.view and self._concrete(o.view, extents), self._value(o.value, extents)) for o in self.outputs]

        def one(out: Output, view: Any, value: Any, args: Sequence[Any], results: Sequence[Any]) -> Any:
            if out.result is not None:
                base = results[out.result]
            elif out.arg is not None:
                base = args[out.arg]
            else:
                return value
            return base if view is None else base.as_strided(view[0], view[1], base.storage_offset() + view[2])

        return lambda args, results: tuple(one(o, view, value, args, results) for o, view, value in plan)

    def _concrete(self, view: Region, extents: Extents) -> tuple[list[int], list[int], int]:
        size, stride = ([self.evaluate(e, extents) for e in es] for es in (view.size, view.stride))
        return size, stride, self.evaluate(view.offset, extents)

    def _value(self, value: Any, extents: Extents) -> Any:
        return self.evaluate(value, extents) if isinstance(value, sympy.Expr) else value


def _flat(tensor: torch.Tensor, numel: int, offset: int) -> torch.Tensor:
    return tensor.as_strided((numel,), (1,), tensor.storage_offset() - offset)


def bind(gm: GraphModule, symbols: Mapping[str, sympy.Symbol]) -> Binding:
    """Works out the calling convention of a piece.

    Raises:
        LoweringError: a symbol without a name, one that no argument carries, or inputs that share memory, are written
            and differ in dtype.
    """
    holders = gm.graph.find_nodes(op="placeholder")
    carried = [p.meta["val"] for p in holders]
    names = _names(holders, symbols)
    binding = Binding(gm, names, {n: symbols[n] for n in names}, tuple(_solver(n, symbols[n], carried) for n in names))
    vals = [p.meta["val"] if p.users else None for p in holders]
    _bind_inputs(binding, holders, vals)
    _bind_outputs(binding, vals)
    binding.constants = _constants(gm)
    return binding


def _free(value: Any) -> set[sympy.Symbol]:
    if isinstance(value, torch.Tensor):
        return Region.of(value).symbols()
    return set(value.node.expr.free_symbols) if isinstance(value, torch.SymInt) else set()


def _names(holders: Iterable[Node], symbols: Mapping[str, sympy.Symbol]) -> tuple[str, ...]:
    named = {s: n for n, s in symbols.items()}
    used: set[str] = set()
    for p in holders:
        for symbol in _free(p.meta["val"]) if p.users else ():
            if symbol not in named:
                raise LoweringError(f"its layout depends on {symbol}, which has no name", p.name)
            used.add(named[symbol])
    return tuple(n for n in symbols if n in used)


def _solver(name: str, symbol: sympy.Symbol, vals: Sequence[Any]) -> Solver:
    for i, val in enumerate(vals):
        places = enumerate(val.shape) if isinstance(val, torch.Tensor) else [(None, val)]
        for dim, value in places:
            if not isinstance(value, torch.SymInt):
                continue
            expr = value.node.expr
            scale, shift = expr.coeff(symbol, 1), expr.xreplace({symbol: sympy.Integer(0)})
            if (
                scale.is_Integer
                and shift.is_Integer
                and scale != 0
                and sympy.expand(scale * symbol + shift - expr) == 0
            ):
                return Solver(i, dim, int(scale), int(shift))
    raise LoweringError(f"no argument carries the extent of {name}")


def storage_of(val: torch.Tensor) -> int:
    """The identity of a (fake) tensor's storage."""
    return val.untyped_storage()._cdata


def written_storages(gm: GraphModule) -> set[int]:
    """Storages that some node of the graph writes, by schema; a node without a schema writes all it is given."""
    written: set[int] = set()
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        for arg in _written_arguments(node):
            val = arg.meta.get("val")
            if isinstance(val, torch.Tensor):
                written.add(storage_of(val))
    return written


def _written_arguments(node: Node) -> list[Node]:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return list(node.all_input_nodes)
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    found: list[Node] = []
    for i, formal in enumerate(node.target._schema.arguments):
        if formal.alias_info is not None and formal.alias_info.is_write:
            actual = node.kwargs.get(formal.name, node.args[i] if i < len(node.args) else None)
            found += [a for a in (actual if isinstance(actual, (list, tuple)) else [actual]) if isinstance(a, Node)]
    return found


def _bind_inputs(binding: Binding, holders: Sequence[Node], vals: Sequence[Any]) -> None:
    groups: dict[int, list[int]] = {}
    for i, val in enumerate(vals):
        if isinstance(val, torch.Tensor):
            groups.setdefault(storage_of(val), []).append(i)
    written = written_storages(binding.gm)
    made: dict[int, Argument] = {}
    for storage, members in groups.items():
        if len(members) == 1 or storage not in written:
            for i in members:
                made[i] = Argument(source=len(binding.inputs))
                binding.inputs.append(Input(i, Region.of(vals[i]), vals[i]))
        else:
            made |= _bind_group(binding, holders, vals, members)
    for i, val in enumerate(vals):
        value = expression(val) if isinstance(val, torch.SymInt) else val
        binding.arguments.append(made[i] if i in made else Argument(value=value))


def _bind_group(
    binding: Binding, holders: Sequence[Node], vals: Sequence[Any], members: list[int]
) -> dict[int, Argument]:
    """Arguments that share written memory become one input: the member that covers the others, else the flat memory."""
    odd = next((i for i in members if vals[i].dtype != vals[members[0]].dtype), None)
    if odd is not None:
        raise LoweringError("shares memory that the piece writes with an argument of another dtype", holders[odd].name)
    source = len(binding.inputs)
    whole = next((i for i in members if _covers(vals[i])), None)
    if whole is not None:
        binding.inputs.append(Input(whole, Region.of(vals[whole]), vals[whole]))
    else:
        end = sympy.Max(*(Region.of(vals[i]).end for i in members))
        binding.inputs.append(Input(members[0], Region.of(vals[members[0]]), vals[members[0]], flat=end))
    return {i: Argument(source=source, view=None if i == whole else Region.of(vals[i])) for i in members}


def _covers(val: torch.Tensor) -> bool:
    """True iff the tensor is dense, starts its storage, and fills it."""
    region = Region.of(val)
    dense: sympy.Expr = sympy.Integer(1)
    for n, s in zip(reversed(region.size), reversed(region.stride)):
        if sympy.expand(s - dense) != 0:
            return False
        dense = dense * n
    full = expression(val.untyped_storage().nbytes())
    return region.offset == 0 and sympy.expand(dense * val.element_size() - full) == 0


def _bind_outputs(binding: Binding, vals: Sequence[Any]) -> None:
    graph = binding.gm.graph
    result = graph.output_node().args[0]
    leaves = list(result) if isinstance(result, (list, tuple)) else [result]
    arg_of: dict[int, int] = {}
    for i, val in enumerate(vals):
        if isinstance(val, torch.Tensor):
            arg_of.setdefault(storage_of(val), i)
    storages = [_fresh_storage(leaf, arg_of) for leaf in leaves]
    for leaf, storage in zip(leaves, storages):
        shared = storage is not None and storages.count(storage) > 1
        binding.outputs.append(_bind_output(binding, leaf, vals, arg_of, shared))


def _fresh_storage(leaf: Any, arg_of: Mapping[int, int]) -> int | None:
    val = leaf.meta.get("val") if isinstance(leaf, Node) else None
    if not isinstance(val, torch.Tensor):
        return None
    storage = storage_of(val)
    return None if storage in arg_of else storage


def _bind_output(binding: Binding, leaf: Any, vals: Sequence[Any], arg_of: Mapping[int, int], shared: bool) -> Output:
    if not isinstance(leaf, Node):
        return Output(value=leaf)
    val = leaf.meta.get("val")
    if isinstance(val, torch.SymInt):
        return Output(value=expression(val))
    if not isinstance(val, torch.Tensor):
        return Output(result=_return(binding, leaf))
    arg = arg_of.get(storage_of(val))
    if arg is not None and vals[arg].dtype == val.dtype:
        if leaf.op == "placeholder":
            return Output(arg=binding.gm.graph.find_nodes(op="placeholder").index(leaf))
        return Output(arg=arg, view=_relative(val, vals[arg]))
    root = _root(binding.gm, val) if shared else leaf
    if root is leaf or root.meta["val"].dtype != val.dtype:
        return Output(result=_return(binding, leaf))
    return Output(result=_return(binding, root), view=_relative(val, root.meta["val"]))


def _relative(val: torch.Tensor, base: torch.Tensor) -> Region:
    region, start = Region.of(val), Region.of(base).offset
    return Region(region.size, region.stride, region.offset - start)


def _root(gm: GraphModule, val: torch.Tensor) -> Node:
    """The node that allocated the storage of `val`."""
    for node in gm.graph.nodes:
        other = node.meta.get("val")
        if isinstance(other, torch.Tensor) and storage_of(other) == storage_of(val):
            return node
    raise AssertionError("a value without a node")


def _return(binding: Binding, node: Node) -> int:
    if node not in binding.returned:
        binding.returned.append(node)
    return binding.returned.index(node)


def _constants(gm: GraphModule) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        value: Any = gm
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            found[node.target] = value
    return found
