"""Static buffers: where a step's inputs stand while its graph runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from capwise.labels import InputError
from capwise.runtime.ring import HostRing
from capwise.transfer.flow import LAST

Noise = Callable[[str, torch.Tensor], None]


class Arena:
    """One buffer a staged input, shared by all programs, keys and buckets of a model.

    A bucket sees a dense view of the front of the buffer at its captured extents, so whatever bucket ran last leaves
    its rows there: that is what fills are for. With `keep_strides` (repair="none") buffers are laid out as the first
    batch was, which is what a naive engine does.
    """

    def __init__(self, keep_strides: bool = False) -> None:
        self.keep_strides = keep_strides
        self._flat: dict[tuple[str, torch.dtype, str], torch.Tensor] = {}
        self._strided: dict[tuple[Any, ...], torch.Tensor] = {}
        self.pool: Any = None
        self._ring: HostRing | None = None

    @property
    def ring(self) -> HostRing:
        """Host memory on its way to the device, made at first use."""
        if self._ring is None:
            self._ring = HostRing()
        return self._ring

    def view(self, name: str, like: torch.Tensor, shape: Sequence[int], most: Sequence[int]) -> torch.Tensor:
        """The buffer of `name` at this shape; `most` is the largest shape that any bucket asks for."""
        if self.keep_strides and not like.is_contiguous():
            return self._like(name, like, shape)
        key = (name, like.dtype, str(like.device))
        needed = max(math.prod(shape), math.prod(most))
        flat = self._flat.get(key)
        if flat is None or flat.numel() < needed:
            # A larger buffer does not move an older one: graphs that were recorded over it keep it.
            flat = torch.zeros(needed, dtype=like.dtype, device=like.device)
            self._flat[key] = flat
        return flat[: math.prod(shape)].view(tuple(shape))

    def _like(self, name: str, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        key = (name, tuple(shape), like.stride())
        if key not in self._strided:
            span = 1 + sum((n - 1) * s for n, s in zip(shape, like.stride()))
            storage = torch.zeros(max(span, 1), dtype=like.dtype, device=like.device)
            self._strided[key] = storage.as_strided(tuple(shape), like.stride())
        return self._strided[key]

    def poison(self, noise: Noise) -> None:
        """Overwrites every buffer; live rows are staged over it afterwards."""
        for (name, *_), flat in self._flat.items():
            noise(name, flat)
        for (name, *_), tensor in self._strided.items():
            noise(name, tensor)

    def clean(self) -> None:
        """Zeroes every buffer; live rows are staged over it afterwards."""
        for tensor in (*self._flat.values(), *self._strided.values()):
            tensor.zero_()

    def snapshot(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Every buffer with a copy of what it holds."""
        return [(t, t.clone()) for t in (*self._flat.values(), *self._strided.values())]


def live_part(place: torch.Tensor, shape: Sequence[int], padded: Sequence[int]) -> torch.Tensor:
    """The leading rows of a buffer that a live value of this shape goes to."""
    for dim in padded:
        place = place.narrow(dim, 0, shape[dim])
    return place


class TailFill:
    """Fills the tail of one padded dimension of a buffer, with device work only, so that it can be recorded.

    Args:
        place: the buffer at captured extents.
        live: 0-d int64, the live extent of the dimension's symbol; `scale * live + offset` rows are live.
        value: a number, or "last" for the last live row.
    """

    def __init__(self, place: torch.Tensor, dim: int, live: torch.Tensor, affine: tuple[int, int], value: Any) -> None:
        self.place, self.dim, self.live, self.value = place, dim, live, value
        self.scale, self.offset = affine
        shape = [1] * place.dim()
        shape[dim] = place.shape[dim]
        self.rows = torch.arange(place.shape[dim], device=place.device).view(shape)

    def __call__(self) -> None:
        bound = self.live if self.scale == 1 else self.live * self.scale
        bound = bound + self.offset if self.offset else bound
        if self.value != LAST:
            self.place.masked_fill_(self.rows >= bound, self.value)
            return
        last = self.place.index_select(self.dim, (bound - 1).clamp(min=0).view(1))
        self.place.copy_(torch.where(self.rows < bound, self.place, last))


def whole_buffer(name: str, view: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The engine's own storage behind a view, at captured extents.

    Raises:
        InputError: the storage ends before the captured extent.
    """
    span = 1 + sum((n - 1) * s for n, s in zip(shape, view.stride()))
    have = view.untyped_storage().nbytes() // view.element_size() - view.storage_offset()
    if span > have:
        raise InputError(
            f"{name}: CW205: expected a buffer that reaches to the captured extent {tuple(shape)} ({span} elements); "
            f"its storage holds {have}"
        )
    return view.as_strided(tuple(shape), view.stride())


def most_shape(dims: Sequence[Any], shape: Sequence[int], largest: Mapping[str, int]) -> list[int]:
    """The largest shape of a described input over all buckets."""
    sizes = [d.extent(largest) if d.symbol in largest else n for d, n in zip(dims, shape)]
    return [n if s is None else max(s, n) for s, n in zip(sizes, shape)]
