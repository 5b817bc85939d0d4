"""Hazards that a kernel has by itself, with what must hold around it for them not to matter.

Nothing is known of the caller here, so a hazard is `assumed` unless the kernel alone shows it (`refuted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.axes import Role, axes_of
from capwise.kernel_access.bounds import Bounds, facts_at
from capwise.kernel_access.linear import Prover, facts_of
from capwise.kernel_access.overlap import overlaps
from capwise.kernel_access.printing import text
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.searches import Search
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import SEARCHED, Node, Poly, addressing
from capwise.kernel_access.unrolled import ends_of

if TYPE_CHECKING:
    from capwise.kernel_access.machine import Machine

_FILL = {"boundary": "last", "length": "0", "slot": "the null slot"}
_LIMIT = 2**31


@dataclass(frozen=True)
class KernelHazard:
    """code: CW###. verdict: refuted or assumed. needs: what would make it harmless. line: where in the kernel."""

    code: str
    verdict: str
    needs: str
    line: int


@dataclass(frozen=True)
class Scene:
    """What hazards of one argument are judged by: its accesses, the roles of loaded values, the searches of it that
    are proved, and the whole kernel."""

    arg: str
    accesses: Sequence[Access]
    roles: Mapping[str, Role]
    searches: Sequence[Search]
    machine: Machine


def hazards_of(scene: Scene) -> tuple[KernelHazard, ...]:
    """Hazards of one argument, each once, in order of code."""
    rules: tuple[Callable[[Scene], Iterator[KernelHazard]], ...] = (
        frozen_extent, stale_tail, unguarded_state, overlap, unit_stride, offset_width)  # fmt: skip
    found: dict[tuple[str, str], KernelHazard] = {}
    for rule in rules:
        for hazard in rule(scene):
            found.setdefault((hazard.code, hazard.needs), hazard)
    return tuple(found.values())


def frozen_extent(scene: Scene) -> Iterator[KernelHazard]:
    """CW101 iff a scalar argument bounds a loop, a search or the rows this argument is accessed in."""
    fill = _FILL.get(scene.roles.get(scene.arg, ""), "")
    for access in scene.accesses:
        for name in sorted(bounding_scalars(access)):
            tail = f", with {scene.arg} filled past the live extent: {fill}" if fill else ""
            yield KernelHazard("CW101", "assumed", f"{name} in the key, or captured at capacity{tail}", access.line)
    for search in scene.searches:
        for name in sorted(search.scalars if search.loop is None else ()):
            tail = f", with {scene.arg} filled past the live extent: {fill}"
            yield KernelHazard("CW101", "assumed", f"{name} in the key, or captured at capacity{tail}", search.line)
        if search.room is not None and search.rounds is not None:
            needs = f"{text(search.room)} < 2**{search.rounds}, so that the search ends in {search.rounds} rounds"
            yield KernelHazard("CW101", "assumed", needs, search.line)


def stale_tail(scene: Scene) -> Iterator[KernelHazard]:
    """CW201 iff what is read past the live extent steers the kernel (boundaries, lengths) or is summed."""
    role = scene.roles.get(scene.arg)
    for access in scene.accesses:
        if access.kind != "load":
            continue
        if role in ("boundary", "length") and (_by_program(access) or bounding_scalars(access)):
            needs = f"fill {_FILL[role]}: {scene.arg} past the live extent{_unproved(scene, access)}"
            yield KernelHazard("CW201", "assumed", needs, access.line)
        elif role is None and _summed(access):
            yield KernelHazard("CW201", "assumed", f"a neutral fill of {scene.arg} past the live extent", access.line)


def _unproved(scene: Scene, access: Access) -> str:
    """What a search by role alone still needs."""
    moving = {n.args[0] for n in access.poly.leaves if n.op in ("trip", "carry")}
    if scene.roles.get(scene.arg) != "boundary" or not moving or moving & {s.loop for s in scene.searches}:
        return ""
    return f", and the search at line {access.line} ends at the row of its key, which is not proved"


def _by_program(access: Access) -> bool:
    return any(leaf.op == "pid" for leaf in access.poly.leaves)


def _summed(access: Access) -> bool:
    """Rows run through by a loop whose end is a scalar, in a kernel where no program owns a row of them."""
    own = {n for n in access.poly.nodes() if n.op in ("pid", "load")}
    trips = {n for n in access.poly.nodes() if n.op == "trip"}
    return bool(trips) and not own and bool(bounding_scalars(access))


def bounding_scalars(access: Access) -> set[str]:
    """Scalar arguments that end a loop which moves this access, or that rows are compared with."""
    names: set[str] = set()
    moved = access.poly.leaves
    for ident in {n.args[0] for n in moved if n.op in ("trip", "carry", "exit")}:
        loop = access.table.get(ident) if isinstance(ident, int) else None
        if loop is not None:
            names |= {str(n.args[0]) for n in _ends(loop, moved)}
    for found in (n for n in moved if n.op in SEARCHED):
        names |= {str(n.args[0]) for p in ends_of(found) for n in p.leaves if n.op == "sym"}
    rows = {n for n in moved if n.op == "pid"}
    for fact in facts_of([access.condition]):
        if rows & fact.nodes():
            names |= {str(n.args[0]) for m, c in fact.terms.items() for n in m if n.op == "sym" and len(m) == 1}
    return names


def _ends(loop: Loop, moved: frozenset[Node]) -> set[Node]:
    """Scalars in what ends a loop: the upper bound, or the test and the first values of what is tested or moves."""
    out: set[Node] = set(loop.upper.leaves if loop.upper is not None else ())
    tested = loop.condition.leaves if loop.condition is not None else frozenset()
    out |= tested
    for node, (first, _) in loop.carried.items():
        if node in tested | moved:
            out |= first.leaves
    return {n for n in out if n.op == "sym"} - _inside_loads(out)


def _inside_loads(leaves: set[Node]) -> set[Node]:
    """Scalars that only say where a loaded bound stands."""
    return {inside for leaf in leaves if leaf.op == "load" for inside in leaf.leaves if inside.op == "sym"}


def unguarded_state(scene: Scene) -> Iterator[KernelHazard]:
    """CW204 iff a row that a loaded slot names is written, and no value of the slot keeps the program from it."""
    for access in scene.accesses:
        if access.kind == "load" or access.reason:
            continue
        for leaf in _slots(access, scene.roles):
            if not null_values(access, leaf):
                needs = f"a null check on {leaf.args[0]}, or its tail filled with a slot whose row is scratch"
                yield KernelHazard("CW204", "assumed", needs, access.line)


def _slots(access: Access, roles: Mapping[str, Role]) -> list[Node]:
    loads = [n for n in addressing(access.poly) if n.op == "load" and roles.get(str(n.args[0])) == "slot"]
    nested = {inside for n in loads for inside in n.leaves if inside is not n}
    return sorted((n for n in loads if n not in nested), key=lambda n: n.uid)


def null_values(access: Access, slot: Node) -> list[int]:
    """Values of a loaded slot with which the access does not happen: of -1, 0 and the constants it is compared with."""
    space = access.space
    tried = {-1, 0} | _compared(access.condition, slot)
    prover = Prover(space, Bounds(space, access.table).meaning)
    out = []
    for value in sorted(tried):
        left = Rewriter(space, {slot: Poly.of(value)}.get).truth(access.condition)
        if left is space.false or prover.contradiction(facts_of([left]), 1):
            out.append(value)
    return out


def _compared(condition: Node, slot: Node) -> set[int]:
    """Constants that a condition compares the slot with."""
    out: set[int] = set()
    for part in [condition, *(a for a in condition.args if isinstance(a, Node))]:
        inner = part.args[0] if part.op == "not" else part
        if isinstance(inner, Node) and inner.op == "eq":
            (poly,) = inner.polys()
            factor = poly.terms.get((slot,))
            rest = (poly - Poly({(slot,): factor or 0})).const
            if factor and rest is not None:
                out.add(-rest // factor)
    return out


def overlap(scene: Scene) -> Iterator[KernelHazard]:
    """CW304 iff a load and a plain store of one launch may meet out of order."""
    for found in overlaps(scene.accesses):
        yield KernelHazard("CW304", found.verdict, found.needs, found.store.line)


def unit_stride(scene: Scene) -> Iterator[KernelHazard]:
    """CW401 iff rows of the argument are taken to be one element apart, with no stride passed."""
    for access in scene.accesses:
        if access.reason:
            continue
        axes = axes_of(access)
        for axis in axes:
            lone = len(axes) == 1 and not access.shape
            if axis.stride == "unit" and (axis.row or lone):
                yield KernelHazard("CW401", "assumed", f"{scene.arg} has stride 1 along {axis.by}", access.line)


def offset_width(scene: Scene) -> Iterator[KernelHazard]:
    """CW403 iff an offset made in 32 bits holds a product with no constant bound below 2**31."""
    for access in scene.accesses:
        if access.reason:
            continue
        bounds = Bounds(access.space, access.table, facts_at(access, scene.machine.assumed))
        for part in sorted(access.narrow, key=Poly.order):
            needs = _too_wide(bounds, part)
            if needs:
                known = bounds.upper(part)
                sure = known is not None and known.const is not None
                yield KernelHazard("CW403", "refuted" if sure else "assumed", needs, access.line)


def _too_wide(bounds: Bounds, part: Poly) -> str:
    if not _grows(part):
        return ""
    high = bounds.upper(part)
    if high is None:
        return f"{text(part)} < 2**31"
    if high.const is not None:
        return f"{high.const} < 2**31" if high.const >= _LIMIT else ""
    return f"{text(high)} < 2**31" if _grows(high) else ""


def _grows(poly: Poly) -> bool:
    """Some term multiplies what has no constant bound by more than 1."""
    for monomial, coefficient in poly.terms.items():
        free = [n for n in monomial if n.high is None]
        if len(free) > 1 or (free and (abs(coefficient) > 1 or len(monomial) > 1)):
            return True
    return False


def taken_for_granted(space: Space, accesses: Sequence[Access], roles: Mapping[str, Role]) -> tuple[str, ...]:
    """What no hazard says but the caller must keep: constant row strides, and rows of one slot each."""
    out: dict[str, None] = {}
    for access in accesses:
        for axis in axes_of(access) if not access.reason else ():
            if axis.row and axis.stride.startswith("constant:"):
                out[f"row stride of {access.arg} along {axis.by} is {axis.stride.partition(':')[2]}"] = None
        if access.kind == "store":
            for leaf in _slots(access, roles):
                out[f"slots in {leaf.args[0]} are distinct"] = None
    return tuple(out)
