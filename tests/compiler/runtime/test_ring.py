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
        value = ring.hold(24).view(torch.int64).copy_(host) if ring is not None else host
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


def test_a_larger_step_gets_a_larger_buffer() -> None:
    ring = _ring(Device(), 1)
    buffers = []
    for size in (16, 40, 24):
        held = ring.hold(size)
        assert held.shape == (size,) and held.dtype == torch.uint8
        buffers.append(held.untyped_storage()._cdata)
        ring.release()
    assert buffers[0] != buffers[1] == buffers[2]


def test_what_lands_lands_in_one_memory() -> None:
    ring, cpu = _ring(Device()), torch.device("cpu")
    first, second, larger = ring.landing(100, cpu), ring.landing(20, cpu), ring.landing(1000, cpu)
    assert first.data_ptr() == second.data_ptr() != larger.data_ptr()
    assert [len(t) for t in (first, second, larger)] == [100, 20, 1000]


def test_a_ring_needs_a_buffer() -> None:
    with pytest.raises(ValueError, match="depth: expected at least 1; got 0"):
        HostRing(0, event=lambda: Event(Device()))
