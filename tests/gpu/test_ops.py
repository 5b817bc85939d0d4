"""Kernels natively on a device against their references on the CPU."""

from dataclasses import replace

import pytest
import torch

from capwise.models.demo_cases import GOLDEN, GOLDEN_IDS
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.ple import NgramIds
from capwise.ops import ple_gate, short_conv, table_gather
from capwise.ops.samples import Sizes, sample

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


# ------------------------------------------------------------------------- gated delta net, residual streams, experts
RECURRENT = (
    "ple_short_conv", "ple_short_conv_state_", "gdn_conv", "gdn_conv_state_", "gdn_scan_", "hc_norm", "hc_mix",
    "hc_write", "moe_route", "moe_experts", "ple_table_gather_fp8", "w8a8_linear", "ple_gate",
)  # fmt: skip
# Sizes at which tiles are as on the released model, with few heads and experts: the references run on the CPU.
MIDDLE = Sizes(
    hidden=640, streams=4, head_width=160, slots=64, filled=True, key_heads=2, value_heads=6, experts=24, top_k=4,
    inner=160,
)  # fmt: skip
MIXES = {
    "decode": (1,) * 17,
    "verify": (4, 1, 3, 0, 2, 4, 1),
    "prefill": (200, 0, 65, 64, 17, 1, 3),
}


def _results(name, call):
    call = {n: v.clone() if n == "state" else v for n, v in call.items()}
    out = getattr(torch.ops.capwise, name)(**call)
    leaves = out if isinstance(out, tuple) else () if out is None else (out,)
    return [*leaves, *(call[n] for n in ("state",) if n in call)]


def _moved(call):
    """The call on the device. Views stay views: q, k and v of the scan are parts of one row."""
    rows = call["q"]._base if "q" in call else None
    if rows is None:
        return {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    whole = rows.cuda()
    parts = {n: whole.as_strided(v.shape, v.stride(), v.storage_offset()) for n, v in call.items() if n in "qkv"}
    return {n: parts.get(n, v.cuda() if isinstance(v, torch.Tensor) else v) for n, v in call.items()}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_residual_and_expert_ops(name, dtype, mix):
    call = sample(name, MIXES[mix], replace(MIDDLE, dtype=dtype), seed=5)
    if name == "gdn_scan_":
        call["g"] *= 0.2
    if name == "moe_route":
        call["logits"] *= 4
    right, got = _results(name, call), _results(name, _moved(call))
    for a, b in zip(got, right, strict=True):
        a, b = a.cpu().float(), b.float()
        size = b.nan_to_num().abs().amax()
        within = 3e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(a, b, rtol=within, atol=float(within * size), equal_nan=True)


@pytest.mark.parametrize("name", RECURRENT)
def test_recorded_and_replayed(name):
    """A recording holds every launch, and a replay follows what stands in the buffers then: lengths, slots, phases."""
    sizes = replace(MIDDLE, dtype=torch.bfloat16)
    first, then = (sample(name, lengths, sizes, seed=6) for lengths in ((90, 2, 1, 3), (1, 3, 4, 88)))
    if name == "ple_table_gather_fp8":
        then["table"] = first["table"]
    buffers = _moved(first)
    _results(name, buffers)
    held = {n: v.clone() if n == "state" else v for n, v in buffers.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = getattr(torch.ops.capwise, name)(**held)
    for key, value in then.items():
        if isinstance(value, torch.Tensor):
            held[key].copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    want = _results(name, _moved(then))
    leaves = out if isinstance(out, tuple) else () if out is None else (out,)
    for a, b in zip([*leaves, *(held[n] for n in ("state",) if n in held)], want, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def test_a_state_past_two_to_the_thirty_first():
    """A pool of recurrent states whose slots are 2^28 elements apart; both ways of the scan."""
    stride, heads, width = 1 << 28, 2, 16
    pool = torch.zeros(11 * stride + heads * width * width, device="cuda")
    far = pool.as_strided((12, heads, width, width), (stride, width * width, width, 1))
    for lengths in ((3,), (70,)):
        sizes = replace(MIDDLE, key_heads=1, value_heads=heads, key_width=width, value_width=width)
        call = sample("gdn_scan_", lengths, replace(sizes, dtype=torch.float32), seed=7)
        call["state_table"][:] = 11
        call["state"] = call["state"][:12].clone()
        far.copy_(call["state"])
        moved = {**_moved(call), "state": far}
        got = torch.ops.capwise.gdn_scan_(**moved)
        right, state = _results("gdn_scan_", call)
        torch.testing.assert_close(got.cpu(), right, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(far[11].cpu(), state[11], rtol=1e-4, atol=1e-4)
