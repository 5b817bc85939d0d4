"""What the Triton interpreter touches: the measured side of every proved offset.

No memory is read or written: pointers are made-up addresses, loaded values come from a function, and every access is
recorded. Triton is patched inside `compat.interpreted_programs` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capwise import compat
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
    with compat.interpreted_programs(recorder.patches()) as run, np.errstate(all="ignore"):
        interpreter_builder.set_grid_dim(*grid)
        for pid in chosen:
            interpreter_builder.set_grid_idx(*(int(x) for x in pid))
            run(function, **values)
    return recorder.touches
