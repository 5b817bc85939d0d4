"""Kernel arguments: placing arrays in the emulated address space, and packing the kernarg segment."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from capwise.emulate.arrays import U8, Array
from capwise.emulate.errors import EmulatorError
from capwise.emulate.memory import GlobalMemory, Window
from capwise.emulate.parser import Parameter


@dataclass(frozen=True)
class Sparse:
    """An array that lies ``base_offset_bytes`` after the pointer that the kernel gets: a view deep in a large tensor.

    Only the array's own bytes exist; any other address reached from the pointer is out of bounds. The offset may be
    negative.
    """

    base_offset_bytes: int
    array: Array


Argument = Array | Sparse | int | float | bool | np.generic | None


@dataclass
class _Span:
    """A run of host memory that one or several argument arrays cover."""

    first: int
    last: int
    arrays: list[tuple[str, Array]]
    base_offset: int = 0

    def host(self) -> Array:
        """The bytes of the run, as a view of the arrays' own memory (they keep it alive)."""
        size = self.last - self.first
        if not size:
            return np.zeros(0, U8)
        return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(self.first)), U8)

    @property
    def name(self) -> str:
        return " and ".join(f"{name} ({array.dtype}{list(array.shape)})" for name, array in self.arrays)

    @property
    def writable(self) -> bool:
        return any(array.flags.writeable for _, array in self.arrays)


def _bounds(array: Array) -> tuple[int, int]:
    """First byte and the byte after the last one that the array's elements occupy."""
    first = last = _address(array)
    if array.size == 0:
        return first, first
    for length, stride in zip(array.shape, array.strides):
        reach = (length - 1) * stride
        first, last = first + min(reach, 0), last + max(reach, 0)
    return first, last + array.itemsize


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _merge(spans: Iterable[_Span]) -> list[_Span]:
    """Join the spans that overlap, so that arguments which alias on the host alias in the kernel too."""
    merged: list[_Span] = []
    for span in sorted(spans, key=lambda s: (s.first, s.last)):
        if merged and span.first < merged[-1].last:
            if span.base_offset or merged[-1].base_offset:
                raise EmulatorError(f"{span.name}: a Sparse argument overlaps {merged[-1].name}")
            merged[-1].last = max(merged[-1].last, span.last)
            merged[-1].arrays += span.arrays
        else:
            merged.append(span)
    return merged


class Arguments:
    """The arguments of one launch. ``place`` copies the arrays into emulated memory, ``copy_back`` brings results home.

    ``args`` is in the order of the kernel's parameters; with a mapping the names appear in fault messages. Strided
    arrays are placed with the bytes between their elements, as they lie on the host.
    """

    def __init__(self, args: Sequence[Argument] | Mapping[str, Argument]) -> None:
        named = args.items() if isinstance(args, Mapping) else ((str(i), v) for i, v in enumerate(args))
        self._values = [(f"argument {name}", value) for name, value in named]
        self._windows: list[tuple[_Span, Window]] = []
        self._pointers: dict[str, int] = {}

    def place(self, memory: GlobalMemory) -> None:
        plain: list[_Span] = []
        apart: list[_Span] = []
        for name, value in self._values:
            array = value.array if isinstance(value, Sparse) else value
            if not isinstance(array, np.ndarray):
                continue
            offset = value.base_offset_bytes if isinstance(value, Sparse) else 0
            span = _Span(*_bounds(array), [(name, array)], offset)
            (plain if array.size else apart).append(span)
        for span in _merge(plain) + apart:
            start = memory.place(span.host().tobytes(), span.name, base_offset=span.base_offset, writable=span.writable)
            self._windows.append((span, memory.windows[-1]))
            for name, array in span.arrays:
                self._pointers[name] = start + _address(array) - span.first - span.base_offset

    def copy_back(self, memory: GlobalMemory) -> None:
        """Write emulated memory back to the arrays, in place."""
        for span, window in self._windows:
            if span.writable:
                span.host()[:] = memory.contents(window)

    def pack(self, parameters: list[Parameter], size: int, hidden: Mapping[str, int]) -> bytes:
        """The kernarg segment. Raises EmulatorError for a wrong number of arguments or a value that does not fit.

        Trailing pointers may be missing: Triton appends two scratch pointers to every kernel, which are null here.
        """
        segment = bytearray(max(size, 8))
        visible = [p for p in parameters if not p.kind.startswith("hidden_")]
        missing = visible[len(self._values) :]
        if len(self._values) > len(visible) or len(missing) > 2 or any(p.kind != "global_buffer" for p in missing):
            raise EmulatorError(f"the kernel takes {len(visible)} arguments, {len(self._values)} were given")
        for parameter, (name, value) in zip(visible, self._values):
            segment[parameter.offset : parameter.offset + parameter.size] = self._encode(parameter, name, value)
        for parameter in parameters:
            if parameter.kind in hidden:
                raw = hidden[parameter.kind].to_bytes(parameter.size, "little")
                segment[parameter.offset : parameter.offset + parameter.size] = raw
        return bytes(segment)

    def _encode(self, parameter: Parameter, name: str, value: Argument) -> bytes:
        is_array = isinstance(value, np.ndarray | Sparse)
        is_pointer = parameter.kind == "global_buffer"
        if is_array != is_pointer and value is not None:
            expected = "a pointer" if is_pointer else "a number"
            raise EmulatorError(f"{name}: {expected} is expected, got {type(value).__name__}")
        if is_array:
            return self._pointers[name].to_bytes(8, "little")
        if isinstance(value, np.generic):
            raw = value.tobytes()
        elif isinstance(value, float):
            raw = _pack_float(value, parameter.size)
        else:
            raw = _pack_integer(name, 0 if value is None else int(value), parameter.size)  # type: ignore[arg-type]
        if len(raw) != parameter.size:
            raise EmulatorError(f"{name}: {parameter.size} bytes are expected, got {len(raw)}")
        return raw


def _pack_float(value: float, size: int) -> bytes:
    return struct.pack({2: "<e", 4: "<f", 8: "<d"}.get(size, "<d"), value)


def _pack_integer(name: str, value: int, size: int) -> bytes:
    bits = 8 * size
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise EmulatorError(f"{name}: {value} does not fit {bits} bits")
    return (value & ((1 << bits) - 1)).to_bytes(size, "little")
