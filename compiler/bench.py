"""What capwise itself costs on this machine: `capwise bench NAME`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from capwise.compiled import CompiledModel
from capwise.options import Options

PIECES = (1, 50)


@dataclass(frozen=True)
class Row:
    """Microseconds of host time a step of a program of so many pieces, whose calls do nothing.

    loop: the same calls without capwise. staging: copies of inputs into their buffers. dispatch: all else: guards, the
    look-up of the program, outputs.
    """

    pieces: int
    step: float
    loop: float
    staging: float

    @property
    def dispatch(self) -> float:
        return self.step - self.loop - self.staging

    def to_dict(self) -> dict[str, Any]:
        return {**{n: round(v, 2) for n, v in asdict(self).items()}, "dispatch": round(self.dispatch, 2)}


def dispatch() -> list[Row]:
    """Rows for a model of one piece and of fifty."""
    return [_row(pieces) for pieces in PIECES]


class _Chain(nn.Module):
    """Additions with ops between them of which nothing is known."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(8) for _ in range(pieces))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.weights[0]
        for weight in list(self.weights)[1:]:
            x = torch.ops.capwise_bench.opaque(x) + weight
        return x


@functools.cache
def _opaque() -> Any:
    """Registers an op that no contract describes, for as long as the process lives."""
    library: Any = torch.library.Library("capwise_bench", "DEF")  # type: ignore[no-untyped-call]
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", torch.clone, "CompositeExplicitAutograd")
    library.impl("opaque", torch.empty_like, "Meta")
    return library


def _row(pieces: int) -> Row:
    _opaque()
    settings = {"inputs": {"x": ("T", 8)}, "capture": "tape", "capture_sizes": (8,), "capacity": {"T": 8}}
    model, batch = CompiledModel(_Chain(pieces), Options.make(settings)), {"x": torch.ones(5, 8)}
    for _ in range(3):
        model(**batch)
    ticket = model.ticket
    assert ticket is not None and ticket.layout.prepared is not None
    prepared = ticket.layout.prepared
    calls = prepared.bound.calls = [lambda: None for _ in prepared.bound.calls]
    made = sum(step.kind == "piece" for step in ticket.executor.program.steps)
    assert made == pieces, f"{made} pieces in the place of {pieces}"
    values = ticket.executor._staged_values(prepared.bound, batch)

    def loop() -> None:
        for call in calls:
            call()

    return Row(pieces, _least(lambda: model(**batch)), _least(loop), _least(lambda: prepared.staging(values)))


def _least(run: Callable[[], Any], count: int = 100, repeats: int = 50) -> float:
    """Microseconds of the fastest of some groups of calls: what else the machine does only adds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(count):
            run()
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def as_text(rows: list[Row]) -> str:
    names = ("pieces", "step", "loop", "staging", "dispatch")
    lines = ["host time of a step, us", "".join(f"{name:>10}" for name in names)]
    lines += ["".join(f"{found[name]:>10}" for name in names) for found in map(Row.to_dict, rows)]
    return "\n".join(lines)
