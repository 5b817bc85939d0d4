"""Which index an argument is addressed by, and with which stride; and what loaded values are used for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.bounds import inner, inner_poly, poly_of
from capwise.kernel_access.linear import facts_of
from capwise.kernel_access.printing import text
from capwise.kernel_access.symbolic import Node, Poly, addressing

Role = Literal["boundary", "length", "slot"]


@dataclass(frozen=True)
class Axis:
    """by: "pid0", "range" or "load:<arg>". stride: "unit", "passed:<arg>" ("*" between several), "constant:<n>" or
    "unknown". row: the index is a program, a loaded value or a search, and not a tile's own range."""

    by: str
    stride: str
    row: bool = False


def axes_of(access: Access) -> list[Axis]:
    """One axis for each index in the offset. A tile that a mask bounds together with its program id is one axis."""
    out: list[Axis] = []
    steps = _steps(access)
    for node in sorted((n for n in access.poly.nodes() if inner(n)), key=lambda n: n.uid):
        coefficient = access.poly.coefficient(node)
        if node.op == "trip" and _starts_at(access, node, coefficient):
            continue
        by, row = _by(node, access.table)
        step = access.table[_ident(node)].step if node.op == "trip" else None
        whole = coefficient.divided(step) if step is not None else None
        if node.op in ("pid", "load") and node in steps:
            whole = coefficient.divided(steps[node])
        out.append(Axis(by, stride_of(whole if whole is not None else coefficient), row))
    return sorted(set(out), key=lambda a: (a.by, a.stride, a.row))


def _ident(node: Node) -> int:
    assert isinstance(node.args[0], int)
    return node.args[0]


def _steps(access: Access) -> dict[Node, Poly]:
    """Row indices that a condition bounds together with a tile's lane, and how many lanes one row index spans."""
    out: dict[Node, Poly] = {}
    for fact in facts_of([access.condition]):
        spans = [n for n in fact.nodes() if n.op == "lane"]
        for node in fact.nodes():
            if node.op != "pid" or not spans:
                continue
            for lane in spans:
                width = fact.coefficient(node).divided(fact.coefficient(lane))
                if width is not None and width.const == lane.args[1]:
                    out[node] = width
    return out


def _starts_at(access: Access, trip: Node, coefficient: Poly) -> bool:
    """The loop starts at a program id or loaded value that is in the offset with the same stride: one axis, not two."""
    loop = access.table[_ident(trip)]
    if loop.lower is None or loop.step is None:
        return False
    stride = coefficient.divided(loop.step)
    rows = [n for n in loop.lower.nodes() if inner(n)]
    return any(access.poly.coefficient(n) == loop.lower.coefficient(n) * (stride or Poly.of(0)) for n in rows)


def _by(node: Node, table: Mapping[int, Loop]) -> tuple[str, bool]:
    """Name of an index, and whether it is a row."""
    if node.op == "load":
        return f"load:{node.args[0]}", True
    if node.op == "pid":
        return f"pid{node.args[0]}", True
    leaves = sorted(addressing(poly_of(node)), key=lambda n: n.uid)
    if node.op not in ("carry", "exit", "trip", "lane"):
        nested = {n for leaf in leaves if leaf.op == "load" for n in leaf.leaves if n is not leaf}
        outer = [n for n in leaves if n not in nested]
        for kind in ("load", "pid"):
            for leaf in outer:
                if leaf.op == kind:
                    return _by(leaf, table)[0], node.op != "rem"
    return "range", any(leaf.op in ("carry", "exit", "found") for leaf in leaves)


def stride_of(coefficient: Poly) -> str:
    """ "unit", "constant:<n>", "passed:<arg>" or "unknown"."""
    constant = coefficient.const
    if constant is not None:
        return "unit" if constant == 1 else f"constant:{constant}"
    if inner_poly(coefficient) or any(n.op != "sym" for n in coefficient.nodes()):
        return "unknown"
    if len(coefficient.terms) == 1:
        ((names, _),) = coefficient.terms.items()
        return "passed:" + "*".join(sorted(text(poly_of(n)) for n in names))
    return "passed:" + text(coefficient).replace(" ", "")


# what loaded values are used for ----------------------------------------------------------------------------------


def roles(accesses: Sequence[Access], table: Mapping[int, Loop], found: Iterable[str] = ()) -> dict[str, Role]:
    """Use of the integers read from each argument, as far as they steer anything.

    boundary: neighbours are compared, or a search reads them; a stale tail gives wrong live results, fill `last`.
    length: bounds a loop or a mask; fill 0. slot: part of an address; fill the null slot. found: arguments that are
    known to be searched."""
    offsets: dict[str, set[Poly]] = {}
    for access in accesses:
        if access.kind == "load" and access.arg:
            offsets.setdefault(access.arg, set()).add(access.poly)
    bounding = _loads(_bounding(accesses, table))
    searched = {arg for arg in offsets if any(_searching(o, table, arg) for o in offsets[arg])} | set(found)
    paired = {arg for arg, polys in offsets.items() if _neighbours(polys)}
    address = _loads(leaf for a in accesses for leaf in addressing(a.poly))
    out: dict[str, Role] = {}
    for arg in offsets:
        if arg in searched or (arg in paired and arg in bounding | address):
            out[arg] = "boundary"
        elif arg in address:
            out[arg] = "slot"
        elif arg in bounding:
            out[arg] = "length"
    return out


def _loads(leaves: Iterable[Node]) -> set[str]:
    return {str(n.args[0]) for n in leaves if n.op == "load"}


def _bounding(accesses: Sequence[Access], table: Mapping[int, Loop]) -> set[Node]:
    """Leaves of loop bounds, conditions and masks."""
    leaves: set[Node] = set()
    for loop in table.values():
        for poly in (loop.lower, loop.upper):
            leaves |= poly.leaves if poly is not None else set()
        leaves |= loop.condition.leaves if loop.condition is not None else set()
    for access in accesses:
        leaves |= _ordered(access.condition)
    return leaves


def _ordered(condition: Node) -> frozenset[Node]:
    """What the two sides of the order comparisons in a condition are made of: a test for equality bounds nothing, nor
    does a flag that chooses between bounds."""
    if condition.op == "ge":
        return frozenset().union(*map(addressing, condition.polys()))
    parts = (_ordered(a) for a in condition.args if isinstance(a, Node))
    return frozenset().union(*parts) if condition.op in ("and", "or", "not") else frozenset()


def _searching(offset: Poly, table: Mapping[int, Loop], arg: str) -> bool:
    """The offset moves with a loop, and what is read there decides how the loop goes on or ends."""
    for leaf in offset.leaves:
        if leaf.op in ("carry", "trip") and (loop := table.get(_ident(leaf))) is not None:
            steering = {n for _, after in loop.carried.values() for n in after.leaves}
            steering |= loop.condition.leaves if loop.condition is not None else set()
            if any(n.op == "load" and n.args[0] == arg and leaf in n.leaves for n in steering):
                return True
    return False


def _neighbours(offsets: set[Poly]) -> bool:
    """Some two differ by one element, or by one stride that is passed."""
    ordered = sorted(offsets, key=Poly.order)
    for i, a in enumerate(ordered):
        for b in ordered[i + 1 :]:
            gap = a - b
            node = gap.node or (-gap).node
            if gap.const in (1, -1) or (node is not None and node.op == "sym"):
                return True
    return False
