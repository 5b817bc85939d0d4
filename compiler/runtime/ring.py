"""Host memory between a caller that writes the next step's inputs and a device that still copies this one's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


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
    """A few pinned buffers in turn. `hold` gives the next one, once the device is done with it, and `release` marks
    where the device will be done again. So the caller's own memory is free at once, pinned or not, and nothing that
    was handed to the device is written before the device has read it.

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
        self._landing = torch.empty(0, dtype=torch.uint8)

    def hold(self, size: int) -> torch.Tensor:
        """So many bytes that stay as they are written until the device has passed `release`."""
        slot = self._slots[self._at]
        if slot.used:
            slot.event.synchronize()
        if slot.buffer.numel() < size:
            slot.buffer = self._pinned(size)
        return slot.buffer[:size]

    def release(self) -> None:
        """The device reads what was held no later than now in its order."""
        slot = self._slots[self._at]
        slot.event.record()
        slot.used = True
        self._at = (self._at + 1) % len(self._slots)

    def landing(self, size: int, device: torch.device) -> torch.Tensor:
        """So many bytes on the device, where what was held arrives. One memory for all: it holds one step's."""
        if self._landing.numel() < size or self._landing.device != device:
            self._landing = torch.empty(1 << max(size - 1, 1).bit_length(), dtype=torch.uint8, device=device)
        return self._landing[:size]
