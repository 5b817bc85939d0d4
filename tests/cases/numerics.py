"""Public faults of the kind "numerics across platforms"."""

from __future__ import annotations

import torch
from torch import nn

from capwise.case import Case
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
]
