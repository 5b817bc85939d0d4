"""Kernels natively on a device against their references on the CPU."""

from dataclasses import replace

import pytest
import torch

from capwise.models.demo_cases import GOLDEN, GOLDEN_IDS
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.ple import NgramIds
from capwise.ops import ple_gate, short_conv, table_gather
from capwise.ops.contract import declared
from capwise.ops.samples import Attention, Sizes, sample

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
    args = _device(ids, starts, context)
    got = model.cuda()(*args)
    assert torch.equal(got.cpu(), right)
    before = torch.ops.capwise.ple_predecessors(*args, model.eos)
    assert torch.equal(model.hashed(args[0], before), got)


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


# --------------------------------------------------------------------------------------- attention and aligned slots
SAMPLED = (
    "ple_predecessors", "ple_ngram_hash", "token_requests", "slot_mapping", "mrope", "mrope_kv_write_",
    "qsa_compress_", "qsa_commit_", "qsa_scores", "top_blocks", "sparse_attention", "logits_rows",
    "align_state_shift_", "align_state_copy_",
)  # fmt: skip
HEADS = Attention(chosen=64, table=40, pages=1)  # released widths, short tables
STEPS = {"mixed": (1, 17, 0, 5, 1, 1, 30), "one": (1,), "decode": (1,) * 9, "many": (70, 0, 90)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_ops(name, step, dtype):
    """What the op returns and the states it leaves; past a few tokens attention is not split."""
    attention = replace(HEADS, chosen=6) if step == "many" else HEADS
    sizes = Sizes(hidden=320, state=(2, 16, 8), dtype=dtype, filled=True, attention=attention)
    call = sample(name, STEPS[step], sizes, 1)
    op = getattr(torch.ops.capwise, name)
    on_device = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    if "q" in call:
        on_device["q"] = torch.cat([on_device["q"]] * 2, -1)[..., : call["q"].shape[-1]]
    right, got = op(**call), op(**on_device)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    pairs = [(call[n], on_device[n]) for n in declared(op.default).state]
    if right is not None:
        pairs += zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (right, got)))
    for a, b in pairs:
        exact = not a.dtype.is_floating_point or name.startswith(("align", "logits", "qsa_commit"))
        within = 0.0 if exact else tolerance
        torch.testing.assert_close(b.cpu(), a, rtol=within, atol=within, equal_nan=True)


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_ops_recorded_and_replayed(name):
    """A replay follows what stands in the buffers then: lengths, positions, slots, pages, choices."""
    sizes = Sizes(hidden=320, state=(2, 16, 8), dtype=torch.bfloat16, filled=True, attention=HEADS)
    calls = [sample(name, lengths, sizes, seed) for seed, lengths in enumerate(((40, 2, 0, 6), (1, 3, 43, 1)))]
    held, then = ({n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in c.items()} for c in calls)
    op, states = getattr(torch.ops.capwise, name), declared(getattr(torch.ops.capwise, name).default).state
    op(**held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = op(**held)
    for argument, value in then.items():
        if isinstance(value, torch.Tensor):
            held[argument].copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    right = op(**then)
    pairs = [(held[n], then[n]) for n in states]
    if right is not None:
        pairs += zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (got, right)))
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in pairs)


@pytest.mark.parametrize("width", [300, 65536])
def test_the_choice_of_blocks_is_the_same_everywhere(width):
    """Ties at every cut, over many tiles."""
    scores = torch.randint(0, 40, (64, width)).float() / 8
    visible = torch.randint(0, width + 1, (64,), dtype=torch.int32)
    right = torch.ops.capwise.top_blocks(scores, 512, visible)
    assert torch.equal(torch.ops.capwise.top_blocks(scores.cuda(), 512, visible.cuda()).cpu(), right)
    fine = torch.randn(64, width)
    assert torch.equal(torch.ops.capwise.top_blocks(fine.cuda(), 512).cpu(), torch.ops.capwise.top_blocks(fine, 512))


def test_a_row_of_attention_does_not_depend_on_how_many_there_are():
    sizes = Sizes(dtype=torch.bfloat16, filled=True, attention=HEADS)
    call = sample("sparse_attention", (100,), sizes)
    call = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    whole = torch.ops.capwise.sparse_attention(**call)
    for tokens in (1, 7, 64):
        assert torch.equal(torch.ops.capwise.sparse_attention(**_first(call, tokens)), whole[:tokens])


def _first(call, tokens):
    """The call cut to its first tokens."""
    by_token = ("q", "blocks", "token_to_req", "logical_pos")
    return {n: v[:tokens] if n in by_token else v for n, v in call.items()}


def test_pages_past_two_to_the_thirty_first():
    """Keys and values are written to, and read from, a page whose element offset is past 2^31."""
    pool = torch.zeros(12 << 28, dtype=torch.float16, device="cuda")
    cache = pool.as_strided((12, 8, 2, 2, 64), (1 << 28, 256, 128, 64, 1))
    near = torch.zeros(12, 8, 2, 2, 64, dtype=torch.float16)
    q, k, v = torch.randn(8, 4, 64).half(), torch.randn(8, 2, 64).half(), torch.randn(8, 2, 64).half()
    positions, slots = torch.randint(0, 99, (3, 8)), torch.arange(88, 96)
    frequencies = 1e7 ** (-torch.arange(32) / 32)
    table, blocks = torch.full((1, 1), 11, dtype=torch.int32), torch.tensor([[0, 1]] * 8, dtype=torch.int32)
    request, where = torch.zeros(8, dtype=torch.int32), torch.arange(8, dtype=torch.int32)

    def run(cache, *tensors):
        q, k, v, positions, frequencies, slots, table, blocks, request, where = tensors
        ops = torch.ops.capwise
        q = ops.mrope_kv_write_(q, k, v, positions, frequencies, slots, cache, [11, 11, 10])
        return ops.sparse_attention(q, cache, blocks, request, where, table, 4, 0.125)

    tensors = (q, k, v, positions, frequencies, slots, table, blocks, request, where)
    right, got = run(near, *tensors), run(cache, *_device(*tensors))
    torch.testing.assert_close(cache[11].cpu(), near[11], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(got.cpu(), right, rtol=1e-2, atol=1e-2)


def test_a_graph_replays_positions_of_fewer_tokens():
    """Captured at 8 tokens of 3 requests, replayed with 3 tokens of one: the others' rows write nothing."""
    ops, frequencies = torch.ops.capwise, (1e7 ** (-torch.arange(32) / 32)).cuda()
    x, positions = torch.randn(8, 8, 64).cuda(), torch.randint(0, 500, (3, 8)).cuda()
    starts = torch.tensor([0, 2, 7, 8], dtype=torch.int32).cuda()
    lens = torch.tensor([2, 5, 1], dtype=torch.int32).cuda()
    table = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32).cuda()
    cache = torch.zeros(7, 4, 2, 2, 64).cuda()

    def step():
        row, where = ops.token_requests(starts, lens, x)
        slots = ops.slot_mapping(row, where, table, 4)
        q, k, v = x[:, :4], x[:, 4:6], x[:, 6:]
        return ops.mrope_kv_write_(q, k, v, positions, frequencies, slots, cache, [11, 11, 10])

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    before = cache.zero_().clone()
    positions[:, :3] = torch.randint(0, 500, (3, 3)).cuda()
    starts.copy_(torch.tensor([0, 3, 3, 3]))
    lens.copy_(torch.tensor([6, 9, 9]))
    graph.replay()
    right = ops.mrope(x[:3, :4].contiguous(), positions[:, :3].contiguous(), frequencies, [11, 11, 10])
    keys = ops.mrope(x[:3, 4:6].contiguous(), positions[:, :3].contiguous(), frequencies, [11, 11, 10])
    assert torch.equal(out[:3], right)
    for t, (page, place) in enumerate(((1, 3), (2, 0), (2, 1))):
        before[page, place] = torch.stack([keys[t], x[t, 6:]])
    assert torch.equal(cache, before)
