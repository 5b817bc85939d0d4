"""Whether this runtime replays what it recorded: a few small graphs with known answers, before any is trusted.

No analysis of a program sees a fault of the runtime or driver. Some have replayed the nodes of a graph in another
order, in one process of five, while eager runs were always right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from capwise.runtime import graph
from capwise.runtime.tape import CaptureError

# Runs code once and keeps it: -> what it returned, and what replays it.
Record = Callable[[Callable[..., Any]], tuple[Any, Callable[[], None]]]
REPLAYS = 16
_SIZE = 1024


def failures(record: Record, device: str = "cpu") -> tuple[str, ...]:
    """Names of the self-tests that recordings made by `record` fail: a replay after new inputs differs from eager.

    Args:
        record: makes a recording of a function without arguments.
    """
    return tuple(name for name, run in TESTS.items() if not _passes(run, record, device))


def _passes(run: Callable[[torch.Tensor], Callable[[], torch.Tensor]], record: Record, device: str) -> bool:
    x = torch.zeros(_SIZE, device=device)
    code = run(x)
    code()
    out, replay = record(code)
    for step in range(REPLAYS):
        x.fill_(3 + step)
        replay()
        got = out.clone()
        if not torch.equal(got, run(x.clone())()):
            return False
    return True


def _order(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The second node reads what the first one writes."""
    return lambda: (x + 1) * 2


def _chain(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Many nodes in place, of which no two change places without a trace."""
    y = torch.empty_like(x)

    def code() -> torch.Tensor:
        y.copy_(x)
        for i in range(8):
            y.mul_(3).add_(i)
            y.remainder_(4096)
        return y

    return code


def _cleared(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Memory that is cleared before it is added to."""
    total = torch.empty_like(x)

    def code() -> torch.Tensor:
        total.zero_()
        total.add_(x)
        return total * 1

    return code


TESTS: dict[str, Callable[[torch.Tensor], Callable[[], torch.Tensor]]] = {
    "order of nodes": _order, "chain in place": _chain, "cleared memory": _cleared
}  # fmt: skip


def refuse_bad_runtime() -> None:
    """Called before the first recording on a device.

    Raises:
        CaptureError: recordings of this runtime fail a self-test.
    """
    failed = _device_failures()
    if failed:
        raise CaptureError(
            f"this runtime does not replay what it records (self-test: {', '.join(failed)}); expected a driver and "
            "runtime that do, or capture='off'"
        )


@functools.cache
def _device_failures() -> tuple[str, ...]:
    pool = graph.DevicePool()

    def record(run: Callable[..., Any], args: Sequence[Any] = ()) -> tuple[Any, Callable[[], None]]:
        torch.cuda.synchronize()
        out, recording = graph.record(run, args, pool)
        return out, recording.replay

    return failures(record, "cuda")
