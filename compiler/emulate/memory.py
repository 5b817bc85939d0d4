"""Byte-addressed memory that lanes gather from and scatter to: global, LDS and scratch, all bounds-checked per lane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capwise.emulate.arrays import I64, U8, U16, U32, U64, Array
from capwise.emulate.errors import EmulatorError, Fault
from capwise.emulate.wave import Waves

# What LDS and scratch hold before the first store: a huge positive number in float32, bfloat16 and the integers, NaN in
# float16, which a sum, a maximum or a softmax does not hide.
UNWRITTEN = 0x7F
_TAIL = 32  # bytes past the end that word views may cover

_FIRST_ADDRESS = 1 << 44
_LAST_ADDRESS = 1 << 47
# Buffers lie so far apart that a 32-bit element index that wraps around stays outside every buffer but its own, and the
# distance is no multiple of 2**32, so that a wrapped byte offset does not hit the same place of a neighbour either.
_GUARD = (1 << 36) + 0x1_2345_6700


class ByteStore:
    """A byte array with gather and scatter of 1, 2, 4, 8, 12 or 16 bytes at any alignment."""

    def __init__(self, size: int, fill: int = UNWRITTEN) -> None:
        self.bytes = np.full((size + _TAIL + 3) // 4 * 4, fill, U8)
        self._halves, self._words = self.bytes.view(U16), self.bytes.view(U32)

    def load(self, offset: Array, size: int) -> list[Array]:
        """uint32 arrays shaped like ``offset``: ``size // 4`` words, or one zero-extended value when size < 4."""
        if size == 1:
            return [self.bytes[offset].astype(U32)]
        if size == 2 and not (offset & 1).any():
            return [self._halves[offset >> 1].astype(U32)]
        if size >= 4 and not (offset & 3).any():
            word = offset >> 2
            return [self._words[word + i] for i in range(size // 4)]
        width = min(size, 4)
        return [self._unaligned(offset + i, width) for i in range(0, size, width)]

    def _unaligned(self, offset: Array, width: int) -> Array:
        value = np.zeros(offset.shape, U32)
        for byte in range(width):
            value |= self.bytes[offset + byte].astype(U32) << U32(8 * byte)
        return value

    def store(self, offset: Array, size: int, words: list[Array]) -> None:
        """Write ``size`` bytes a lane; where two lanes hit the same place the later lane wins."""
        if size == 1:
            self.bytes[offset] = words[0].astype(U8)
        elif size == 2 and not (offset & 1).any():
            self._halves[offset >> 1] = words[0].astype(U16)
        elif size >= 4 and not (offset & 3).any():
            for i in range(size // 4):
                self._words[(offset >> 2) + i] = words[i]
        else:
            for byte in range(size):
                self.bytes[offset + byte] = (words[byte // 4] >> U32(8 * (byte % 4))).astype(U8)

    def get_integer(self, offset: int, size: int) -> int:
        return int.from_bytes(self.bytes[offset : offset + size].tobytes(), "little")

    def put_integer(self, offset: int, size: int, value: int) -> None:
        raw = (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        self.bytes[offset : offset + size] = np.frombuffer(raw, U8)


@dataclass(frozen=True, slots=True)
class Window:
    """The bytes [start, end) of the address space, kept at ``offset`` of the byte store."""

    start: int
    end: int
    offset: int
    name: str
    writable: bool


class GlobalMemory:
    """Buffers at made-up 64-bit addresses. ``place`` them all, then ``seal``, then translate addresses."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._images: list[bytes] = []
        self._cursor = _FIRST_ADDRESS
        self._size = 0

    def place(self, image: bytes, name: str, *, base_offset: int = 0, writable: bool = True) -> int:
        """Give ``image`` an address and return it. The span from ``base_offset`` bytes before it is left empty."""
        base = (self._cursor + max(0, -base_offset) + 255) // 256 * 256
        start = base + base_offset
        end = start + len(image)
        self._cursor = max(base, end) + _GUARD
        if self._cursor > _LAST_ADDRESS:
            raise EmulatorError(f"{name}: no address space left for a base offset of {base_offset} bytes")
        self.windows.append(Window(start, end, self._size, name, writable))
        self._images.append(image + bytes(-len(image) % 16))
        self._size += len(self._images[-1])
        return start

    def seal(self) -> None:
        self.store = ByteStore(self._size, 0)
        self.store.bytes[: self._size] = np.frombuffer(b"".join(self._images), U8)
        self._images.clear()
        self._starts, self._ends, self._offsets = (
            np.array([getattr(w, field) for w in self.windows], I64) for field in ("start", "end", "offset")
        )
        self._writable = np.array([w.writable for w in self.windows])

    def contents(self, window: Window) -> Array:
        """The current bytes of a window, uint8."""
        return self.store.bytes[window.offset : window.offset + window.end - window.start]

    def translate(self, address: Array, size: int, *, store: bool = False) -> Array:
        """int64 addresses -> offsets in the byte store. Raises Fault unless each access lies wholly in one window."""
        index = np.maximum(np.searchsorted(self._starts, address, "right") - 1, 0)
        bad = (address < self._starts[index]) | (address + size > self._ends[index])
        if bad.any():
            raise Fault(self._out_of_bounds(address[bad], size, store))
        if store and not self._writable[index].all():
            window = self.windows[int(index[~self._writable[index]][0])]
            raise Fault(f"store to {window.name}, which is read-only")
        shift: Array = self._offsets[index] - self._starts[index]
        return address + shift

    def _out_of_bounds(self, addresses: Array, size: int, store: bool) -> str:
        address = int(addresses[0])
        window = min(self.windows, key=lambda w: max(w.start - address, address + size - w.end))
        length = window.end - window.start
        if address < window.start:
            place = f"{window.start - address} bytes before the start"
        else:
            place = f"at byte {address - window.start}, {address + size - window.end} bytes past the end"
        what = "store" if store else "load"
        return (
            f"{what} of {size} bytes out of bounds in {len(addresses)} lane(s), the first {place} of {window.name} "
            f"({length} bytes)"
        )


class Lds:
    """Local data share: a slice of one byte store for each workgroup."""

    def __init__(self, size: int, workgroups: int) -> None:
        self.size = size
        self._stride = (max(size, 16) + 15) // 16 * 16
        self.store = ByteStore(workgroups * self._stride)

    def locate(self, w: Waves, address: Array, size: int, active: Array) -> Array:
        """Byte addresses of the active lanes -> offsets in the byte store. Raises Fault past the allocation."""
        address = address & 0xFFFFFFFF  # the compiler folds negative bases into the unsigned offset
        if (address + size > self.size).any():
            raise Fault(f"LDS access of {size} bytes at {int(address.max())}, beyond the {self.size} bytes allocated")
        slices = np.broadcast_to((w.workgroup[w.rows] * self._stride)[:, None], active.shape)
        offsets: Array = address + slices[active]
        return offsets

    def load(self, w: Waves, address: Array, size: int, active: Array) -> list[Array]:
        return self.store.load(self.locate(w, address, size, active), size)

    def write(self, w: Waves, address: Array, size: int, words: list[Array], active: Array) -> None:
        self.store.store(self.locate(w, address, size, active), size, words)


class Scratch:
    """Private memory of each lane (register spills)."""

    def __init__(self, size: int, waves: int, lanes: int) -> None:
        self.size = (size + 15) // 16 * 16
        self._lanes = lanes
        self.store = ByteStore(waves * lanes * self.size)

    def locate(self, w: Waves, address: Array, size: int, active: Array) -> Array:
        """Byte addresses (n, lanes) -> offsets in the byte store of the active lanes. Raises Fault out of bounds."""
        wanted = address[active]
        if ((wanted < 0) | (wanted + size > self.size)).any():
            raise Fault(f"scratch access of {size} bytes out of bounds ({self.size} bytes a lane)")
        wave, lane = np.nonzero(active)
        offsets: Array = (w.rows[wave].astype(I64) * self._lanes + lane) * self.size + wanted
        return offsets


def combine(words: list[Array], lane: int) -> int:
    """The Python integer that lane ``lane`` holds in consecutive registers, low word first."""
    return sum(int(word[lane]) << (32 * i) for i, word in enumerate(words))


def separate(values: list[int], count: int) -> list[Array]:
    """Inverse of ``combine`` over all lanes: ``count`` uint32 arrays."""
    wide = np.array(values, U64)
    return [((wide >> U64(32 * i)) & U64(0xFFFFFFFF)).astype(U32) for i in range(count)]
