"""Copies of a step's inputs to where its recording reads them, prepared once a layout.

What is on the device goes to its places in one launch, whatever the number, types and strides, and the live extents
with it. What comes from host memory is packed, and crosses to the device in one copy before.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence

import torch

from capwise.ops.launch import jit, tl, triton
from capwise.runtime.ring import HostRing

# Copies that one launch makes: so many addresses are its arguments, all else stands in a table.
COPIES = 16
DIMS = 4
WIDTH = 3 + 3 * DIMS
BLOCK = 1024
_ALIGN = 16


class Staging:
    """The copies of a step at one layout; called with the values of a step, in the order of `values`.

    Args:
        places: the live part of each buffer.
        values: what goes there, of this layout.
        extents: (0-d int64 buffer, the live extent that it holds).
        ring: gives host memory on its way to the device, where a value is in host memory and its place is not.
    """

    def __init__(
        self,
        places: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        extents: Sequence[tuple[torch.Tensor, int]],
        ring: Callable[[], HostRing],
    ) -> None:
        self._hosted = [i for i, (p, v) in enumerate(zip(places, values)) if p.device != v.device]
        self._packing: Packing | None = None
        sources: list[torch.Tensor | int] = list(range(len(values)))
        samples = list(values)
        if self._hosted:
            self._packing = Packing([values[i] for i in self._hosted], places[self._hosted[0]].device, ring())
            for i, landed in zip(self._hosted, self._packing.landed):
                sources[i] = samples[i] = landed
        pairs = enumerate(zip(places, samples))
        fused = [i for i, (p, v) in pairs if triton is not None and p.device.type == "cuda" and is_plain(p, v)]
        others = [i for i in range(len(places)) if i not in fused]
        self._fused: Fused | None = None
        if fused:
            copied = [(places[i], samples[i], sources[i]) for i in fused]
            self._fused = Fused(copied, [e for e in extents if e[0].device == copied[0][0].device])
            extents = [e for e in extents if e[0].device != copied[0][0].device]
        self._places = [*[places[i] for i in others], *[p for p, _ in extents]]
        numbers = [torch.tensor(n, dtype=p.dtype, device=p.device) for p, n in extents]
        self._sources = [*[sources[i] for i in others], *numbers]

    def __call__(self, values: Sequence[torch.Tensor]) -> None:
        if self._packing is not None:
            self._packing([values[i] for i in self._hosted])
        if self._fused is not None:
            self._fused(values)
        if self._places:
            sources = [values[s] if isinstance(s, int) else s for s in self._sources]
            torch._foreach_copy_(self._places, sources, non_blocking=True)


class Packing:
    """Host tensors of one layout side by side in one buffer, so that they cross to a device together.

    Attributes:
        landed: the same tensors on the device, valid until the next step is staged.
    """

    def __init__(self, values: Sequence[torch.Tensor], device: torch.device, ring: HostRing) -> None:
        self._ring, self._dense = ring, [v.is_contiguous() and not (v.is_neg() or v.is_complex()) for v in values]
        self._sizes = [v.numel() * v.element_size() for v in values]
        self._starts, at = [], 0
        for size in self._sizes:
            self._starts.append(at)
            at += -(-size // _ALIGN) * _ALIGN
        self._landing = ring.landing(at, device)
        self.landed = [
            self._landing[start : start + size].view(v.dtype).view(v.shape)
            for v, start, size in zip(values, self._starts, self._sizes)
        ]

    def __call__(self, values: Sequence[torch.Tensor]) -> None:
        held = self._ring.hold(self._landing.numel())
        base = held.data_ptr()
        for value, dense, start, size in zip(values, self._dense, self._starts, self._sizes):
            # The bytes of a negated or conjugated view are not its values.
            dense_value = value if dense else value.resolve_neg().resolve_conj().contiguous()
            ctypes.memmove(base + start, dense_value.data_ptr(), size)
        self._landing.copy_(held, non_blocking=True)
        self._ring.release()


def is_plain(place: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernel can make a copy. What it cannot, PyTorch does: between devices, from other numbers of rows,
    more than four dimensions that do not lie together, elements of other than 1 to 8 bytes, values that are not their
    bytes."""
    same = value.device == place.device and value.shape == place.shape and value.dtype == place.dtype
    bits = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_complex() and not value.is_neg()
    return same and bits and value.element_size() <= 8 and value.numel() < 1 << 31 and len(_dims(place, value)) <= DIMS


def _dims(place: torch.Tensor, value: torch.Tensor) -> list[tuple[int, int, int]]:
    """(size, step in the value, step in the place); dimensions that lie together in both are one."""
    found: list[tuple[int, int, int]] = []
    for size, one, other in zip(value.shape, value.stride(), place.stride()):
        if size == 1:
            continue
        if found and found[-1][1:] == (one * size, other * size):
            found[-1] = (found[-1][0] * size, one, other)
        else:
            found.append((size, one, other))
    return found


class Fused:
    """Copies on one device, in one launch for each `COPIES` of them.

    Args:
        copied: (place, a value of the layout, and where it comes from: the number of an argument, or this tensor).
        extents: (0-d int64 place, the number that goes there).
    """

    def __init__(
        self,
        copied: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor | int]],
        extents: Sequence[tuple[torch.Tensor, int]],
    ) -> None:
        device = copied[0][0].device
        self._device = torch.cuda.device(device)
        count, numbers = len(copied) + len(extents), [n for _, n in extents]
        parts = range(0, count, COPIES)
        size = len(parts) * COPIES + count * WIDTH
        table = torch.empty(size + len(numbers), dtype=torch.int64, device=device)
        rows = [row(p, v, 0 if isinstance(s, int) else s.data_ptr()) for p, v, s in copied]
        rows += [row(p, table[size + i], table.data_ptr() + 8 * (size + i)) for i, (p, _) in enumerate(extents)]
        arguments = [s if isinstance(s, int) else None for _, _, s in copied] + [None] * len(extents)
        filled: list[int] = []
        self._launches: list[tuple[Callable[..., None], int, list[int | None]]] = []
        for at in parts:
            part, blocks = table_of(rows[at : at + COPIES])
            if blocks:
                launch, address = _launcher(device, blocks), table.data_ptr() + 8 * len(filled)
                self._launches.append((launch, address, [*arguments[at : at + COPIES], *[None] * COPIES][:COPIES]))
            filled += part
        table.copy_(torch.tensor([*filled, *numbers]).pin_memory(), non_blocking=True)
        # An address keeps nothing alive.
        self._kept = (table, [p for p, _, _ in copied], [s for _, _, s in copied], [p for p, _ in extents])

    def __call__(self, values: Sequence[torch.Tensor]) -> None:
        with self._device:
            for launch, table, arguments in self._launches:
                launch(table, *[0 if i is None else values[i].data_ptr() for i in arguments], COPIES, WIDTH, BLOCK)


@functools.cache
def _launcher(device: torch.device, blocks: int) -> Callable[..., None]:
    """Launches the kernel without looking it up by the types of its arguments, which here are always the same."""
    with torch.cuda.device(device):
        compiled = stage_kernel.warmup(*[0] * (1 + COPIES), COPIES, WIDTH, BLOCK, grid=(1,))
        launch: Callable[..., None] = compiled[blocks, 1, 1]
    return launch


def row(place: torch.Tensor, value: torch.Tensor, source: int) -> list[int]:
    """One copy as it stands in the table; source: the address of the value, 0 where it is an argument."""
    dims = [*[(1, 0, 0)] * DIMS, *_dims(place, value)][-DIMS:]
    return [place.data_ptr(), source, value.element_size(), *[n for dim in dims for n in dim]]


def table_of(rows: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """The table of one launch: where the blocks of each copy begin, then the copies; and the number of blocks."""
    starts, at = [], 0
    for one in rows:
        starts.append(at)
        at += -(-math.prod(one[3::3]) // BLOCK)
    starts += [at] * (COPIES - len(rows))
    return [*starts, *[n for one in rows for n in one]], at


@jit
def stage_kernel(
    table: tl.int64,
    a0: tl.int64, a1: tl.int64, a2: tl.int64, a3: tl.int64, a4: tl.int64, a5: tl.int64, a6: tl.int64, a7: tl.int64,
    a8: tl.int64, a9: tl.int64, a10: tl.int64, a11: tl.int64, a12: tl.int64, a13: tl.int64, a14: tl.int64,
    a15: tl.int64,
    COPIES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Copies between addresses.

    table: the address of COPIES numbers of first blocks, and then of a row a copy: address of the place, address of the
    value or 0, bytes of an element, and four times (size, step in the value, step in the place), outermost first. a0 to
    a15: addresses of the values whose address in the table is 0; else 0.
    """
    block = tl.program_id(0)
    entries = table.to(tl.pointer_type(tl.int64))
    starts = tl.load(entries + tl.arange(0, COPIES))
    at = tl.sum((starts <= block).to(tl.int32), 0) - 1
    first = tl.load(entries + at)
    row = entries + COPIES + at * WIDTH
    source = tl.load(row + 1)
    source += tl.where(at == 0, a0, 0) + tl.where(at == 1, a1, 0) + tl.where(at == 2, a2, 0) + tl.where(at == 3, a3, 0)
    source += tl.where(at == 4, a4, 0) + tl.where(at == 5, a5, 0) + tl.where(at == 6, a6, 0) + tl.where(at == 7, a7, 0)
    source += tl.where(at == 8, a8, 0) + tl.where(at == 9, a9, 0) + tl.where(at == 10, a10, 0)
    source += tl.where(at == 11, a11, 0) + tl.where(at == 12, a12, 0) + tl.where(at == 13, a13, 0)
    source += tl.where(at == 14, a14, 0) + tl.where(at == 15, a15, 0)
    place, size = tl.load(row), tl.load(row + 2)
    rest = ((block - first) * BLOCK + tl.arange(0, BLOCK)).to(tl.int32)
    n0, n1 = tl.load(row + 3).to(tl.int32), tl.load(row + 6).to(tl.int32)
    n2, n3 = tl.load(row + 9).to(tl.int32), tl.load(row + 12).to(tl.int32)
    inside = rest < n0 * n1 * n2 * n3
    there, here = (rest % n3) * tl.load(row + 13), (rest % n3) * tl.load(row + 14)
    rest //= n3
    there, here = there + (rest % n2) * tl.load(row + 10), here + (rest % n2) * tl.load(row + 11)
    rest //= n2
    there, here = there + (rest % n1) * tl.load(row + 7), here + (rest % n1) * tl.load(row + 8)
    rest //= n1
    there, here = there + rest * tl.load(row + 4), here + rest * tl.load(row + 5)
    if size == 8:
        _move(source.to(tl.pointer_type(tl.int64)) + there, place.to(tl.pointer_type(tl.int64)) + here, inside)
    elif size == 4:
        _move(source.to(tl.pointer_type(tl.int32)) + there, place.to(tl.pointer_type(tl.int32)) + here, inside)
    elif size == 2:
        _move(source.to(tl.pointer_type(tl.int16)) + there, place.to(tl.pointer_type(tl.int16)) + here, inside)
    else:
        _move(source.to(tl.pointer_type(tl.int8)) + there, place.to(tl.pointer_type(tl.int8)) + here, inside)


@jit
def _move(source, place, inside):  # type: ignore[no-untyped-def]
    tl.store(place, tl.load(source, mask=inside), mask=inside)
