"""Kernels natively on a device against their references on the CPU."""

import pytest
import torch

from capwise.models.demo_cases import GOLDEN, GOLDEN_IDS
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.ple import NgramIds
from capwise.ops import ple_gate, short_conv, table_gather

pytestmark = pytest.mark.gpu


def _device(*tensors):
    return [t.cuda() if isinstance(t, torch.Tensor) else t for t in tensors]


def _requests(lengths, stride, slots):
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    table = torch.zeros(len(lengths), stride, dtype=torch.int32)
    table[:, 0] = torch.tensor(slots, dtype=torch.int32)
    return starts, table


@pytest.mark.parametrize("lengths", [[1], [5, 0, 3], [1, 1, 1, 1], [700, 3], [0, 0, 9]])
def test_ngram_ids(lengths):
    model = NgramIds(Config())
    starts, _ = _requests(lengths, 1, [1] * len(lengths))
    tokens = int(starts[-1])
    ids = torch.randint(0, 248320, (tokens,), dtype=torch.int32)
    context = torch.randint(0, 248320, (len(lengths), 2), dtype=torch.int32)
    right = model(ids, starts, context)
    got = model.cuda()(*_device(ids, starts, context))
    assert torch.equal(got.cpu(), right)


def test_ngram_golden():
    model = NgramIds(GOLDEN).cuda()
    args = (
        torch.tensor([11, 12, 13, 99, 15], dtype=torch.int32),
        torch.tensor([0, 5], dtype=torch.int32),
        torch.tensor([[7, 8]], dtype=torch.int32),
    )
    assert model(*_device(*args)).tolist() == [list(row) for row in GOLDEN_IDS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_short_conv_and_its_state(dtype, stride):
    starts, table = _requests([16, 676, 0, 1, 5], stride, [3, 9, 7, 0, 2])
    x = torch.randn(698, 640, dtype=dtype)
    weight = torch.randn(640, 4, dtype=dtype)
    state = torch.randn(12, 640, 9, dtype=dtype)
    initial = torch.tensor([True, False, True, True, True])
    slots = table[:, 0]
    right = short_conv.short_conv_reference(x, weight, state, starts, slots, initial, 3)
    moved = state.clone()
    short_conv.short_conv_state_reference(x, moved, starts, slots, initial, 9)
    dx, dw, ds, dq, dt, di = _device(x, weight, state, starts, table, initial)
    got = torch.ops.capwise.ple_short_conv(dx, dw, ds, dq, dt[:, 0], di, 3)
    torch.ops.capwise.ple_short_conv_state_(dx, ds, dq, dt[:, 0], di, 9)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert torch.allclose(got.cpu().float(), right.float(), rtol=tolerance, atol=tolerance)
    assert torch.equal(ds.cpu(), moved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gate_and_gather(dtype):
    hc, width = 4, 256
    kv = torch.randn(33, hc * width + width, dtype=dtype)
    hidden = torch.randn(33, hc * width, dtype=dtype)
    weights = [torch.randn(hc * width, dtype=dtype) * 0.1 for _ in range(3)]
    key, value = kv[:, : hc * width], kv[:, hc * width :]
    right = ple_gate.gate_reference(key, value, hidden, *weights, 1e-6, hc)
    dkv, dh, *dw = _device(kv, hidden, *weights)
    got = torch.ops.capwise.ple_gate(dkv[:, : hc * width], dkv[:, hc * width :], dh, *dw, 1e-6, hc)
    tolerance = 1e-4 if dtype == torch.float32 else 4e-2
    for a, b in zip(got, right):
        assert torch.allclose(a.cpu().float(), b.float(), rtol=tolerance, atol=tolerance)
    table = torch.randn(5000, 32, dtype=dtype)
    ids = torch.randint(0, 5000, (33, 16))
    assert torch.equal(
        torch.ops.capwise.ple_table_gather(*_device(ids, table)).cpu(), table_gather.table_gather_reference(ids, table)
    )


def test_offsets_past_two_to_the_thirty_first():
    """A state pool whose slot stride puts the slot's element offset past 2^31."""
    slot_stride = 1 << 28
    pool = torch.zeros(12 * slot_stride, dtype=torch.float16, device="cuda")
    state = pool.as_strided((12, 64, 9), (slot_stride, 9, 1))
    starts, table = _requests([7], 1, [11])
    x = torch.randn(7, 64, dtype=torch.float16)
    small = torch.zeros(12, 64, 9, dtype=torch.float16)
    short_conv.short_conv_state_reference(x, small, starts, table[:, 0], torch.tensor([False]), 9)
    dx, dq, dt, di = _device(x, starts, table, torch.tensor([False]))
    torch.ops.capwise.ple_short_conv_state_(dx, state, dq, dt[:, 0], di, 9)
    assert torch.equal(state[11].cpu(), small[11])
