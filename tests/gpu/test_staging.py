"""Staging on a device: one launch, whatever the layouts are, more copies than a launch takes. pytest -m gpu"""

import pytest
import torch
from torch import nn

import capwise
from capwise.runtime.ring import HostRing
from capwise.runtime.staging import COPIES, Staging

pytestmark = pytest.mark.gpu


def test_values_of_all_kinds_and_extents():
    torch.manual_seed(0)
    dtypes = (torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.float64, torch.complex64)
    places, values = [], []
    for i in range(2 * COPIES + 3):
        value = (torch.rand(i % 5 + 1, 3000 if i == 4 else 7, device="cuda") * 9).to(dtypes[i % 6])
        values.append([value, value.t(), value[:, 2:5], value.cpu(), value[::2]][i % 5])
        places.append(torch.zeros(values[-1].shape, dtype=value.dtype, device="cuda"))
    extents = [(torch.zeros((), dtype=torch.int64, device="cuda"), n) for n in (5, 0, 1 << 40)]
    ring = HostRing()
    stage = Staging(places, values, extents, lambda: ring)
    for _ in range(5):
        for value in values:
            value.copy_((torch.rand(value.shape) * 9).to(value.dtype))
        stage(values)
        assert all(torch.equal(p.cpu(), v.cpu()) for p, v in zip(places, values))
        assert [int(p) for p, _ in extents] == [5, 0, 1 << 40]


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(100.0))

    def forward(self, index, bias):
        return self.table[index] + bias[:, 0]


def test_a_step_reads_what_it_is_given_wherever_that_stands():
    model = Adds().cuda()
    inputs = {"index": ("T",), "bias": ("T", 1)}
    compiled = capwise.compile(model, inputs=inputs, capacity={"T": 8}, capture_sizes=(8,), outputs="copy")
    whole = torch.arange(64, device="cuda").view(8, 8)
    for step in range(6):
        for rows in (3, 8, 5):
            index, bias = whole[:rows, step], torch.randn(2, rows, device="cuda")[:1].t()
            assert torch.equal(compiled(index=index, bias=bias), model(index, bias))
    assert compiled.misses == 0 and not compiled.report.seams
