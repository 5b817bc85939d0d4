"""Pieces lowered by Inductor give what their graph gives, state included, at every bucket and with few compiles."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from capwise.lower.inductor import LoweringError, lower_piece

BUCKETS = [{"T": t, "R": r} for t, r in ((16, 8), (8, 5), (4, 4), (2, 2), (32, 8))]
ONE = {"T": 1, "R": 1}


@torch.library.custom_op("capwise_test_lower::scale_into", mutates_args=("out",))
def scale_into(x: torch.Tensor, out: torch.Tensor, k: float) -> None:
    out.copy_(x * k)


@scale_into.register_fake
def _(x, out, k):
    return None


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w1, self.w2 = nn.Linear(16, 32), nn.Linear(16, 16)
        self.register_buffer("state", torch.randn(12, 16))
        self.register_buffer("buf", torch.zeros(32, 16))


class MLP(Base):
    def forward(self, x, qsl, slots):
        a, b = self.w1(F.rms_norm(x, (16,))).chunk(2, -1)
        return x + self.w2(F.silu(a) * b)


class Gather(Base):
    def forward(self, x, qsl, slots):
        t = torch.arange(x.shape[0], device=x.device)
        owner = (torch.searchsorted(qsl, t, right=True) - 1).clamp(0, slots.shape[0] - 1)
        return x + self.state[slots[owner].long()], torch.where((owner > 0)[:, None], x, 0.0)


class Slots(Base):
    """State only: no output at all."""

    def forward(self, x, qsl, slots):
        last = x[(qsl[1:] - 1).long()]
        self.state[slots.long()] = self.state[slots.long()] * 0.5 + last


class Buffers(Base):
    """Writes rows of buffers by copy_ and by a custom op, and returns a view of one."""

    def forward(self, x, qsl, slots):
        t = x.shape[0]
        self.buf[:t].copy_(x)
        scale_into(x[:, :4], self.buf[:t, 4:8], 2.0)
        return self.buf[:t] * 2, self.buf[:t, 2:], qsl


class Attention(Base):
    def forward(self, x, qsl, slots):
        t = x.shape[0]
        q, v = (y.reshape(t, 2, 8) for y in self.w1(x).chunk(2, -1))
        i = torch.arange(t, device=x.device)
        own = torch.searchsorted(qsl[1:].contiguous(), i, right=True)
        mask = (own[:, None] == own[None]) & (i[:, None] >= i[None])
        a = torch.einsum("thd,shd->hts", q, q).masked_fill(~mask, float("-inf")).softmax(-1)
        return torch.einsum("hts,shd->thd", a, v).reshape(t, 16)


class Conv(Base):
    def forward(self, x, qsl, slots):
        y = F.pad(x, (0, 0, 3, 0)).t()[None]
        return F.conv1d(y, self.state[:4].t()[:, None], groups=16)[0].t() * torch.tensor(
            [1.0, 2.0] * 8, device=x.device
        )


class Shared(Base):
    """Outputs that share memory with each other, one written after the other was made."""

    def forward(self, x, qsl, slots):
        a, b = self.w1(x).chunk(2, -1)
        b.mul_(2)
        return a, b[:, :8], (x + 1)[:, 3:9], x.shape[0]


@triton.jit
def double_rows(x, out, stride_x, stride_out, COLUMNS: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, COLUMNS)
    tl.store(out + r * stride_out + c, tl.load(x + r * stride_x + c) * 2)


class Kernel(Base):
    """A Triton kernel among aten ops; its grid is symbolic."""

    def forward(self, x, qsl, slots):
        y = x + 1
        double_rows[(x.shape[0],)](y, self.buf, y.stride(0), self.buf.stride(0), COLUMNS=16)
        return self.buf[: x.shape[0]] + y


MODELS = [(MLP, 2), (Gather, 2), (Slots, 2), (Buffers, 3), (Attention, 2), (Conv, 1)]


@pytest.mark.parametrize("model, compiles", MODELS)
def test_lowered_piece_equals_its_graph(trace, model, compiles):
    piece = trace(model())
    buckets = [*BUCKETS, ONE] if compiles > 1 else BUCKETS
    low = lower_piece(piece.gm, piece.symbols, BUCKETS[0], buckets)
    assert low.compiles == 1
    for bucket in buckets:
        piece.compare(low, **bucket)
    assert low.compiles <= compiles
    piece.compare(low, 7, 3)  # not a bucket: no compile either
    assert low.compiles <= compiles


@pytest.mark.gpu
@pytest.mark.parametrize("model, compiles", [*MODELS, (Kernel, 3)])
def test_on_a_gpu_and_in_a_graph(trace, model, compiles):
    piece = trace(model().cuda())
    low = lower_piece(piece.gm, piece.symbols, BUCKETS[0], [*BUCKETS, ONE])
    for bucket in BUCKETS:
        piece.compare(low, **bucket)
    assert low.compiles <= compiles
    at, new = piece.args(16, 8, piece.model), piece.args(16, 8, piece.model, seed=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = low(*at)
    for a, b in zip(at, new):
        if isinstance(a, torch.Tensor):
            a.detach().copy_(b)
    state = {n: b.clone() for n, b in piece.model.named_buffers()}
    graph.replay()
    after = {n: b.clone() for n, b in piece.model.named_buffers()}
    for name, buffer in piece.model.named_buffers():
        buffer.detach().copy_(state[name])
    with torch.no_grad():
        torch.testing.assert_close(got, tuple(piece.gm(*at)), atol=1e-5, rtol=1e-5)
    for name, buffer in piece.model.named_buffers():
        torch.testing.assert_close(after[name], buffer, atol=1e-5, rtol=1e-5)


def test_outputs_that_share_memory_still_do(trace):
    piece = trace(Shared())
    low = lower_piece(piece.gm, piece.symbols, BUCKETS[1], BUCKETS)
    piece.compare(low, 8, 5)
    a, b, c, t = low(*piece.args(8, 5, piece.model))
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != c.untyped_storage().data_ptr()
    assert t == 8
    assert b.storage_offset() - a.storage_offset() == 16


def _hand_traced(run, make):
    """The graph of `run` on the fakes that `make(T)` gives, T unbacked; and the symbol."""
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        t = env.create_unbacked_symint()
        torch._check(t >= 2)
        torch._check(t <= 32)
        env.pending_fresh_unbacked_symbols.clear()
        return make_fx(run, tracing_mode="real")(*make(t)), {"T": t.node.expr}


def test_an_argument_that_views_another_sees_its_writes():
    def run(rows, buf):
        rows.add_(1)
        return buf.sum(0), rows * 1

    def make(t):
        buf = torch.zeros(32, 4)
        return buf[:t], buf

    gm, symbols = _hand_traced(run, make)
    low = lower_piece(gm, symbols, {"T": 8}, [{"T": 8}])
    a, b = torch.zeros(32, 4), torch.zeros(32, 4)
    for got, want in zip(low(a[:8], a), run(b[:8], b)):
        assert torch.equal(got, want)
    assert torch.equal(a, b)


def test_overlapping_arguments_of_a_larger_storage():
    def run(head, tail):
        tail.copy_(head * 2)
        return head + 1

    def make(t):
        buf = torch.zeros(64, 4)
        return buf[1 : t + 1], buf[2 : t + 2]

    gm, symbols = _hand_traced(run, make)
    low = lower_piece(gm, symbols, {"T": 8}, [{"T": 8}])
    a = torch.arange(160.0).view(40, 4)
    b = a.clone()
    got, want = low(a[3:11], a[4:12]), run(b[3:11], b[4:12])  # elsewhere in its storage than the graph's
    assert torch.equal(got[0], want) and torch.equal(a, b)


def test_compiles_are_shared_and_lazy(trace):
    piece = trace(MLP())
    low = lower_piece(piece.gm, piece.symbols, BUCKETS[0], [*BUCKETS, ONE])
    assert all(low.covers(b) for b in BUCKETS) and not low.covers(ONE)
    assert low.assumptions(BUCKETS[1]) == [] and "Ne" in low.assumptions(ONE)[0]
    bounded = lower_piece(piece.gm, piece.symbols, BUCKETS[0], BUCKETS, max_compiles=1)
    with pytest.raises(LoweringError, match="more than 1 compiles"):
        bounded.prepare([ONE])
    piece.compare(bounded, 8, 5)


def test_lowering_leaves_the_process_as_it_was(trace):
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    piece = trace(MLP())
    modules = (dynamo, functorch, inductor)
    before = [m.get_config_copy() for m in modules], torch.get_rng_state(), random.getstate()
    code = piece.gm.code
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = lower_piece(piece.gm, piece.symbols, BUCKETS[0], BUCKETS)
    assert [m.get_config_copy() for m in modules] == before[0]
    assert torch.equal(torch.get_rng_state(), before[1]) and random.getstate() == before[2]
    assert piece.gm.code == code and torch.is_grad_enabled()
    piece.compare(low, 4, 4)


def test_errors_name_the_node_and_the_reason(trace):
    piece = trace(MLP())
    with pytest.raises(LoweringError, match="which has no name") as caught:
        lower_piece(piece.gm, {}, BUCKETS[0], BUCKETS)
    assert caught.value.node is not None
    with pytest.raises(LoweringError, match="has no extent for T"):
        lower_piece(piece.gm, piece.symbols, {"R": 2}, [])

    gm, symbols = _hand_traced(lambda x: x + 1, lambda t: (torch.zeros(t, 4),))
    add = next(n for n in gm.graph.nodes if n.op == "call_function")
    add.target, add.args = torch.ops.aten.view.default, (add.args[0], [3, 5])
    gm.recompile()
    with pytest.raises(LoweringError) as caught:
        lower_piece(gm, symbols, {"T": 8}, [{"T": 8}])
    assert caught.value.node == add.name and "shape" in caught.value.reason
