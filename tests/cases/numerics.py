"""Public faults of the kind "numerics across platforms"."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
from capwise.runtime import tape
from capwise.runtime.pool import Pool
from capwise.runtime.self_test import failures
from tests.cases.harness import Record


# --------------------------------------------------------------------------------- C95: another format on each target
class ReadsOtherFormat(nn.Module):
    """A cache of plain bytes: one kernel encodes, another decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, dtype=torch.uint8))
        self.register_buffer("values", torch.tensor([1.0, -0.0]))

    def forward(self, x):
        encoded = self.values.to(torch.float8_e4m3fn)
        self.cache.copy_(encoded.view(torch.uint8))
        decoded = self.cache.view(torch.float8_e4m3fnuz)
        return decoded.to(torch.float32), x + 1


class ReadsSameFormat(nn.Module):
    """A cache of plain bytes: one kernel encodes, another decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, dtype=torch.uint8))
        self.register_buffer("values", torch.tensor([1.0, -0.0]))

    def forward(self, x):
        encoded = self.values.to(torch.float8_e4m3fn)
        self.cache.copy_(encoded.view(torch.uint8))
        decoded = self.cache.view(torch.float8_e4m3fn)
        return decoded.to(torch.float32), x + 1


def _c95(name: str, model: nn.Module, reference: nn.Module | None = None) -> Case:
    return Case(
        model=model,
        batches=[{"x": torch.ones(3)}, {"x": torch.ones(1)}],
        inputs={"x": ("T",)},
        capacity={"T": 4},
        options={"capture_sizes": (4,)},
        reference=reference,
        name=name,
    )


# ------------------------------------------------------------------------------- C97: nodes replayed in another order
def _replays_in_order(defect: bool) -> str | None:
    """What a self-test says of a runtime that replays the second node of every recording before the first."""
    pool = Pool()

    def record(run):
        out, recording = tape.record(run, (), pool)
        launches = recording.launches
        wrong = [launches[1], launches[0], *launches[2:]]

        def replay():
            for launch in wrong if defect else launches:
                launch.run()

        return out, replay

    failed = failures(record)
    return f"self-test: {', '.join(failed)}" if failed else None


RECORDS = [
    Record(
        id="C95",
        ref="sgl-project/sglang#28455",
        kind="numerics-across-platform",
        title="bytes written in one 8-bit float format are read in another",
        group="graph",
        codes=("CW601",),
        expected=["1.0", "-0.0"],
        wrong=["0.5", "nan"],
        case=lambda: _c95("C95 another format", ReadsOtherFormat(), ReadsSameFormat()),
        twin=lambda: _c95("C95 repaired", ReadsSameFormat()),
        read=lambda steps: [repr(v) for v in steps[-1]["output 0"].tolist()],
    ),
    Record(
        id="C97",
        ref="ROCm/clr#279",
        kind="numerics-across-platform",
        title="the runtime replays a node before the one whose result it reads",
        group="runtime",
        codes=(),
        expected=8,
        wrong=0,
        caught_by=_replays_in_order,
    ),
]
