"""Numbers from an access: the elements that one program touches, computed from the summary alone.

Closed forms are evaluated; what a loop carries without one is stepped through by its recurrence, so that a search or a
data-dependent loop has exact addresses too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.symbolic import Node, Part, Poly

Numbers = npt.NDArray[Any]
Memory = Callable[[str, Numbers], Numbers]
_MOST = 200_000


class NotFollowed(ValueError):
    """The access rests on something that is not followed, or its loops do not end in reasonable time."""


class Frame:
    """Values of leaves while one program runs: program ids, scalars, memory, and the loops being stepped through."""

    def __init__(
        self,
        table: Mapping[int, Loop],
        pid: Sequence[int],
        grid: Sequence[int],
        scalars: Mapping[str, int],
        memory: Memory,
    ) -> None:
        self.table, self.memory = table, memory
        self.pid, self.grid, self.scalars = pid, grid, scalars
        self.largest: Mapping[str, int] = {}
        self.live: dict[tuple[Part, ...], Numbers] = {}
        self.steps = 0
        self._memo: dict[tuple[tuple[int, ...], Node], Numbers] = {}

    def value(self, part: Part, shape: tuple[int, ...]) -> Numbers:
        """A polynomial or condition over the lanes of `shape`, as an array that broadcasts to it."""
        if isinstance(part, Node):
            return self._node(part, shape)
        assert isinstance(part, Poly)
        total: Numbers = np.zeros((1,) * len(shape), dtype=np.int64)
        for monomial, coefficient in part.terms.items():
            term: Numbers = np.int64(coefficient) * np.ones((1,) * len(shape), dtype=np.int64)
            for node in monomial:
                term = term * self._node(node, shape)
            total = total + term
        return total

    def number(self, poly: Poly) -> int:
        """A polynomial without lanes."""
        return int(self.value(poly, ()))

    def forget(self) -> None:
        """Leaves have changed."""
        self._memo.clear()

    def _node(self, node: Node, shape: tuple[int, ...]) -> Numbers:
        key = (shape, node)
        if key not in self._memo:
            leaf = _LEAVES.get(node.op)
            self._memo[key] = leaf(self, node, shape) if leaf else _apply(self, node, shape)
        return self._memo[key]

    # loops --------------------------------------------------------------------------------------------------------

    def start(self, loop: Loop) -> None:
        """First iteration: trip 0, carried values at their first."""
        self.forget()
        self._carry(loop, {node: init for node, (init, _) in loop.carried.items()})
        self.live[_slot(loop.trip)] = np.zeros((), dtype=np.int64)
        self.forget()

    def _carry(self, loop: Loop, polys: Mapping[Node, Poly]) -> None:
        """New carried values, all from the old ones; one that is not followed has none, and matters only if used."""
        fresh: dict[Node, Numbers] = {}
        for node, poly in polys.items():
            try:
                fresh[node] = np.broadcast_to(self.value(poly, loop.shapes[node]), loop.shapes[node])
            except NotFollowed:
                self.live.pop(_slot(node), None)
        self.live.update({_slot(node): value for node, value in fresh.items()})

    def advance(self, loop: Loop) -> None:
        """Next iteration."""
        self._carry(loop, {node: step for node, (_, step) in loop.carried.items()})
        self.live[_slot(loop.trip)] = self.live[_slot(loop.trip)] + 1
        self.forget()
        self.steps += 1
        if self.steps > _MOST:
            raise NotFollowed("a loop that does not end")

    def going(self, loop: Loop) -> bool:
        """The loop's own test at the current iteration."""
        if loop.upper is not None:
            return self.number(loop.index) < self.number(loop.upper)
        assert loop.condition is not None
        return bool(self.value(loop.condition, ()))

    def trips(self, loops: Sequence[Loop]) -> Iterator[None]:
        """Every iteration of nested loops, outermost first. The region that tests a while loop runs once more."""
        if not loops:
            yield
            return
        loop = loops[0]
        self.start(loop)
        while self.going(loop):
            yield from self.trips(loops[1:])
            self.advance(loop)
        if loop.upper is None:
            yield from self.trips(loops[1:])


def _slot(node: Node) -> tuple[Part, ...]:
    """What a loop value is, whatever lanes of it are asked for."""
    return node.args[:3]


def _lane(frame: Frame, node: Node, shape: tuple[int, ...]) -> Numbers:
    dim, size = node.args
    assert isinstance(dim, int) and isinstance(size, int)
    return np.arange(size, dtype=np.int64).reshape([size if d == dim else 1 for d in range(len(shape))])


def _scalar(value: int, shape: tuple[int, ...]) -> Numbers:
    return np.full((1,) * len(shape), value, dtype=np.int64)


def _symbol(frame: Frame, node: Node, shape: tuple[int, ...]) -> Numbers:
    name = node.args[0]
    assert isinstance(name, str)
    if name not in frame.scalars:
        raise NotFollowed(f"no value given for {name}")
    return _scalar(int(frame.scalars[name]), shape)


def _axis(node: Node) -> int:
    assert isinstance(node.args[0], int)
    return node.args[0]


def _live(frame: Frame, node: Node, shape: tuple[int, ...]) -> Numbers:
    """A trip or carried symbol; a tensor is looked up at the lanes given."""
    if _slot(node) not in frame.live:
        raise NotFollowed("a loop value outside of its loop")
    return _element(frame, node, frame.live[_slot(node)], shape)


def _element(frame: Frame, node: Node, values: Numbers, shape: tuple[int, ...]) -> Numbers:
    if values.ndim == 0:
        return _scalar(int(values), shape)
    index = [frame.value(p, shape) for p in node.polys()]
    return values[tuple(np.broadcast_arrays(*index))]


def _exit(frame: Frame, node: Node, shape: tuple[int, ...]) -> Numbers:
    """Run the loop to its end from where the program stands."""
    ident, position, part = node.args[:3]
    assert isinstance(ident, int)
    loop = frame.table[ident]
    saved, memo = dict(frame.live), frame._memo
    frame._memo = {}
    try:
        frame.start(loop)
        while frame.going(loop):
            frame.advance(loop)
        result = frame.live.get(_slot(loop.trip) if position == -1 else (ident, position, part))
    finally:
        frame.live, frame._memo = saved, memo
    if result is None:
        raise NotFollowed("a value that is not followed, at the end of a loop")
    return _element(frame, node, result, shape)


def _load(frame: Frame, node: Node, shape: tuple[int, ...]) -> Numbers:
    arg, offset, mask, other = node.args
    assert isinstance(arg, str)
    where = frame.value(offset, shape)
    if mask is None:
        return frame.memory(arg, where).astype(np.int64)
    active = frame.value(mask, shape)
    where, active = np.broadcast_arrays(where, active)
    default = frame.value(other, shape) if other is not None else _scalar(0, shape)
    return np.where(active, frame.memory(arg, np.where(active, where, 0)).astype(np.int64), default)


def _not_followed(frame: Frame, node: Node, shape: tuple[int, ...]) -> Numbers:
    raise NotFollowed("a value that is not followed")


_LEAVES: dict[str, Callable[[Frame, Node, tuple[int, ...]], Numbers]] = {
    "lane": _lane,
    "sym": _symbol,
    "pid": lambda frame, node, shape: _scalar(frame.pid[_axis(node)], shape),
    "grid": lambda frame, node, shape: _scalar(frame.grid[_axis(node)], shape),
    "trip": _live,
    "carry": _live,
    "exit": _exit,
    "load": _load,
    "found": lambda frame, node, shape: frame.value(next(node.polys()), shape),
    "probe": lambda frame, node, shape: frame.value(next(node.polys()), shape),
    "opaque": _not_followed,
    "obool": _not_followed,
    "last": _not_followed,
    "maxof": lambda frame, node, shape: _scalar(frame.largest[str(node.args[0])], shape),
    "minof": lambda frame, node, shape: _scalar(0, shape),
    "true": lambda frame, node, shape: np.ones((1,) * len(shape), dtype=bool),
    "false": lambda frame, node, shape: np.zeros((1,) * len(shape), dtype=bool),
}


def _toward_zero(a: Numbers, b: Numbers) -> Numbers:
    safe = np.where(b == 0, 1, b)
    return np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe)


_OPERATIONS: dict[str, Callable[..., Numbers]] = {
    "div": _toward_zero,
    "rem": lambda a, b: a - np.where(b == 0, 1, b) * _toward_zero(a, b),
    "floor": lambda a, b: a // b,
    "min": np.minimum,
    "max": np.maximum,
    "ite": np.where,
    "ge": lambda a: a >= 0,
    "eq": lambda a: a == 0,
    "not": np.logical_not,
}


def _apply(frame: Frame, node: Node, shape: tuple[int, ...]) -> Numbers:
    values = [frame.value(a, shape) for a in node.args]
    if node.op in ("and", "or"):
        total = values[0]
        for value in values[1:]:
            total = total & value if node.op == "and" else total | value
        return total
    return _OPERATIONS[node.op](*values)


def as_memory(loaded: Mapping[str, Sequence[int]] | Memory) -> Memory:
    """Arrays by argument name as a memory; an index outside of one raises IndexError."""
    if callable(loaded):
        return loaded
    arrays = {name: np.asarray(values) for name, values in loaded.items()}
    return lambda arg, where: arrays[arg][where]


def evaluate(
    access: Access,
    pid: Sequence[int],
    grid: Sequence[int],
    scalars: Mapping[str, int],
    loaded: Mapping[str, Sequence[int]] | Memory,
    keep: Callable[[Node], bool] = lambda condition: True,
) -> Numbers:
    """Sorted unique offsets, in elements from the pointer argument, that program `pid` touches by this access.

    pid, grid: three integers each. scalars: the integer arguments. loaded: integer contents of the arguments that
    addresses and conditions are loaded from, by name, as flat sequences or as a function of (name, offsets).
    keep: which conditions to heed; without some of them the result encloses what is touched.
    Raises: NotFollowed."""
    if access.reason:
        raise NotFollowed(access.reason)
    frame = Frame(access.table, pid, grid, scalars, as_memory(loaded))
    loops = [access.table[ident] for ident in access.loops]
    heeded = [c for c in (*access.guards, access.mask or access.space.true) if keep(c)]
    tile = access.space.both(c for c in heeded if _lanes(c))
    found = [np.zeros(0, dtype=np.int64)]
    for _ in frame.trips(loops):
        if not all(bool(frame.value(c, ())) for c in heeded if not _lanes(c)):
            continue
        offsets, active = np.broadcast_arrays(
            frame.value(access.poly, access.shape),
            frame.value(tile, access.shape),
            np.zeros(access.shape, dtype=np.int64),
        )[:2]
        found.append(offsets[active.astype(bool)].ravel())
    return np.unique(np.concatenate(found))


def _lanes(node: Node) -> bool:
    return any(leaf.op == "lane" for leaf in node.leaves)


def bound(
    poly: Poly, grid: Sequence[int], scalars: Mapping[str, int], largest: Mapping[str, int], table: Mapping[int, Loop]
) -> int:
    """An extent as a number; `largest` gives max(<arg>) of the loaded values. Raises: NotFollowed, KeyError."""
    frame = Frame(table, (0, 0, 0), grid, scalars, lambda arg, where: where)
    frame.largest = largest
    return frame.number(poly)
