"""The staging ring, with a device that does its copies late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from capwise.runtime.ring import HostRing


class Device:
    """Runs what it was told when somebody waits for it."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.done = self.waits = 0

    def copy(self, place: torch.Tensor, value: torch.Tensor) -> None:
        self.queue.append(lambda: place.copy_(value))

    def run_to(self, mark: int) -> None:
        while self.done < mark:
            self.queue[self.done]()
            self.done += 1


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.mark = device, 0

    def record(self) -> None:
        self.mark = len(self.device.queue)

    def synchronize(self) -> None:
        self.device.waits += self.device.done < self.mark
        self.device.run_to(self.mark)


def _ring(device: Device, depth: int = 2) -> HostRing:
    return HostRing(depth, lambda size: torch.empty(size, dtype=torch.uint8), lambda: Event(device))


def _steps(device: Device, ring: HostRing | None, count: int) -> list[torch.Tensor]:
    """A scheduler that writes the next step's numbers as soon as a step is launched; what the device got."""
    host, got = torch.zeros(3, dtype=torch.int64), [torch.zeros(3, dtype=torch.int64) for _ in range(count)]
    for step, place in enumerate(got):
        host.fill_(step)
        (value,) = ring.hold([host]) if ring is not None else [host]
        device.copy(place, value)
        if ring is not None:
            ring.release()
    device.run_to(len(device.queue))
    return got


def test_without_it_the_device_reads_what_the_host_wrote_later() -> None:
    assert [int(t[0]) for t in _steps(Device(), None, 4)] == [3, 3, 3, 3]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_step_gets_its_own_numbers(depth: int) -> None:
    device = Device()
    assert [int(t[0]) for t in _steps(device, _ring(device, depth), 5)] == [0, 1, 2, 3, 4]
    assert device.waits == 5 - depth


def test_values_of_all_kinds_share_a_buffer_and_a_larger_step_gets_a_larger_one() -> None:
    ring = _ring(Device())
    for size in (2, 5, 3):
        values = [torch.arange(size, dtype=torch.int32), torch.rand(size, 2), torch.tensor(True), torch.rand(2, 3).t()]
        held = ring.hold(values)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(held, values))
        storages = {h.untyped_storage()._cdata for h in held}
        assert len(storages) == 1 and not storages & {v.untyped_storage()._cdata for v in values}
        ring.release()


def test_a_ring_needs_a_buffer() -> None:
    with pytest.raises(ValueError, match="depth: expected at least 1; got 0"):
        HostRing(0, event=lambda: Event(Device()))
