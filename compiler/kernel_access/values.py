"""What an SSA value of a kernel can be: integer, truth value, pointer, block pointer, or something not followed.

Tensors are functions of their index: a value of shape (n0, n1) is an expression over the lanes (0, n0) and (1, n1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Poly

Shape = tuple[int, ...]
FOREIGN = "*"
"""Base of a pointer that was itself read from memory: no argument of the kernel."""


@dataclass(frozen=True, slots=True)
class Int:
    """Integer scalar or tensor. `bits` is the machine width; `narrow` holds what must fit 32 bits for `poly` to be
    the machine's value at a width above (what was widened, divided or compared after 32-bit arithmetic)."""

    poly: Poly
    shape: Shape = ()
    bits: int = 32
    narrow: frozenset[Poly] = frozenset()


@dataclass(frozen=True, slots=True)
class Bool:
    """Truth value, scalar or tensor."""

    node: Node
    shape: Shape = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One place a pointer may point: argument name (None: not known), offset in elements, and when."""

    when: Node
    base: str | None
    offset: Poly
    narrow: frozenset[Poly] = frozenset()


@dataclass(frozen=True, slots=True)
class Ptr:
    """Pointer scalar or tensor; the cases exclude each other. `pointee` is the element type as MLIR text."""

    cases: tuple[Case, ...]
    shape: Shape = ()
    pointee: str = ""


@dataclass(frozen=True, slots=True)
class BlockPtr:
    """A block pointer: element (i, j) stands at base + sum((offset_d + i_d) * stride_d)."""

    base: Ptr
    sizes: tuple[Int, ...]
    strides: tuple[Int, ...]
    offsets: tuple[Int, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Unknown:
    """Floats and all that is not followed; `reason` is set when an address made from it is not followed either."""

    shape: Shape = ()
    reason: str = ""


Value = Int | Bool | Ptr | BlockPtr | Unknown


def lanes(space: Space, shape: Sequence[int]) -> tuple[Poly, ...]:
    """The index of a tensor of this shape, one polynomial a dimension."""
    return tuple(space.lane(dim, size) for dim, size in enumerate(shape))


def reindex(space: Space, value: Value, shape: Shape, index: Sequence[Poly]) -> Value:
    """The tensor whose element at its own lanes is `value` at `index` (one polynomial for each old dimension).

    A constant 0 index on a dimension of extent 1 is what broadcasting means."""
    names = {}
    for dim, size in enumerate(value.shape):
        node = space.lane(dim, size).node
        if node is not None and index[dim].node is not node:
            names[node] = index[dim]
    if not names:
        return replace(value, shape=shape)
    rewriter = Rewriter(space, names.get)
    return replace(mapped(value, rewriter.poly, rewriter.truth), shape=shape)


def mapped(value: Value, poly: Callable[[Poly], Poly], truth: Callable[[Node], Node]) -> Value:
    """The value with its expressions rewritten."""
    if isinstance(value, Int):
        return replace(value, poly=poly(value.poly), narrow=frozenset(map(poly, value.narrow)))
    if isinstance(value, Bool):
        return replace(value, node=truth(value.node))
    if isinstance(value, Ptr):
        return replace(value, cases=tuple(_mapped_case(c, poly, truth) for c in value.cases))
    return value


def _mapped_case(case: Case, poly: Callable[[Poly], Poly], truth: Callable[[Node], Node]) -> Case:
    return Case(truth(case.when), case.base, poly(case.offset), frozenset(map(poly, case.narrow)))


def choose(space: Space, condition: Node, a: Value, b: Value) -> Value:
    """a where the condition holds, else b; Unknown where the two are of different kinds."""
    if a == b or condition is space.true:
        return a
    if condition is space.false:
        return b
    shape = a.shape or b.shape
    if isinstance(a, Int) and isinstance(b, Int):
        return Int(space.choose(condition, a.poly, b.poly), shape, max(a.bits, b.bits), a.narrow | b.narrow)
    if isinstance(a, Bool) and isinstance(b, Bool):
        return Bool(space.pick(condition, a.node, b.node), shape)
    if isinstance(a, Ptr) and isinstance(b, Ptr):
        return Ptr(_cases(space, condition, a, b), shape, a.pointee)
    return Unknown(shape, "a choice between values of different kinds")


def _cases(space: Space, condition: Node, a: Ptr, b: Ptr) -> tuple[Case, ...]:
    """Cases of both sides under the condition; sides of one single base become one offset."""
    if len(a.cases) == len(b.cases) == 1 and a.cases[0].base == b.cases[0].base:
        one, two = a.cases[0], b.cases[0]
        offset = space.choose(condition, one.offset, two.offset)
        return (Case(space.pick(condition, one.when, two.when), one.base, offset, one.narrow | two.narrow),)
    sides = [(condition, c) for c in a.cases] + [(space.negate(condition), c) for c in b.cases]
    whole = tuple(replace(c, when=space.both([side, c.when])) for side, c in sides)
    return tuple(c for c in whole if c.when is not space.false)
