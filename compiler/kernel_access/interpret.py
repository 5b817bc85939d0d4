"""What the Triton interpreter touches: the measured side of every proved offset.

No memory is read or written: pointers are made-up addresses, loaded values come from a function, and every access is
recorded. Triton is patched inside `interpreting` only. Two known faults of the interpreter are worked around there:
nested jit functions are called through it, and a loop variable is a tensor, not a Python int.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from capwise.kernel_access.evaluate import Memory, Numbers
from capwise.kernel_access.ttir import unwrap

_SPAN = 1 << 44


@dataclass(frozen=True)
class Touch:
    """One access of one program: kind (load, store, atomic), argument, offsets in elements of the active lanes."""

    pid: tuple[int, int, int]
    kind: str
    arg: str
    offsets: Numbers


class Recorder:
    """Stands in for memory under the interpreter's builder."""

    def __init__(self, names: Sequence[str], memory: Memory, builder: Any) -> None:
        self.names, self.memory, self.builder = names, memory, builder
        self.touches: list[Touch] = []

    def address(self, name: str) -> int:
        """The made-up address of an argument."""
        return (self.names.index(name) + 1) * _SPAN

    def _note(self, kind: str, pointers: Any, mask: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        address = np.asarray(pointers.data).astype(np.int64)
        which = (address + _SPAN // 2) // _SPAN - 1
        offsets = (address - (which + 1) * _SPAN) // size
        active = np.broadcast_to(np.asarray(mask).astype(bool), offsets.shape)
        pid = tuple(int(x) for x in self.builder.grid_idx)
        for index in np.unique(which[active]):
            chosen = active & (which == index)
            if not 0 <= index < len(self.names):
                raise ValueError("an address that no argument explains")
            self.touches.append(
                Touch((pid[0], pid[1], pid[2]), kind, self.names[int(index)], np.unique(offsets[chosen]))
            )
        return which, offsets, active

    def read(self, pointers: Any, mask: Numbers, default: Any, kind: str = "load") -> Any:
        """Note the access; values of the memory function, `default` where masked."""
        from triton.runtime.interpreter import TensorHandle, _get_np_dtype

        which, offsets, active = self._note(kind, pointers, mask)
        element = pointers.get_element_ty()
        values = np.zeros(offsets.shape, dtype=_get_np_dtype(element))
        if default is not None:
            values[...] = np.broadcast_to(default.data, offsets.shape)
        for index in np.unique(which[active]):
            chosen = active & (which == index)
            values[chosen] = self.memory(self.names[int(index)], offsets[chosen]).astype(values.dtype)
        return TensorHandle(values, element)

    def patches(self) -> dict[str, Any]:
        """The builder's memory operations, recorded."""

        def masked_load(ptrs: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
            return self.read(ptrs, getattr(mask, "data", mask), other)

        def masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> None:
            self._note("store", ptrs, getattr(mask, "data", mask))

        def rmw(op: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
            return self.read(ptr, mask.data, None, "atomic")

        def cas(ptr: Any, *rest: Any) -> Any:
            return self.read(ptr, np.ones(np.shape(ptr.data), dtype=bool), None, "atomic")

        return {
            "create_masked_load": masked_load,
            "create_masked_store": masked_store,
            "create_atomic_rmw": rmw,
            "create_atomic_cas": cas,
        }


def _tensor_range(*bounds: Any) -> Iterator[Any]:
    """`range` whose items are tensors, as compiled kernels have them."""
    from triton.runtime.interpreter import _implicit_cvt

    for i in builtins.range(*(int(np.asarray(_plain(b)).item()) for b in bounds)):
        yield _implicit_cvt(i)


def _plain(value: Any) -> Any:
    handle = getattr(value, "handle", None)
    return handle.data if handle is not None else getattr(value, "value", value)


@contextmanager
def _item(namespace: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    missing = object()
    old = namespace.get(name, missing)
    namespace[name] = value
    try:
        yield
    finally:
        if old is missing:
            del namespace[name]
        else:
            namespace[name] = old


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = name in vars(owner)
    old = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)


@contextmanager
def _language(function: Any) -> Iterator[None]:
    """Triton's language, as this function sees it, interpreted; and its loops over tensors."""
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(function)
    try:
        with _item(function.__globals__, "range", _tensor_range):
            yield
    finally:
        if scope is not None:
            scope.restore()


def _run_function(function: Any, *args: Any, **kwargs: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    with _language(function):
        return InterpretedFunction(function).rewrite()(*args, **kwargs)


@contextmanager
def interpreting(recorder: Recorder) -> Iterator[None]:
    """Within: jit functions run through the interpreter, and its memory is the recorder's."""
    from triton.runtime.jit import JITFunction

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _run_function(self.fn, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(_attribute(JITFunction, "__call__", call))
        for name, value in recorder.patches().items():
            stack.enter_context(_attribute(recorder.builder, name, value))
        for name in ("grid_idx", "grid_dim"):
            stack.enter_context(_attribute(recorder.builder, name, None))
        yield


def record(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    grid: Sequence[int],
    scalars: Mapping[str, float],
    memory: Memory,
    programs: Sequence[tuple[int, int, int]] | None = None,
) -> list[Touch]:
    """Run programs of a launch in the interpreter; what each touched.

    signature, constexprs: as for `summarize`. grid: three integers. scalars: values of the scalar arguments.
    memory: integer contents by (argument, offsets). programs: which program ids to run, all of the grid by default.
    Raises: whatever the interpreter does not support (triton.runtime.errors.InterpreterError and others)."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype, interpreter_builder

    function = unwrap(kernel).fn
    pointers = [name for name, kind in signature.items() if kind.startswith("*")]
    recorder = Recorder(pointers, memory, interpreter_builder)
    values: dict[str, Any] = dict(constexprs)
    for name, kind in signature.items():
        if kind.startswith("*"):
            type_, data = tl.str_to_ty(kind, None), np.array([recorder.address(name)], dtype=np.uint64)
        else:
            type_ = tl.str_to_ty(kind, None)
            data = np.array([scalars[name]]).astype(_get_np_dtype(type_))
        values[name] = tl.tensor(TensorHandle(data, type_), type_)
    chosen = programs if programs is not None else list(np.ndindex(*grid))
    with interpreting(recorder), np.errstate(all="ignore"):
        interpreter_builder.set_grid_dim(*grid)
        for pid in chosen:
            interpreter_builder.set_grid_idx(*(int(x) for x in pid))
            _run_function(function, **values)
    return recorder.touches
