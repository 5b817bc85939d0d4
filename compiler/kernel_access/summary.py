"""A kernel's access summary: for each pointer argument what is touched, by which index, how far, and what may go wrong.

`summarize` reads as the analysis: build TTIR, run it on expressions, then ask per argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capwise.kernel_access.access import POINTER_TABLE, Access, Loop
from capwise.kernel_access.axes import Axis, Role, axes_of, roles
from capwise.kernel_access.bounds import Bounds, extent
from capwise.kernel_access.follow import Followed
from capwise.kernel_access.hazards import KernelHazard, Scene, hazards_of, null_values, taken_for_granted
from capwise.kernel_access.machine import Machine, Unfollowed
from capwise.kernel_access.parse import ParseError, parse
from capwise.kernel_access.printing import text
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.searches import Search, loop_searches
from capwise.kernel_access.seen import Seen
from capwise.kernel_access.signature import Guess, candidates
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Part, Poly, addressing
from capwise.kernel_access.ttir import BuildError, build, unwrap
from capwise.kernel_access.unrolled import unrolled_searches


@dataclass(frozen=True)
class ArgumentAccess:
    """One pointer argument.

    access: of "load", "store", "atomic" those that occur. axes: what it is indexed by. extent: one past the largest
    element touched, in argument names, grid0.. and max(<arg>) of loaded values, or "unknown"; read and written apart
    in extent_read and extent_written ("0": none). verdict: proved (every offset is followed and bounded) or unknown.
    exact: conditions are followed too, so that the touched set is exact and not only enclosed. role: what its integer
    contents are used for. extents: one past the largest offset, an access each. nulls: for each
    slot argument, the values with which nothing is written here. takes: what else was taken for granted. reasons: why
    it is unknown."""

    arg: str
    access: tuple[str, ...]
    axes: tuple[Axis, ...]
    extent: str
    extent_read: str
    extent_written: str
    verdict: str
    exact: bool
    hazards: tuple[KernelHazard, ...]
    role: Role | None
    nulls: Mapping[str, tuple[int, ...]]
    takes: tuple[str, ...]
    reasons: tuple[str, ...]
    line: int
    accesses: tuple[Access, ...] = field(repr=False)
    extents: tuple[Poly | None, ...] = field(repr=False)


@dataclass(frozen=True)
class KernelSummary:
    """All of a kernel, on the footing that no two pointer arguments overlap.

    `unknown`: what is not followed. `guessed`: the signature was. `specialised`: values and
    multiples that hold for this build only. signature and constexprs are those it was built with. roles: what the
    integers read from each argument are used for. seen: what is done with values apart from addressing. searches:
    those that are proved to end at the row of their key."""

    name: str
    file: str
    line: int
    arguments: tuple[ArgumentAccess, ...]
    unknown: tuple[str, ...]
    guessed: bool
    specialised: tuple[str, ...]
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    accesses: tuple[Access, ...] = field(default=(), repr=False)
    loops: Mapping[int, Loop] = field(default_factory=dict, repr=False)
    space: Space = field(default_factory=Space, repr=False)
    roles: Mapping[str, Role] = field(default_factory=dict, repr=False)
    seen: Seen = field(default_factory=Seen, repr=False)
    searches: tuple[Search, ...] = field(default=(), repr=False)

    def __getitem__(self, arg: str) -> ArgumentAccess:
        """The argument's row. Raises: KeyError."""
        for row in self.arguments:
            if row.arg == arg:
                return row
        raise KeyError(arg)


def summarize(
    kernel: Any,
    signature: Mapping[str, str] | None = None,
    constexprs: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
    clean: bool = True,
) -> KernelSummary:
    """Access summary of a `triton.jit` kernel (autotune and heuristics wrappers are looked through).

    signature: Triton type of each run-time argument ("*fp32", "i32"); guessed where None. constexprs: values of the
    others; with a guessed signature those given are kept. attrs: specialisation, as for `ttir.build`. clean: after
    Triton's clean-up, which drops loads that nothing uses.
    Raises: TypeError where this is no jit kernel; BuildError where a given signature does not compile. A guessed one
    that does not compile gives a summary in which everything is unknown."""
    inner = unwrap(kernel)
    if signature is not None:
        given = Guess(dict(signature), {k: v for k, v in (constexprs or {}).items() if k not in signature})
        ttir = build(inner, given.signature, given.constexprs, attrs, clean=clean)
        return _analyse(inner, given, ttir, attrs or {}, False)
    reason = "no signature to try"
    for guess in candidates(kernel):
        tried = Guess(guess.signature, {**guess.constexprs, **(constexprs or {})})
        try:
            ttir = build(inner, tried.signature, tried.constexprs, attrs, clean=clean)
            return _analyse(inner, tried, ttir, attrs or {}, bool(set(guess.guessed) - (constexprs or {}).keys()))
        except BuildError as error:
            reason = str(error)
    return _unbuilt(inner, next(candidates(kernel)), f"does not compile with a guessed signature: {reason}")


def _analyse(kernel: Any, guess: Guess, ttir: str, attrs: Mapping[str, Any], guessed: bool) -> KernelSummary:
    unsigned = {name for name, kind in guess.signature.items() if kind.lstrip("*").startswith("u")}
    names = [name for name in kernel.arg_names if name in guess.signature]
    try:
        machine = Machine(parse(ttir), frozenset(unsigned))
        machine.run(names)
    except (ParseError, Unfollowed, RecursionError) as error:
        return _unbuilt(kernel, guess, f"{type(error).__name__}: {error}", guessed)
    pointers = [
        name for name in names if guess.signature[name].startswith("*") or "tensordesc" in guess.signature[name]
    ]
    written = frozenset(a.arg for a in machine.accesses if a.kind != "load" and a.arg)
    follow = Followed(machine.loops, written)
    searches = _searches(machine, written)
    use = roles(machine.accesses, machine.loops, {s.arg for s in searches})
    rows = tuple(r for r in (_argument(name, machine, follow, use, searches) for name in pointers) if r is not None)
    name, file, line = _place(kernel)
    notes = [*machine.unknown, *(r for row in rows for r in row.reasons)]
    return KernelSummary(
        name=name,
        file=file,
        line=line,
        arguments=rows,
        unknown=tuple(dict.fromkeys(notes)),
        guessed=guessed,
        specialised=_specialised(kernel, guess, attrs),
        signature=guess.signature,
        constexprs=guess.constexprs,
        accesses=tuple(machine.accesses),
        loops=machine.loops,
        space=machine.space,
        roles=use,
        seen=machine.seen,
        searches=searches,
    )


def _searches(machine: Machine, written: frozenset[str]) -> tuple[Search, ...]:
    """The searches that are proved. What one ends with whose rounds are written out becomes a leaf of its own."""
    machine.seen = machine.watcher.seen()
    parts: list[Part] = [*machine.seen.tests, *machine.seen.content]
    space = machine.space
    flat = [u for u in unrolled_searches(space, machine.accesses, parts) if u.search.arg not in written]
    leaves = {node: leaf for u in flat for node, leaf in u.leaves(space).items()}
    rewriter = Rewriter(space, leaves.get)
    if leaves:
        machine.rewrite(rewriter)
    looped = [s for s in loop_searches(space, machine.loops) if s.arg not in written]
    return (*(u.search.mapped(rewriter) for u in flat), *looped)


def _argument(
    arg: str, machine: Machine, follow: Followed, use: Mapping[str, Role], searches: Sequence[Search]
) -> ArgumentAccess | None:
    """The row of one argument; None where the kernel does not touch it."""
    accesses = [a for a in machine.accesses if a.arg == arg]
    lost = [a for a in machine.accesses if a.arg is None and a.reason != POINTER_TABLE]
    if not accesses and not lost:
        return None
    bounds = _extents(accesses, machine)
    reasons = _reasons(accesses, lost, bounds, follow)
    highs = [high for high, _ in bounds]
    read = [h for a, h in zip(accesses, highs, strict=True) if a.kind != "store"]
    wrote = [h for a, h in zip(accesses, highs, strict=True) if a.kind != "load"]
    scene = Scene(arg, accesses, use, [s for s in searches if s.arg == arg], machine)
    taken = {t for _, some in bounds for t in some}
    kinds = {a.kind for a in accesses}
    return ArgumentAccess(
        arg=arg,
        access=tuple(k for k in ("load", "store", "atomic") if k in kinds),
        axes=_axes(accesses),
        extent=_union(machine, highs if not lost else [None]),
        extent_read=_union(machine, read),
        extent_written=_union(machine, wrote),
        verdict="unknown" if reasons else "proved",
        exact=not reasons and all(follow.condition(a) for a in accesses),
        hazards=hazards_of(scene),
        role=use.get(arg),
        nulls=_nulls(accesses, use),
        takes=(*sorted(taken), *taken_for_granted(machine.space, accesses, use)),
        reasons=tuple(dict.fromkeys(reasons)),
        line=min((a.line for a in accesses if a.line), default=0),
        accesses=tuple(accesses),
        extents=tuple(highs),
    )


def _extents(accesses: Sequence[Access], machine: Machine) -> list[tuple[Poly | None, frozenset[str]]]:
    """`bounds.extent` of each access; the same place under the same conditions is worked out once."""
    done: dict[object, tuple[Poly | None, frozenset[str]]] = {}
    out = []
    for access in accesses:
        key = (access.poly, access.guards, access.mask, access.loops, access.reason)
        if key not in done:
            done[key] = _extent(access, machine)
        out.append(done[key])
    return out


def _extent(access: Access, machine: Machine) -> tuple[Poly | None, frozenset[str]]:
    if not access.reason:
        try:
            return extent(access, machine.assumed)
        except RecursionError:  # bounds of bounds without end: as good as none
            pass
    return None, frozenset()


def _axes(accesses: Sequence[Access]) -> tuple[Axis, ...]:
    found = {Axis(x.by, x.stride): None for a in accesses if not a.reason for x in axes_of(a)}
    return tuple(found)


def _reasons(
    accesses: Sequence[Access],
    lost: Sequence[Access],
    bounds: Sequence[tuple[Poly | None, frozenset[str]]],
    follow: Followed,
) -> list[str]:
    """Why the argument is not proved; empty where it is."""
    out = [f"{a.reason} (line {a.line})" for a in (*accesses, *lost) if a.reason]
    for access, (high, _) in zip(accesses, bounds, strict=True):
        if not access.reason and not follow.offset(access):
            out.append(f"the offset at line {access.line} rests on a value that is not followed")
        elif not access.reason and high is None:
            out.append(f"the offset at line {access.line} has no bound")
    return out


def _union(machine: Machine, highs: Sequence[Poly | None]) -> str:
    """The largest of several extents, as text."""
    known = list(dict.fromkeys(h for h in highs if h is not None))
    if len(known) < len(set(highs)):
        return "unknown"
    bounds = Bounds(machine.space, machine.loops)
    kept = [h for h in known if not any(o is not h and _covers(bounds, o, h, known) for o in known)]
    texts = [text(h) for h in kept]
    return (texts[0] if len(texts) == 1 else f"max({', '.join(texts)})") if texts else "0"


def _covers(bounds: Bounds, larger: Poly, smaller: Poly, order: Sequence[Poly]) -> bool:
    """larger >= smaller for all admissible scalars; of equals the first is kept."""
    gap = larger - smaller
    grids = [n for n in gap.nodes() if n.op == "grid"]
    spare = sum(gap.terms.get((n,), 0) for n in grids if gap.terms.get((n,), 0) > 0)
    constant = gap.terms.get((), 0)
    rest = gap - constant
    return constant + spare >= 0 and (not rest.terms or bounds.sign(rest)[0] > 0)


def _nulls(accesses: Sequence[Access], use: Mapping[str, Role]) -> dict[str, tuple[int, ...]]:
    """Slot values with which none of the writes happens."""
    out: dict[str, set[int]] = {}
    for access in accesses:
        if access.kind == "load":
            continue
        for leaf in addressing(access.poly):
            if leaf.op == "load" and use.get(str(leaf.args[0])) == "slot":
                values = set(null_values(access, leaf))
                name = str(leaf.args[0])
                out[name] = out[name] & values if name in out else values
    return {name: tuple(sorted(values)) for name, values in out.items()}


def _place(kernel: Any) -> tuple[str, str, int]:
    """Name, file and line of the `def`."""
    code = kernel.fn.__code__
    lines, first = inspect.getsourcelines(kernel.fn)
    offset = next((i for i, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    return kernel.fn.__name__, code.co_filename, first + offset


def _specialised(kernel: Any, guess: Guess, attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """Run-time parameters that this build takes as constants or as multiples."""
    plain = {p.name for p in kernel.params if not p.is_constexpr}
    fixed = [f"{name} == {value}" for name, value in guess.constexprs.items() if name in plain and value is not None]
    multiples = [f"{name} % {value} == 0" for name, pairs in attrs.items() for _, value in pairs]
    return (*fixed, *multiples)


def _unbuilt(kernel: Any, guess: Guess, reason: str, guessed: bool = True) -> KernelSummary:
    """Everything unknown, for one reason."""
    name, file, line = _place(kernel)
    rows = tuple(
        ArgumentAccess(
            arg, (), (), "unknown", "unknown", "unknown", "unknown", False, (), None, {}, (), (reason,), line, (), ()
        )
        for arg, kind in guess.signature.items()
        if kind.startswith("*")
    )
    return KernelSummary(name, file, line, rows, (reason,), guessed, (), guess.signature, guess.constexprs)


def rows(summary: KernelSummary) -> list[dict[str, Any]]:
    """One JSON row a pointer argument: kernel, arg, access, axes, extent, verdict, hazards, file, line."""
    return [
        {
            "kernel": summary.name,
            "arg": row.arg,
            "access": list(row.access),
            "axes": [{"by": axis.by, "stride": axis.stride} for axis in row.axes],
            "extent": row.extent,
            "verdict": row.verdict,
            "hazards": [{"code": h.code, "verdict": h.verdict, "needs": h.needs} for h in row.hazards],
            "file": summary.file,
            "line": row.line or summary.line,
        }
        for row in summary.arguments
    ]
