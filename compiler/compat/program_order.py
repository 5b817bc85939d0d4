"""The programs of an interpreted launch run in another order, or see each other's stores only afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class UsesAtomics(Exception):  # noqa: N818 - no error: another order of programs would round differently
    """A launch whose programs are ordered by atomic operations, or whose sums depend on the order."""


@contextlib.contextmanager
def programs_in_order(order: Callable[[list[tuple[int, int, int]]], Sequence[tuple[int, int, int]]]) -> Iterator[None]:
    """Inside, the programs of each interpreted launch run in another order.

    Args:
        order: the grid's indices as the interpreter goes through them -> the same in the order wanted.

    Raises:
        UsesAtomics: from the launch, before its first atomic operation.
    """
    from triton.runtime import interpreter

    builder, module = interpreter.interpreter_builder, interpreter._interpreter
    indices: Any = iter(())

    def set_grid_dim(nx: int, ny: int, nz: int) -> None:
        nonlocal indices
        indices = iter(order([(x, y, z) for x in range(nx) for y in range(ny) for z in range(nz)]))
        type(builder).set_grid_dim(builder, nx, ny, nz)

    builder.set_grid_dim = set_grid_dim
    builder.set_grid_idx = lambda *_: type(builder).set_grid_idx(builder, *next(indices))
    interpreter._interpreter = _NoAtomics(module)
    try:
        yield
    finally:
        interpreter._interpreter = module
        del builder.set_grid_dim, builder.set_grid_idx


@contextlib.contextmanager
def stores_deferred() -> Iterator[None]:
    """Inside, every program of an interpreted launch has done its loads before any program's stores are seen by
    another: stores wait for the launch's end, or for an atomic operation of their own program."""
    from triton.runtime import interpreter

    builder, module = interpreter.interpreter_builder, interpreter._interpreter
    memory = _Deferred(module)

    def set_grid_idx(x: int, y: int, z: int) -> None:
        memory.next_program()
        type(builder).set_grid_idx(builder, x, y, z)

    builder.set_grid_idx = set_grid_idx
    interpreter._interpreter = memory
    try:
        yield
        memory.finish()
    finally:
        interpreter._interpreter = module
        del builder.set_grid_idx


class _NoAtomics:
    """The interpreter's memory operations, but atomic ones."""

    def __init__(self, module: Any) -> None:
        self.load, self.store = module.load, module.store

    def __getattr__(self, name: str) -> Any:
        raise UsesAtomics(name)


class _Deferred:
    """The interpreter's memory operations; a program sees its own stores, others see them later."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._mine: list[tuple[Any, Any, Any]] = []
        self._earlier: list[tuple[Any, Any, Any]] = []

    def store(self, ptr: Any, value: Any, mask: Any) -> None:
        self._mine.append((ptr.copy(), value.copy(), mask.copy()))

    def load(self, ptr: Any, mask: Any, other: Any, dtype: Any) -> Any:
        if not self._mine:
            return self._module.load(ptr, mask, other, dtype)
        import numpy

        before = []
        for at, value, where in self._mine:
            old = self._module.load(at, where, numpy.zeros(value.shape, value.dtype), value.dtype)
            before.append((at, old, where))
            self._module.store(at, value, where)
        found = self._module.load(ptr, mask, other, dtype)
        for one in reversed(before):
            self._module.store(*one)
        return found

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._module, name)

        def after_own_stores(*args: Any) -> Any:
            for one in self._mine:
                self._module.store(*one)
            self._mine.clear()
            return operation(*args)

        return after_own_stores if callable(operation) and name.startswith("atomic") else operation

    def next_program(self) -> None:
        self._earlier += self._mine
        self._mine = []

    def finish(self) -> None:
        self.next_program()
        for one in self._earlier:
            self._module.store(*one)
