"""Compile time against the size of the graph: the passes over a decoder at 6, 12, 24 and 48 layers.

    python benchmarks/scale.py [--layers 6 12 24 48] [--profile FILE]

A layer is a gated delta net block or attention block in plain ATen, with the normalisation of hyper-connections and a
mixture of experts, about 340 nodes. Tracing is timed apart. Prints Markdown.
"""

from __future__ import annotations

import argparse
import cProfile
import time

import torch
from torch import nn

import capwise.ops  # noqa: F401  registers the ops
from capwise.backend import trace_case
from capwise.case import Case

STREAMS, HIDDEN, HEADS, EXPERTS, TOP = 4, 16, 4, 8, 2


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + self.weight.float())).to(x.dtype)


class Read(nn.Module):
    """Hyper-connection read."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm(HIDDEN)
        self.down = nn.Linear(STREAMS * HIDDEN, 8, bias=False)
        self.up = nn.Linear(8, STREAMS * HIDDEN, bias=False)
        self.inject = nn.Linear(STREAMS * HIDDEN, STREAMS, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = self.norm(x.unflatten(1, (STREAMS, HIDDEN))).flatten(1)
        mix = torch.sigmoid(self.up(torch.nn.functional.silu(self.down(n) / STREAMS)))
        u = (mix * n).unflatten(1, (STREAMS, HIDDEN)).mean(1)
        return u, 2 * torch.sigmoid(self.inject(n) / STREAMS)


class Mixer(nn.Module):
    """Token mixing: projections, rotary halves, gates and the short convolution with its state."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.project = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.norm_q, self.norm_k = Norm(HIDDEN // HEADS), Norm(HIDDEN // HEADS)
        self.weight = nn.Parameter(torch.randn(HIDDEN, 4), requires_grad=False)
        self.register_buffer("conv_state", torch.randn(slots, HIDDEN, 3))
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, u, positions, query_start_loc, slots, has_initial):  # type: ignore[no-untyped-def]
        q, k, v, gate = self.project(u).chunk(4, dim=-1)
        q, k = self.norm_q(q.unflatten(-1, (HEADS, -1))), self.norm_k(k.unflatten(-1, (HEADS, -1)))
        half = HIDDEN // HEADS // 2
        for axis in range(3):
            angle = positions[axis, :, None, None].float() * torch.exp(-torch.arange(half, device=u.device).float())
            cos, sin = angle.cos().to(u.dtype), angle.sin().to(u.dtype)
            q = torch.cat([q[..., :half] * cos - q[..., half:] * sin, q[..., half:] * cos + q[..., :half] * sin], -1)
            k = torch.cat([k[..., :half] * cos - k[..., half:] * sin, k[..., half:] * cos + k[..., :half] * sin], -1)
        y = torch.ops.capwise.ple_short_conv(
            (q * k).flatten(1), self.weight, self.conv_state, query_start_loc, slots, has_initial, 1
        )
        torch.ops.capwise.ple_short_conv_state_(
            (q * k).flatten(1), self.conv_state, query_start_loc, slots, has_initial, 3
        )
        return self.out((y + v) * torch.sigmoid(gate))


class Experts(nn.Module):
    """Every expert on every token, weighted: row-local, and as many nodes as a routed one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.ModuleList(nn.Linear(HIDDEN, 2 * HIDDEN, bias=False) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(EXPERTS))

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        p = self.router(u).float().softmax(-1)
        top, index = p.topk(TOP, dim=-1)
        weight = torch.zeros_like(p).scatter(1, index, top / top.sum(-1, keepdim=True)).to(u.dtype)
        total = torch.zeros_like(u)
        for e in range(EXPERTS):
            gate, value = self.up[e](u).chunk(2, dim=-1)
            total = total + weight[:, e, None] * self.down[e](torch.nn.functional.silu(gate) * value)
        return total


class Decoder(nn.Module):
    def __init__(self, layers: int, slots: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, HIDDEN)
        self.reads = nn.ModuleList(Read() for _ in range(2 * layers))
        self.mixers = nn.ModuleList(Mixer(slots) for _ in range(layers))
        self.experts = nn.ModuleList(Experts() for _ in range(layers))

    def forward(self, input_ids, positions, query_start_loc, state_table, has_initial):  # type: ignore[no-untyped-def]
        x = self.embed(input_ids).repeat(1, STREAMS)
        for layer, (mixer, experts) in enumerate(zip(self.mixers, self.experts, strict=True)):
            for read, block in ((self.reads[2 * layer], mixer), (self.reads[2 * layer + 1], experts)):
                u, inject = read(x)
                extra = (positions, query_start_loc, state_table[:, 0], has_initial) if block is mixer else ()
                y = block(u, *extra)
                x = x + (inject[:, :, None] * y[:, None, :]).flatten(1)
        return x


def case(layers: int) -> Case:
    def batch(lengths: list[int]) -> dict[str, torch.Tensor]:
        tokens, requests = sum(lengths), len(lengths)
        return {
            "input_ids": torch.randint(0, 97, (tokens,), dtype=torch.int32),
            "positions": torch.randint(0, 50, (3, tokens)),
            "query_start_loc": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
            "state_table": torch.arange(1, requests + 1, dtype=torch.int32)[:, None].repeat(1, 2),
            "has_initial": torch.ones(requests, dtype=torch.bool),
        }

    return Case(
        model=Decoder(layers).eval().requires_grad_(False),
        batches=[batch([5, 3]), batch([2, 1, 1])],
        inputs={
            "input_ids": ("T",),
            "positions": (3, "T"),
            "query_start_loc": ("R+1",),
            "state_table": ("R", 2),
            "has_initial": ("R",),
        },
        capacity={"T": 64, "R": 8},
        name=f"decoder of {layers} layers",
    )


def measure(layers: int, profile: str | None) -> tuple[int, float, dict[str, float]]:
    """Nodes, seconds of everything but the passes, seconds of each pass."""
    profiler = cProfile.Profile() if profile else None
    start = time.perf_counter()
    if profiler:
        profiler.enable()
    program = trace_case(case(layers)).programs[0]
    if profiler:
        profiler.disable()
        profiler.dump_stats(profile)
    whole = time.perf_counter() - start
    passes: dict[str, float] = {}
    for name, seconds in program.report.timings:
        passes[name] = passes.get(name, 0.0) + seconds
    return sum(len(step.module.graph.nodes) for step in program.steps), whole - sum(passes.values()), passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 12, 24, 48])
    parser.add_argument("--profile")
    options = parser.parse_args()
    measure(1, None)  # warm
    print(
        "| layers | nodes | trace (s) | passes (s) | ms a node | ratio | dearest passes |\n"
        "|---|---|---|---|---|---|---|"
    )
    before = None
    for layers in options.layers:
        nodes, trace, passes = measure(layers, options.profile)
        total = sum(passes.values())
        dearest = ", ".join(f"{n} {s:.2f}" for n, s in sorted(passes.items(), key=lambda p: -p[1])[:4])
        ratio = f"{total / before:.2f}" if before else ""
        print(
            f"| {layers} | {nodes} | {trace:.1f} | {total:.2f} | {total / nodes * 1e3:.2f} | {ratio} | {dearest} |",
            flush=True,
        )
        before = total


if __name__ == "__main__":
    main()
