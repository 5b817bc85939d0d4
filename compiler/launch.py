"""One kernel node of a graph: its scalars and grid as expressions, its tensors, and which rows an access is of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from capwise.axes import as_expr, only_grows
from capwise.facts import val
from capwise.kernel_access.access import Access
from capwise.kernel_access.bounds import Bounds, extent, facts_at
from capwise.kernel_access.printing import to_sympy
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Poly, addressing
from capwise.runtime.kernel_call import GRID, KernelCall

ENDS = frozenset({"exit", "carry", "found"})
"""Leaves that a loop or a search ends with."""


@dataclass(frozen=True)
class Row:
    """The row of an argument's leading axis that an access is of: `poly` itself, or that of `poly` groups of elements
    with `scale` groups a row."""

    poly: Poly
    scale: int = 1

    def index(self, space: Space) -> Poly:
        """The row's number. Programs and lanes count from 0, so that rounding towards zero is rounding down."""
        return self.poly if self.scale == 1 else space.div(self.poly, Poly.of(self.scale))

    @property
    def pids(self) -> set[int]:
        return {n.args[0] for n in self.poly.leaves if n.op == "pid" and isinstance(n.args[0], int)}

    @property
    def lanes(self) -> set[tuple[int, int]]:
        """Lanes of a tile that are rows: dimension and extent. Of elements in rows of `scale`, what leaves a row."""
        found = set()
        for node in self.poly.nodes():
            for leaf in (n for n in node.leaves if n.op == "lane"):
                step = self.poly.coefficient(node).const
                dim, size = leaf.args
                whole = leaf is not node or self.scale == 1 or step is None or abs(step) * size > self.scale  # type: ignore[operator]
                if whole and isinstance(dim, int) and isinstance(size, int):
                    found.add((dim, size))
        return found


@dataclass(frozen=True)
class Layout:
    """Sizes and strides of a tensor argument: ints, or expressions where they change with the batch."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        return cls(tuple(map(_plain, tensor.shape)), tuple(map(_plain, tensor.stride())))


class Launch:
    """A launch's arguments as the analysis sees them.

    scalars, grid: expressions over symbols. tensors: the layout of each pointer argument. batch: the symbols that a
    batch decides; what depends on those is not the same at capture and at replay. All of them where None.
    """

    def __init__(
        self,
        call: KernelCall,
        tensors: Mapping[str, Layout],
        scalars: Mapping[str, Any],
        grid: Sequence[Any],
        batch: Mapping[sympy.Symbol, str] | None,
    ) -> None:
        self.call, self.tensors, self.scalars, self.grid = call, dict(tensors), dict(scalars), list(grid)
        self._batch = None if batch is None else set(batch)
        self.view = call.summary
        known = {n: Poly.of(int(e)) for n, e in self.scalars.items() if e is not None and e.is_Integer}
        self._at = Rewriter(self.view.space, lambda node: known.get(str(node.args[0])) if node.op == "sym" else None)
        self._live = Rewriter(self.view.space, self._unclamped)

    @classmethod
    def of(cls, call: KernelCall, node: fx.Node, batch: Mapping[sympy.Symbol, str] | None) -> Launch:
        """The launch that a graph's node is."""
        given = {a.name: v for a, v in zip(call.op._schema.arguments, node.args)}
        tensors = {n: Layout.of(val(given[n])) for n in call.pointers}  # type: ignore[arg-type]
        scalars = {n: _expr(given[n]) for n in call.scalars}
        return cls(call, tensors, scalars, [_expr(given[n]) for n in GRID], batch)

    # ------------------------------------------------------------------------------------------------ symbols
    def depends(self, expr: sympy.Expr | None) -> frozenset[sympy.Symbol]:
        """The batch's symbols in an expression; a number that is none (a float of the host) counts as fixed."""
        free = frozenset(expr.free_symbols) if expr is not None else frozenset()
        return free if self._batch is None else free & self._batch

    @property
    def open(self) -> frozenset[str]:
        """Scalars that change with the batch."""
        return frozenset(n for n, e in self.scalars.items() if self.depends(e))

    def dim(self, name: str) -> int:
        """The dimension whose positions are an argument's rows: the one that changes with the batch, else the first."""
        changing = [d for d, size in enumerate(self.tensors[name].shape) if self.depends(as_expr(size))]
        return changing[0] if changing else 0

    def size(self, name: str) -> sympy.Expr:
        """Rows of an argument."""
        tensor = self.tensors[name]
        return as_expr(tensor.shape[self.dim(name)]) if tensor.shape else sympy.Integer(1)

    def is_batch(self, name: str) -> bool:
        return any(self.depends(as_expr(s)) for s in self.tensors[name].shape)

    def open_in(self, *leaves: Node) -> set[str]:
        """Names of what changes with the batch among some leaves: scalars, and the grid."""
        names = {str(n.args[0]) for n in leaves if n.op == "sym"} & self.open
        grids = {n.args[0] for n in leaves if n.op == "grid"}
        return names | {GRID[k] for k in grids if isinstance(k, int) and self.depends(self.grid[k])}

    def poly(self, poly: Poly) -> Poly:
        return self._at.poly(poly)

    def truth(self, node: Node) -> Node:
        return self._at.truth(node)

    def live(self, poly: Poly) -> Poly:
        """The value in a live program: the row that it finds is no other than with the live boundaries alone, so that
        keeping it below the last one changes nothing."""
        return self._live.poly(self.poly(poly))

    def live_truth(self, node: Node) -> Node:
        return self._live.truth(self.truth(node))

    def _unclamped(self, node: Node) -> Poly | None:
        """What of min(found row, limit) the row is, where the limit is not below the last boundary."""
        if node.op != "min":
            return None
        for one, other in itertools.permutations(node.polys()):
            found = next((n for n in one.nodes() if n.op == "found"), None)
            most = other - one + Poly({(found,): 1}) if found is not None else None
            if found is not None and most is not None and found not in most.leaves:
                if self.reaches(str(found.args[0]), most):
                    return one
        return None

    # ------------------------------------------------------------------------------------------------ rows
    def passes(self, name: str) -> bool:
        """Whether the kernel is passed the strides of an argument."""
        return any(a.stride.startswith("passed") for a in self.call.summary[name].axes)

    def width(self, name: str) -> int | None:
        """Elements of one row, as the kernel steps: the tensor's stride where it is passed, else that of a dense one;
        None where that is no number."""
        tensor, dim = self.tensors[name], self.dim(name)
        step: Any = tensor.strides[dim] if self.passes(name) else dense_width(tensor, dim)
        return step if isinstance(step, int) else None

    def row(self, name: str, access: Access) -> Row | None:
        """Which row of its argument an access is of, where programs and lanes alone decide; None otherwise."""
        poly = self.poly(access.poly)
        split = self._split(name, poly)
        if split is None:
            return None
        rows, rest = self._without_tiles(name, access, *split)
        found = Row(rows)
        if rest.terms and not self._within(access, rest, self.width(name)):
            width = self.width(name)
            if width is None:
                return None
            found = self._grouped(access, poly, width)
        own = all(n.op in ("pid", "lane") for n in found.poly.leaves)
        return found if own and not self.open_in(*found.poly.leaves) else None

    def stays_inside(self, name: str, access: Access) -> bool:
        """Whether what the end of a search names exists, also where a padded program finds nothing. What loaded values
        name is another question."""
        if not any(n.op in ENDS for n in addressing(access.poly, through_loads=False)):
            return True
        high, _ = extent(access)
        width = self.width(name)
        named = self.expr(high) if high is not None else None
        return width is not None and named is not None and _natural(self.size(name) * width - named)

    def reaches(self, name: str, index: Poly) -> bool:
        """Whether an index is that of an argument's last row, or past it."""
        named = self.expr(index)
        return named is not None and _natural(named - self.size(name) + 1)

    def expr(self, poly: Poly) -> sympy.Expr | None:
        """What scalars and grid give as an expression over symbols, None where something else is in it."""
        poly = self.poly(poly)
        if any(n.op not in ("sym", "grid") for n in poly.leaves):
            return None
        known = {sympy.Symbol(n): e for n, e in self.scalars.items() if e is not None}
        known |= {sympy.Symbol(f"grid{k}"): e for k, e in enumerate(self.grid)}
        plain = to_sympy(poly)
        return plain.xreplace({s: known.get(sympy.Symbol(s.name), s) for s in plain.free_symbols})

    def _split(self, name: str, poly: Poly) -> tuple[Poly, Poly] | None:
        """An offset as rows and what is left inside of a row, without what dimensions before the rows' own add."""
        before = {as_expr(s) for s in self.tensors[name].strides[: self.dim(name)]}
        outer = {n for n in poly.nodes() if n.op == "sym" and self.scalars.get(str(n.args[0])) in before}
        poly, width = Poly({m: c for m, c in poly.terms.items() if not outer & set(m)}), self.width(name)
        if width is None:
            return self._by_symbol(name, poly)
        if len(self.tensors[name].shape) == 1 and not self.passes(name):
            return poly, Poly.of(0)
        rows = Poly({m: c // width for m, c in poly.terms.items() if width and c % width == 0})
        return rows, Poly({m: c for m, c in poly.terms.items() if not width or c % width})

    def _by_symbol(self, name: str, poly: Poly) -> tuple[Poly, Poly] | None:
        """Rows that are a passed stride apart which is no number."""
        step = as_expr(self.tensors[name].strides[self.dim(name)])
        for node in {n for m in poly.terms for n in m if n.op == "sym"}:
            if self.scalars.get(str(node.args[0])) == step:
                inside = {m: c for m, c in poly.terms.items() if node not in m}
                return poly.coefficient(node), Poly(inside)
        return None

    def _without_tiles(self, name: str, access: Access, rows: Poly, rest: Poly) -> tuple[Poly, Poly]:
        """The same, where programs that no batch adds to count tiles inside of a row, and no rows."""
        width = self.width(name)
        tiles = {m: c for m, c in rows.terms.items() if any(self._is_fixed(n) for n in m)}
        for moved in (tiles, {m: c for m, c in rows.terms.items() if m in tiles or not m}) if tiles and width else ():
            inside = rest + Poly(moved) * (width or 1)
            if self._within(access, inside, width):
                return rows - Poly(moved), inside
        return rows, rest

    def _is_fixed(self, node: Node) -> bool:
        axis = node.args[0]
        return node.op == "pid" and isinstance(axis, int) and not self.depends(self.grid[axis])

    def _grouped(self, access: Access, poly: Poly, width: int) -> Row:
        """An offset as groups of elements and what is left inside of a group, with the largest groups that a row can
        be divided into: the row of the group is the row of the element."""
        for size in (n for n in range(width // 2, 1, -1) if width % n == 0):
            rest = Poly({m: c for m, c in poly.terms.items() if c % size})
            if rest.terms and self._within(access, rest, size):
                return Row(Poly({m: c // size for m, c in poly.terms.items() if c % size == 0}), width // size)
        return Row(poly, width)

    def _within(self, access: Access, rest: Poly, width: int | None) -> bool:
        """0 <= rest < width where the access happens."""
        if width is None:
            return not any(n.op == "pid" for n in rest.leaves)
        facts = [self.poly(f) for f in facts_at(access)]
        for node in {n for n in rest.leaves if n.op == "pid"}:
            axis = node.args[0]
            if isinstance(axis, int) and self.grid[axis].is_Integer:
                facts.append(Poly.of(int(self.grid[axis]) - 1) - Poly({(node,): 1}))
        bounds = Bounds(self.view.space, self.view.loops, facts)
        return bounds.natural(Poly.of(width - 1) - rest) and bounds.natural(rest)


def _natural(expr: sympy.Expr) -> bool:
    """Not negative, for symbols of at least 1."""
    expr = sympy.expand(expr)
    if not expr.is_number and not only_grows(expr):
        return False
    return bool(expr.subs(dict.fromkeys(expr.free_symbols, 1)) >= 0)


def dense_width(tensor: Layout, dim: int = 0) -> int | None:
    """Elements of one row of a dense tensor of this shape, rows along `dim`; None where that is no number."""
    inner = tensor.shape[dim + 1 :]
    return math.prod(inner) if all(isinstance(n, int) for n in inner) else None


def _plain(size: Any) -> Any:
    """A size as an int, or as an expression."""
    expr = as_expr(size)
    return int(expr) if expr.is_Integer else expr


def _expr(value: Any) -> Any:
    known = val(value) if isinstance(value, fx.Node) else value
    return as_expr(known) if isinstance(known, (int, torch.SymInt)) and not isinstance(known, bool) else None
