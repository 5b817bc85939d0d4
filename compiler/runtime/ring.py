"""Host memory between a caller that writes the next step's inputs and a device that still copies this one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

_ALIGN = 64


class Event(Protocol):
    """What of `torch.cuda.Event` is used."""

    def record(self) -> Any: ...

    def synchronize(self) -> Any: ...


@dataclass
class Slot:
    """One buffer, and when the device has read it for the last time."""

    buffer: torch.Tensor
    event: Event
    used: bool = False


class HostRing:
    """A few pinned buffers in turn. `hold` copies host tensors into the next one, once the device is done with it, and
    `release` marks where the device will be done again. So the caller's own memory is free at once, pinned or not, and
    nothing that was handed to the device is written before the device has read it.

    Args:
        depth: buffers; the host waits where it is that many steps ahead.
        pinned: makes a buffer of so many bytes. event: makes an event; both as CUDA and HIP have them if None.
    """

    def __init__(
        self,
        depth: int = 3,
        pinned: Callable[[int], torch.Tensor] | None = None,
        event: Callable[[], Event] | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth: expected at least 1; got {depth}")
        self._pinned = pinned or (lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True))
        self._event = event or torch.cuda.Event
        self._slots = [Slot(torch.empty(0, dtype=torch.uint8), self._event()) for _ in range(depth)]
        self._at = 0

    def hold(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the values, in memory that stays as it is until the device has passed `release`."""
        slot = self._slots[self._at]
        if slot.used:
            slot.event.synchronize()
        places, size = [], 0
        for value in values:
            places.append(size)
            size += -(-value.numel() * value.element_size() // _ALIGN) * _ALIGN
        if slot.buffer.numel() < size:
            slot.buffer = self._pinned(size)
        return [self._copy(slot.buffer, at, value) for at, value in zip(places, values)]

    def release(self) -> None:
        """The device reads what was held no later than now in its order."""
        slot = self._slots[self._at]
        slot.event.record()
        slot.used = True
        self._at = (self._at + 1) % len(self._slots)

    def _copy(self, buffer: torch.Tensor, at: int, value: torch.Tensor) -> torch.Tensor:
        part = buffer[at : at + value.numel() * value.element_size()].view(value.dtype).view(value.shape)
        return part.copy_(value)
