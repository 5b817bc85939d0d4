"""Axes: what the positions of a dimension mean.

Two axes of equal size are not the same axis. An axis is an ordered product, major to minor, of atoms: an int, rows
lo..S+hi of a symbol's index space, or a concatenation of axes. An axis that cannot be written so is opaque; whatever
is done along a padded opaque axis is a hazard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy


@dataclass(frozen=True)
class Rows:
    """Rows lo..S+hi of the index space of symbol S: S+hi-lo of them."""

    symbol: str
    lo: int = 0
    hi: int = 0


@dataclass(frozen=True)
class Cat:
    """Axes one after the other."""

    parts: tuple[Axis, ...]


@dataclass(frozen=True)
class Opaque:
    """A size whose positions nothing is known of. Two of them are never the same axis, unless one was taken from the
    other: `tag` tells them apart."""

    expr: sympy.Expr
    symbols: frozenset[str]
    tag: int


Atom = int | Rows | Cat | Opaque
Axis = tuple[Atom, ...]
ONE: Axis = ()


class Space:
    """Symbols of one graph: sympy symbols to names, and which names are padded in a captured run."""

    def __init__(
        self, names: Mapping[sympy.Symbol, str], padded: Iterable[str], most: Mapping[str, int] | None = None
    ) -> None:
        self.names = dict(names)
        self.most = dict(most or {})
        self.sympy = {name: symbol for symbol, name in self.names.items()}
        self.padded = frozenset(padded)
        self._axes: dict[sympy.Expr, Axis] = {}
        # What is asked of every node is answered once an axis: graphs have thousands of nodes and a few axes.
        self._sizes: dict[Axis, sympy.Expr] = {}
        self._symbols: dict[Axis, frozenset[str]] = {}
        self._layouts: dict[Axis, tuple[object, ...]] = {}
        self._tags = itertools.count()

    def expr(self, size: object) -> sympy.Expr:
        """A size as an expression; a minimum or maximum is decided where the largest or least extents decide it."""
        expr = as_expr(size)
        if expr.is_Integer or expr.is_Symbol:
            return expr
        return expr.replace(lambda e: type(e).__name__ in ("Min", "Max"), self._decided)

    def _decided(self, bound: sympy.Expr) -> sympy.Expr:
        """Min(number, e) is e where e is never larger, Max(number, e) is e where it is never smaller; sizes only grow
        with their symbols."""
        numbers = [a for a in bound.args if a.is_Integer]
        others = [a for a in bound.args if not a.is_Integer]
        if len(others) != 1 or not numbers or not only_grows(others[0]):
            return bound
        is_least = type(bound).__name__ == "Min"
        extreme = self.most if is_least else dict.fromkeys(self.sympy, 0)
        value = others[0].subs({s: extreme[n] for n, s in self.sympy.items() if n in extreme})
        decided = value.is_Integer and (value <= min(numbers) if is_least else value >= max(numbers))
        return others[0] if decided else bound

    def axis(self, size: object) -> Axis:
        """The axis of a fresh dimension of this size (an int or a SymInt)."""
        expr = self.expr(size)
        axis = self._axes.get(expr)
        if axis is None:
            axis = self._axis(expr)
            if not any(isinstance(a, Opaque) for a in axis):
                self._axes[expr] = axis
        return axis

    def _axis(self, expr: sympy.Expr) -> Axis:
        if expr.is_Integer:
            return ONE if expr == 1 else (int(expr),)
        scale, rest = expr.as_coeff_Mul()
        free = rest.free_symbols
        if len(free) == 1 and scale.is_Integer and scale > 0:
            (symbol,) = free
            shift = rest - symbol
            if shift.is_Integer and symbol in self.names:
                rows = Rows(self.names[symbol], 0, int(shift))
                return (rows,) if scale == 1 else (rows, int(scale))
        return (self.opaque(expr),)

    def opaque(self, expr: sympy.Expr) -> Opaque:
        """An axis like no other."""
        return Opaque(expr, frozenset(self.names.get(s, str(s)) for s in expr.free_symbols), next(self._tags))

    def size(self, axis: Axis) -> sympy.Expr:
        if axis not in self._sizes:
            self._sizes[axis] = sympy.Mul(*[self._atom_size(atom) for atom in axis])
        return self._sizes[axis]

    def _atom_size(self, atom: Atom) -> sympy.Expr:
        if isinstance(atom, int):
            return sympy.Integer(atom)
        if isinstance(atom, Rows):
            return self.sympy[atom.symbol] + (atom.hi - atom.lo)
        if isinstance(atom, Cat):
            return sympy.Add(*[self.size(part) for part in atom.parts])
        return atom.expr

    def same_size(self, a: Axis, b: Axis) -> bool:
        return a == b or sympy.expand(self.size(a) - self.size(b)) == 0

    def symbols(self, axis: Axis) -> frozenset[str]:
        """Every symbol that the size of an axis depends on."""
        known = self._symbols.get(axis)
        if known is None:
            known = self._symbols[axis] = self._found_symbols(axis)
        return known

    def _found_symbols(self, axis: Axis) -> frozenset[str]:
        found: set[str] = set()
        for atom in axis:
            if isinstance(atom, Rows):
                found.add(atom.symbol)
            elif isinstance(atom, Cat):
                found |= set().union(*[self.symbols(p) for p in atom.parts])
            elif isinstance(atom, Opaque):
                found |= atom.symbols
        return frozenset(found)

    def is_padded(self, axis: Axis) -> bool:
        return bool(self.symbols(axis) & self.padded)

    def is_opaque(self, axis: Axis) -> bool:
        """A padded axis whose tail cannot be told from its live part."""
        return self.is_padded(axis) and any(self._opaque_atom(atom) for atom in axis)

    def _opaque_atom(self, atom: Atom) -> bool:
        if isinstance(atom, Cat):
            return any(self.is_opaque(p) for p in atom.parts)
        return isinstance(atom, Opaque)

    def layout(self, axis: Axis) -> tuple[object, ...]:
        """Equal for axes of equal size whose live parts stand at the same positions; ("leading", size) where the live
        part comes first and is one block."""
        if axis not in self._layouts:
            self._layouts[axis] = self._found_layout(axis)
        return self._layouts[axis]

    def _found_layout(self, axis: Axis) -> tuple[object, ...]:
        if not self.is_padded(axis):
            return ("size", self.size(axis))
        first, *rest = axis
        leading = isinstance(first, Rows) or isinstance(first, Cat) and self._ends_leading(first)
        if leading and not self.is_opaque(axis) and all(isinstance(a, int) for a in rest):
            return ("leading", self.size(axis))
        return ("axis", axis)

    def _ends_leading(self, cat: Cat) -> bool:
        return not any(map(self.is_padded, cat.parts[:-1])) and self.layout(cat.parts[-1])[0] == "leading"

    # ------------------------------------------------------------------------------------------------ views
    def regroup(self, axes: Sequence[Axis], sizes: Sequence[object]) -> list[Axis]:
        """Axes of a view of these sizes: atoms are dealt out again in order; what does not fit becomes opaque."""
        atoms = [atom for axis in axes for atom in axis]
        result: list[Axis] = []
        for size in sizes:
            taken = self._take(atoms, self.expr(size))
            if taken is None:
                return [self._fallback(s) for s in sizes]
            result.append(taken)
        if any(self._atom_size(atom) != 1 for atom in atoms):
            return [self._fallback(s) for s in sizes]
        return result

    def _fallback(self, size: object) -> Axis:
        expr = self.expr(size)
        if expr.is_Integer:
            return ONE if expr == 1 else (int(expr),)
        return (self.opaque(expr),)

    def _take(self, atoms: list[Atom], size: sympy.Expr) -> Axis | None:
        taken: list[Atom] = []
        rest = sympy.expand(size)
        while rest != 1:
            if not atoms:
                return None
            atom = atoms.pop(0)
            quotient = sympy.cancel(rest / self._atom_size(atom))
            if _is_polynomial(quotient):
                taken.append(atom)
                rest = sympy.expand(quotient)
            elif isinstance(atom, int) and rest.is_Integer and atom % int(rest) == 0:
                taken.append(int(rest))
                atoms.insert(0, atom // int(rest))
                rest = sympy.Integer(1)
            else:
                return None
        return merge_ints(taken)

    def slice(self, axis: Axis, start: int, size: object) -> Axis:
        """The axis of rows start.. of `axis`, of which the FakeTensor says that there are `size`."""
        expr = self.expr(size)
        if len(axis) == 1 and isinstance(axis[0], Rows) and start >= 0:
            rows = axis[0]
            hi = expr - self.sympy[rows.symbol] + rows.lo + start
            if hi.is_Integer:
                return (Rows(rows.symbol, rows.lo + start, int(hi)),)
        if len(axis) == 1 and isinstance(axis[0], Cat):
            return self._slice_cat(axis[0], start, expr)
        if not self.is_padded(axis):
            return self.axis(size)
        return axis if start == 0 and expr == self.size(axis) else self._fallback(size)

    def _slice_cat(self, cat: Cat, start: int, size: sympy.Expr) -> Axis:
        """A window that ends inside the last part, of a constant head and one symbolic part: the shifted rows of a
        left-padded sequence. Row i of it is row i-(head-start) of the part, so its tail starts no earlier."""
        if len(cat.parts) == 2 and self.size(cat.parts[0]).is_Integer and len(cat.parts[1]) == 1:
            head, rows = int(self.size(cat.parts[0])), cat.parts[1][0]
            if isinstance(rows, Rows) and 0 <= start <= head:
                extra = size - self._atom_size(rows)
                if extra.is_Integer and extra <= head - start:
                    if extra == 0:
                        return (rows,)
                    return (Cat(((int(extra),), cat.parts[1])),) if extra > 0 else self._fallback(size)
        return self._fallback(size)

    def concat(self, parts: Sequence[Axis]) -> Axis:
        """The axis of parts one after the other: no part is a concatenation, and no two neighbours are both numbers."""
        merged: list[Axis] = []
        for part in self._flat(parts):
            if merged and _is_number(part) and _is_number(merged[-1]):
                merged[-1] = self.axis(self.size(part) + self.size(merged[-1]))
            elif self.size(part) != 0:
                merged.append(part)
        if len(merged) == 1:
            return merged[0]
        return (Cat(tuple(merged)),) if merged else self.axis(0)

    def _flat(self, parts: Sequence[Axis]) -> list[Axis]:
        flat: list[Axis] = []
        for part in parts:
            flat += part[0].parts if len(part) == 1 and isinstance(part[0], Cat) else [part]
        return flat

    # ------------------------------------------------------------------------------------------------ extents
    def extent(self, axis: Axis, symbols: Mapping[str, int]) -> int:
        result = 1
        for atom in axis:
            result *= self.atom_extent(atom, symbols)
        return result

    def atom_extent(self, atom: Atom, symbols: Mapping[str, int]) -> int:
        if isinstance(atom, int):
            return atom
        if isinstance(atom, Rows):
            return max(0, symbols[atom.symbol] + atom.hi - atom.lo)
        if isinstance(atom, Cat):
            return sum(self.extent(p, symbols) for p in atom.parts)
        return int(atom.expr.subs({self.sympy[n]: symbols[n] for n in atom.symbols if n in symbols}))


def merge_ints(atoms: Sequence[Atom]) -> Axis:
    merged: list[Atom] = []
    for atom in atoms:
        if isinstance(atom, int) and merged and isinstance(merged[-1], int):
            merged[-1] = merged[-1] * atom
        elif atom != 1:
            merged.append(atom)
    return tuple(merged)


def as_expr(size: object) -> sympy.Expr:
    """An int, SymInt or sympy expression as a sympy expression."""
    node = getattr(size, "node", None)
    return sympy.sympify(node.expr if node is not None else size)


def _is_number(axis: Axis) -> bool:
    return all(isinstance(atom, int) for atom in axis)


def only_grows(expr: sympy.Expr) -> bool:
    """Whether an expression is a polynomial with no negative coefficient but the constant's."""
    symbols = sorted(expr.free_symbols, key=str)
    if not symbols or not expr.is_polynomial(*symbols):
        return False
    return all(c >= 0 for powers, c in sympy.Poly(expr, *symbols).terms() if any(powers))


def _is_polynomial(expr: sympy.Expr) -> bool:
    numerator, denominator = expr.as_numer_denom()
    return denominator == 1 and (not numerator.is_Integer or numerator >= 1)


def show(axis: Axis) -> str:
    return "*".join(_show_atom(a) for a in axis) or "1"


def _show_atom(atom: Atom) -> str:
    if isinstance(atom, int):
        return str(atom)
    if isinstance(atom, Rows):
        extra = atom.hi - atom.lo
        return f"{atom.symbol}{extra:+d}" if extra else atom.symbol
    if isinstance(atom, Cat):
        return "(" + "|".join(show(p) for p in atom.parts) + ")"
    return f"?{atom.expr}"
