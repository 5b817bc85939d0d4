"""How the benchmarks measure a step: its time, what of it the host spends, and on what."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from capwise.backend import CompiledModel
from capwise.runtime.dispatch import layout_of


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def step_time(run: Callable[[], Any], count: int = 50) -> float:
    """Microseconds from step to step, nothing waited for in between: the slower of host and device."""
    for _ in range(5):
        run()
    times = []
    for _ in range(7):
        synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        synchronize()
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def host_time(run: Callable[[], Any], count: int = 10) -> float:
    """Microseconds that the call itself takes; few calls at a time, so that no queue fills up."""
    times = []
    for _ in range(11):
        synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count * 1e6)
        synchronize()
    return statistics.median(times)


PARTS = ("layout", "guards", "staging", "launch", "outputs", "new layout", "all")


def host_parts(model: CompiledModel, batch: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds of host time a step, by what they are spent on.

    layout: binding the call, looking up its layout, checking values. guards: of tensors, Python values and static
    inputs. staging: copies into buffers, live extents. launch: recordings and seams. outputs: views and structure. all:
    a step. new layout: a step whose shapes are new, its bucket recorded.
    """
    for _ in range(2):
        model(**batch)
    ticket, given = model.ticket, model.admission.bind((), batch)
    assert ticket is not None and ticket.layout.prepared is not None
    executor, prepared = ticket.executor, ticket.layout.prepared
    values, outs = executor._staged_values(prepared.bound, given), executor.step(given, ticket.layout)

    def look_up() -> None:
        found = model.admission.bind((), batch)
        model._tickets.get(layout_of(found.items()))
        model.admission.check_values(found)

    def guards() -> None:
        ticket.variant.guards.hold()
        model._moved_static(ticket.variant, given)

    def launch() -> None:
        for call in prepared.bound.calls:
            call()

    def outputs() -> None:
        executor._finish(prepared.results, given)
        model._rebuild(ticket.variant, outs, given)

    def new_layout() -> None:
        model._tickets.clear()
        model(**batch)

    calls = (look_up, guards, lambda: prepared.staging(values), launch, outputs, new_layout, lambda: model(**batch))
    return {name: host_time(call) for name, call in zip(PARTS, calls)}


def print_parts(rows: Mapping[str, Mapping[str, float]]) -> None:
    """One row a batch."""
    print(f"| host time, us | {' | '.join(PARTS)} |\n|{'---|' * (1 + len(PARTS))}")
    for name, parts in rows.items():
        print(f"| {name} | {' | '.join(f'{parts[part]:.1f}' for part in PARTS)} |")


def device_times(run: Callable[[], Any], count: int = 10) -> dict[str, tuple[float, float]]:
    """Kernel -> (launches a step, microseconds a step), those inside of graphs too."""
    activity = torch.profiler.ProfilerActivity
    run()
    synchronize()
    with torch.profiler.profile(activities=[activity.CUDA]) as profile:
        for _ in range(count):
            run()
        synchronize()
    found = [e for e in profile.key_averages() if e.device_type.name != "CPU"]
    return {e.key: (e.count / count, e.self_device_time_total / count) for e in found}


def print_differences(title: str, run: Callable[[], Any], floor: Callable[[], Any], most: int = 12) -> None:
    """The kernels whose time a step differs most from its floor's."""
    mine, least = device_times(run), device_times(floor)
    total = [sum(us for _, us in times.values()) for times in (mine, least)]
    print(f"\n{title}: {total[0]:.0f} us on the device, the floor {total[1]:.0f} us\n")
    print("| kernel | launches | us | launches of the floor | us of the floor |\n|---|---|---|---|---|")
    nothing = (0.0, 0.0)
    names = sorted(mine.keys() | least.keys(), key=lambda n: -abs(mine.get(n, nothing)[1] - least.get(n, nothing)[1]))
    for name in names[:most]:
        (n, us), (m, floor_us) = mine.get(name, nothing), least.get(name, nothing)
        print(f"| {name[:60]} | {n:.0f} | {us:.1f} | {m:.0f} | {floor_us:.1f} |")
