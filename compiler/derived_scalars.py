"""Numbers that a launch freezes: which of them may be other at replay without showing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.symbolic import LEAVES, SEARCHED, Node, Poly, addressing
from capwise.launch import ENDS, Launch, Row

Rows = Mapping[str, Sequence[tuple[Access, Row]]]


def check_scalars(launch: Launch, rows: Rows, reasons: list[str]) -> set[str]:
    """The scalars that enter data, or decide more than where rows end: a recording must not freeze those.

    A number that changes with the batch is harmless iff it is the extent of an axis and only ends the program's own
    rows along it, or bounds a search of boundaries, which their last value, repeated, ends in the same place. One that
    says how often a loop runs is none of these, and is a reason.
    """
    view = launch.view
    searching = {s.loop for s in view.searches if s.loop is not None}
    steering = frozenset[Node]().union(*(s.tests for s in view.searches))
    host: set[str] = set()
    for loop in view.loops.values():
        names = launch.open_in(*_leaves(launch, loop))
        if names and loop.ident not in searching:
            reasons.append(f"the loop at line {loop.line} depends on {', '.join(sorted(names))}")
    for poly in view.seen.content:
        host |= launch.open_in(*_surface(launch.live(poly)))
    for test in (t for t in view.seen.tests if t not in steering):
        node = launch.live_truth(test)
        names = launch.open_in(*_surface(node))
        if names and not _moves(node, searching) and not ends_rows(launch, node, rows):
            host |= names
    for access in view.accesses:
        host |= _in_address(launch, access)
    return host & set(launch.scalars)


def _leaves(launch: Launch, loop: Loop) -> set[Node]:
    polys = [p for p in (loop.lower, loop.upper, loop.step) if p is not None]
    polys += [first for first, _ in loop.carried.values()]
    leaves = set().union(*(launch.poly(p).leaves for p in polys))
    return leaves | (launch.truth(loop.condition).leaves if loop.condition is not None else set())


def _surface(part: Poly | Node) -> set[Node]:
    """Leaves that are not only in the address of what is loaded, nor only in what a search takes to find a row:
    accesses and searches are looked at by themselves."""
    found: set[Node] = set()
    todo = [part] if isinstance(part, Node) else list(part.nodes())
    while todo:
        node = todo.pop()
        if node.op in LEAVES:
            found.add(node)
        if node.op != "load" and node.op not in SEARCHED:
            todo += [a for a in node.args if isinstance(a, Node)]
            todo += [n for p in node.polys() for n in p.nodes()]
    return found


def _moves(node: Node, searching: set[int]) -> bool:
    return any(n.op in ("carry", "trip") and n.args[0] in searching for n in node.leaves)


def ends_rows(launch: Launch, test: Node, rows: Rows) -> bool:
    """The comparison is `row < extent`, for the program's own row of an axis of that extent, or for a boundary."""
    inner = test.args[0] if test.op == "not" else test
    if not isinstance(inner, Node) or inner.op != "ge":
        return False
    (poly,) = inner.polys()
    for sign in (poly, -poly - 1):  # the comparison, or what it is the negation of
        ends = [m for m in sign.terms if any(launch.open_in(n) for n in m)]
        if len(ends) == 1 and len(ends[0]) == 1 and sign.terms[ends[0]] > 0:
            factor = sign.terms[ends[0]]
            whole = Poly({ends[0]: factor}) - sign - 1
            below = whole.divided(Poly.of(factor))
            extent = launch.scalars.get(str(ends[0][0].args[0]))
            if extent is not None and _is_own(launch, whole, extent * factor, rows):
                return True
            if below is not None and extent is not None:
                if _is_own(launch, below, extent, rows) or _is_boundary(launch, below):
                    return True
    return False


def _is_boundary(launch: Launch, below: Poly) -> bool:
    """Boundaries that a live program reads name live rows: they are below the live extent and the captured one."""
    leaves = addressing(below)
    return (
        bool(leaves)
        and all(n.op == "load" or n.op == "pid" and _inside(n, leaves) for n in leaves)
        and all(launch.view.roles.get(str(n.args[0])) == "boundary" for n in leaves if n.op == "load")
    )


def _inside(node: Node, leaves: set[Node]) -> bool:
    """A program id that only says which boundary is read."""
    return any(n.op == "load" and node in n.leaves for n in leaves)


def _is_own(launch: Launch, below: Poly, extent: sympy.Expr, rows: Rows) -> bool:
    for name, found in rows.items():
        for _, row in found:
            pairs = ((row.poly, row.scale), (row.index(launch.view.space), 1))
            if any(below == poly and sympy.expand(extent - launch.size(name) * scale) == 0 for poly, scale in pairs):
                return True
    return False


def _clamping(launch: Launch, name: str, poly: Poly) -> set[str]:
    """The number of rows, where what a search ends with is kept below it: what a live program finds is below anyway."""
    found: set[str] = set()
    for node in (n for n in poly.nodes() if n.op == "min"):
        ends = [p for p in node.polys() if any(n.op in ENDS for n in p.leaves)]
        limits = [p for p in node.polys() if p not in ends]
        names = launch.open_in(*(leaf for p in limits for leaf in p.leaves))
        if ends and all(launch.scalars.get(n) == launch.size(name) for n in names):
            found |= names
    return found


def _in_address(launch: Launch, access: Access) -> set[str]:
    """Numbers that say where an access is, other than as a stride of the tensor or as the last boundary."""
    poly = launch.live(access.poly)
    tensor = launch.tensors.get(access.arg or "")
    if tensor is None:
        return set()
    strides = {sympy.sympify(s) for s in tensor.strides}
    names = {n for n in launch.open_in(*_surface(poly)) if launch.scalars.get(n) not in strides}
    names -= _clamping(launch, access.arg or "", poly)
    if launch.view.roles.get(access.arg or "") != "boundary":
        return names
    last = launch.size(access.arg or "") - 1
    return {n for n in names if sympy.expand(launch.scalars[n] - last) != 0} if names <= set(launch.scalars) else names
