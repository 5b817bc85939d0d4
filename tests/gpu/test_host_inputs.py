"""Host inputs of a device program: staged through the ring, while the host writes the next step's. pytest -m gpu"""

import pytest
import torch
from torch import nn

import capwise

pytestmark = pytest.mark.gpu


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4096 * 4096, dtype=torch.float32).view(4096, 4096))

    def forward(self, index, bias):
        rows = index.to(self.table.device, non_blocking=True)
        heavy = (self.table @ self.table)[0, 0] * 0
        return rows + bias.to(self.table.device) + heavy.to(torch.int64)


@pytest.mark.parametrize("pinned", [True, False])
def test_each_step_reads_what_was_there_when_it_was_called(pinned):
    model = Adds().cuda()
    inputs = {"index": ("T",), "bias": (1,)}
    compiled = capwise.compile(model, inputs=inputs, capacity={"T": 8}, capture_sizes=(8,), outputs="copy")
    index, bias = torch.zeros(5, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    if pinned:
        index, bias = index.pin_memory(), bias.pin_memory()
    got = []
    for step in range(12):
        index.copy_(torch.arange(5) + step)
        bias.fill_(100 * step)
        got.append(compiled(index=index, bias=bias))
    assert {d.code for d in compiled.report if d.repair == "staging ring with events"} == {"CW306"}
    assert not compiled.report.seams
    assert [g.tolist() for g in got] == [[i + s + 100 * s for i in range(5)] for s in range(12)]
