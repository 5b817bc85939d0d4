"""Memory operations of a kernel: what each touches, under which conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from capwise.kernel_access.arith import bits_of, is_int, widened
from capwise.kernel_access.parse import Op, Type
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Poly, interval
from capwise.kernel_access.values import FOREIGN, BlockPtr, Bool, Case, Int, Ptr, Shape, Unknown, Value, choose, lanes

if TYPE_CHECKING:
    import sympy

    from capwise.kernel_access.machine import Machine

Kind = Literal["load", "store", "atomic"]
POINTER_TABLE = "a pointer read from memory"
_LACKING = {None: "the base of the pointer is not known", FOREIGN: POINTER_TABLE}


@dataclass
class Loop:
    """One scf.for (`upper`, `step` set) or scf.while (`condition` set).

    `trip` counts iterations from 0. `carried` maps what a loop carries and has no closed form to its first and next
    value; next is in terms of the carried symbols themselves. `parents` are the loops around, outermost first.
    `invariants` are worked out when first asked for (`bounds.invariants`)."""

    ident: int
    trip: Node
    parents: tuple[int, ...]
    line: int
    guards: tuple[Node, ...]
    lower: Poly | None = None
    upper: Poly | None = None
    step: Poly | None = None
    condition: Node | None = None
    carried: dict[Node, tuple[Poly, Poly]] = field(default_factory=dict)
    shapes: dict[Node, Shape] = field(default_factory=dict)
    invariants: list[Poly] | None = None

    @property
    def index(self) -> Poly:
        """The induction variable of a for loop."""
        assert self.lower is not None and self.step is not None
        return self.lower + self.step * Poly({(self.trip,): 1})

    def rewrite(self, rewriter: Rewriter) -> None:
        """Replace parts of its expressions."""
        poly, truth = rewriter.poly, rewriter.truth
        bounds = (self.lower, self.upper, self.step)
        self.lower, self.upper, self.step = (poly(p) if p is not None else None for p in bounds)
        self.condition = truth(self.condition) if self.condition is not None else None
        self.guards = tuple(map(truth, self.guards))
        self.carried = {node: (poly(first), poly(after)) for node, (first, after) in self.carried.items()}


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of one argument.

    kind: load, store or atomic. arg: the pointer argument, None where the base is not known. shape: the tile. poly:
    offset from the pointer in elements. mask: condition a lane, None for none. guards: conditions a program, all of
    which hold where this runs. loops: enclosing loops, outermost first. line: in the kernel's file. width: 32 where
    some part of the offset is computed in 32 bits, else 64; `narrow` are those parts. order: position in the text of
    the kernel. barrier: how many barriers stand before it. table: every loop by number.
    reason: why the offset is not followed, or empty."""

    kind: Kind
    arg: str | None
    shape: Shape
    poly: Poly
    mask: Node | None
    guards: tuple[Node, ...]
    loops: tuple[int, ...]
    line: int
    bits: int
    narrow: frozenset[Poly]
    order: int
    barrier: int
    space: Space = field(repr=False, compare=False)
    table: Mapping[int, Loop] = field(repr=False, compare=False)
    reason: str = ""

    @property
    def width(self) -> int:
        """32 where a part without a constant bound is computed in 32 bits, else 64."""
        return 32 if any(interval(part)[1] is None for part in self.narrow) else 64

    @property
    def offset(self) -> sympy.Expr:
        """The offset in elements as a sympy expression (pid0, lane0, trip1, scalar names, idx_ptr(...))."""
        from capwise.kernel_access.printing import to_sympy

        return to_sympy(self.poly)

    @property
    def condition(self) -> Node:
        """Guards and mask together."""
        return self.space.both([*self.guards, *([self.mask] if self.mask else [])])

    def mapped(self, rewriter: Rewriter) -> Access:
        """The same with parts of its expressions replaced."""
        mask = rewriter.truth(self.mask) if self.mask is not None else None
        guards, narrow = tuple(map(rewriter.truth, self.guards)), frozenset(map(rewriter.poly, self.narrow))
        return replace(self, poly=rewriter.poly(self.poly), mask=mask, guards=guards, narrow=narrow)


def block_cases(machine: Machine, pointer: BlockPtr, checked: Sequence[int]) -> tuple[Ptr, Node]:
    """The pointers of a block and the mask of its boundary checks."""
    space = machine.space
    offset, narrow = Poly.of(0), frozenset[Poly]()
    inside = []
    for dim, lane in enumerate(lanes(space, pointer.shape)):
        place = pointer.offsets[dim].poly + lane
        offset = offset + place * pointer.strides[dim].poly
        narrow |= widened(pointer.offsets[dim]) | widened(pointer.strides[dim])
        if dim in checked:
            inside += [space.ge(place), space.ge(pointer.sizes[dim].poly - place - 1)]
    cases = tuple(replace(c, offset=c.offset + offset, narrow=c.narrow | narrow) for c in pointer.base.cases)
    return Ptr(cases, pointer.shape, pointer.base.pointee), space.both(inside)


def make_block(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value:
    """tt.make_tensor_ptr: base, sizes, strides, offsets."""
    base, rest = args[0], args[1:]
    match = re.search(r"tensor<([\dx]+)x", op.types)
    if not isinstance(base, Ptr) or match is None or not all(isinstance(v, Int) for v in rest):
        return Unknown(reason="a block pointer of unknown parts")
    shape = tuple(int(n) for n in match.group(1).split("x"))
    ints = tuple(v for v in rest if isinstance(v, Int))
    rank = len(shape)
    return BlockPtr(base, ints[:rank], ints[rank : 2 * rank], ints[2 * rank :], shape)


def advance(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value:
    """tt.advance."""
    pointer, steps = args[0], args[1:]
    if not isinstance(pointer, BlockPtr) or not all(isinstance(v, Int) for v in steps):
        return Unknown(reason="a block pointer moved by an unknown step")
    moved = tuple(
        replace(old, poly=old.poly + step.poly, narrow=old.narrow | step.narrow)
        for old, step in zip(pointer.offsets, steps, strict=True)
        if isinstance(step, Int)
    )
    return replace(pointer, offsets=moved)


def _resolve(machine: Machine, op: Op, pointer: Value, mask: Value | None) -> tuple[Ptr, Node | None, str]:
    """Pointer, mask and, where it cannot be followed, the reason."""
    node = mask.node if isinstance(mask, Bool) else None if mask is None else machine.truth(mask.shape).node
    if isinstance(pointer, Ptr):
        return pointer, node, ""
    if isinstance(pointer, BlockPtr):
        match = re.search(r"boundaryCheck = array<i32: ([\d, ]*)>", op.text)
        checked = [int(x) for x in match.group(1).split(",")] if match else []
        resolved, inside = block_cases(machine, pointer, checked)
        return resolved, None if inside is machine.space.true else inside, ""
    reason = pointer.reason if isinstance(pointer, Unknown) else ""
    nowhere = Ptr((Case(machine.space.true, None, Poly.of(0)),), pointer.shape)
    return nowhere, node, reason or f"{op.name} through a pointer that is not followed"


def record(machine: Machine, op: Op, kind: Kind, pointer: Value, mask: Value | None) -> tuple[Ptr, Node | None]:
    """Note the access; one record for each place the pointer may point, none where the mask is never on."""
    ptr, node, reason = _resolve(machine, op, pointer, mask)
    for case in ptr.cases if node is not machine.space.false else ():
        lacking = reason or _LACKING.get(case.base, "")
        machine.note_access(
            Access(
                kind=kind,
                arg=None if case.base == FOREIGN else case.base,
                shape=ptr.shape,
                poly=case.offset,
                mask=node,
                guards=machine.guards_with(case.when),
                loops=tuple(machine.inside),
                line=op.line,
                bits=_bits(ptr.pointee),
                narrow=case.narrow,
                order=machine.step,
                barrier=machine.barriers,
                space=machine.space,
                table=machine.loops,
                reason=lacking,
            )
        )
    return ptr, node


def _bits(pointee: str) -> int:
    match = re.search(r"(\d+)", pointee)
    return int(match.group(1)) if match else 64


def load(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.load; the value is a function of argument, offset and mask where the argument is only read."""
    ptr, mask = record(machine, op, "load", args[0], args[1] if len(args) > 1 else None)
    if kind.elem.startswith("!tt.ptr"):
        machine.note(f"{POINTER_TABLE} (line {op.line})")
        return Ptr((Case(machine.space.true, FOREIGN, Poly.of(0)),), kind.shape, kind.pointee or "")
    if not is_int(kind):
        return None
    other = args[2] if len(args) > 2 else None
    default = other.poly if isinstance(other, Int) else None
    value: Value | None = None
    for case in reversed(ptr.cases):
        if case.base is None or case.base == FOREIGN:
            return None
        unsigned = case.base in machine.unsigned
        leaf = machine.space.leaf("load", case.base, case.offset, mask, default, low=0 if unsigned else None)
        this = Int(leaf, kind.shape, bits_of(kind))
        value = this if value is None else choose(machine.space, case.when, this, value)
    return value


def store(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.store."""
    record(machine, op, "store", args[0], args[2] if len(args) > 2 else None)
    return None


def atomic(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.atomic_rmw (pointer, value, mask) and tt.atomic_cas (pointer, expected, value)."""
    masked = op.name == "tt.atomic_rmw" and len(args) > 2
    record(machine, op, "atomic", args[0], args[2] if masked else None)
    return None


def descriptor(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """Access through a tensor descriptor is not followed; its argument is known, where the descriptor was made here."""
    reason = "a tensor descriptor is not followed"
    base = args[0].reason.partition("@")[2] if isinstance(args[0], Unknown) else ""
    accesses: dict[str, Kind] = {"load": "load", "gather": "load", "store": "store", "scatter": "store"}
    what = accesses.get(op.name.rpartition("_")[2], "atomic")
    machine.note(f"{reason} (line {op.line})")
    machine.note_access(
        Access(what, base or None, (), Poly.of(0), None, machine.guards_with(machine.space.true), tuple(machine.inside),
               op.line, 0, frozenset(), machine.step, machine.barriers, machine.space, machine.loops, reason)
    )  # fmt: skip
    return None


def from_int(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.int_to_ptr: a foreign pointer where the integer was read from memory, else a lost one."""
    machine.note(f"{POINTER_TABLE} (line {op.line})")
    leaves = args[0].poly.leaves if isinstance(args[0], Int) else frozenset()
    read = bool(leaves) and any(n.op == "load" for n in leaves) and not any(n.op == "opaque" for n in leaves)
    return Ptr((Case(machine.space.true, FOREIGN if read else None, Poly.of(0)),), kind.shape, kind.pointee or "")


def make_descriptor(machine: Machine, op: Op, args: Sequence[Value], kind: Type) -> Value | None:
    """tt.make_tensor_descriptor: only the argument it points into is kept."""
    base = args[0].cases[0].base if isinstance(args[0], Ptr) and len(args[0].cases) == 1 else None
    return Unknown(reason=f"descriptor@{base or ''}")
