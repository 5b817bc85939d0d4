"""Kernels and steps on a device: times, and ratios to a floor measured in the same run.

    python benchmarks/gpu.py

Kernel times are medians of eager launches (`triton.testing.do_bench`) and, in brackets, of replays of a graph that
holds ten launches, divided by ten: small kernels are bound by the launch. A step is compared with its floor: one graph
of exactly this batch, recorded by hand from the same pieces, with no staging, fills or guards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from timing import host_time

from capwise.backend import CompiledModel, case_options
from capwise.case import Case
from capwise.models import demo_cases
from capwise.models.qwen4_exp import Config
from capwise.models.qwen4_exp.ple import NgramIds
from capwise.ops.samples import Attention, Sizes, sample
from capwise.verify import moved

DEVICE = torch.device("cuda")


def in_graph(run: Callable[[], Any], count: int = 10) -> float:
    """Microseconds of one launch inside a graph."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            run()
    return device_time(graph.replay) / count


def device_time(run: Callable[[], Any]) -> float:
    import triton.testing

    return float(triton.testing.do_bench(run, warmup=50, rep=200, return_mode="median")) * 1e3


def requests(lengths: list[int], stride: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)
    table = torch.zeros(len(lengths), stride, dtype=torch.int32, device=DEVICE)
    table[:, 0] = torch.arange(1, len(lengths) + 1)
    return starts, table[:, 0], torch.ones(len(lengths), dtype=torch.bool, device=DEVICE)


def kernels() -> None:
    config = Config()
    model = NgramIds(config).to(DEVICE)
    print("| kernel | size | eager launch, us | in a graph, us | GB/s in a graph |")
    print("|---|---|---|---|---|")
    for lengths in ([1] * 8, [512] * 16):
        ngrams(model, lengths)
    for tokens in (512, 8192):
        gate(tokens)
    for lengths, stride in (([16, 676], 4), ([512] * 16, 4)):
        conv(lengths, stride)
    for lengths in ([1], [1] * 8, [1] * 64, [4] * 16, [512] * 16, [8192]):
        scan(lengths)
    for tokens in (8, 64, 512, 8192):
        experts(tokens)
        residual(tokens)
    for lengths, context in (([1], 65536), ([1] * 64, 2048), ([1] * 64, 16384), ([4] * 16, 16384), ([2048] * 4, 8192)):
        attention(lengths, context)
    table = torch.randn(1 << 22, 160, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.randint(0, 1 << 22, (8192, 16), device=DEVICE)
    gathered = 8192 * 16 * (160 * 2 * 2 + 8)
    row("table gather", "T=8192", lambda: torch.ops.capwise.ple_table_gather(ids, table), gathered)
    big = torch.empty(1 << 29, dtype=torch.uint8, device=DEVICE)
    other = torch.empty_like(big)
    copied = device_time(lambda: other.copy_(big))
    print(f"| copy | 512 MiB | {copied:.1f} | | {2 * (1 << 29) / copied / 1e3:.0f} |")


def ngrams(model: NgramIds, lengths: list[int]) -> None:
    tokens = sum(lengths)
    starts, _, _ = requests(lengths, 1)
    ids = torch.randint(0, 248320, (tokens,), dtype=torch.int32, device=DEVICE)
    context = torch.randint(0, 248320, (len(lengths), 2), dtype=torch.int32, device=DEVICE)
    row("n-gram ids", f"T={tokens}", lambda: model(ids, starts, context), tokens * 16 * 8)
    find = torch.ops.capwise.ple_predecessors
    before = find(ids, starts, context, model.eos)
    row("predecessors", f"T={tokens}", lambda: find(ids, starts, context, model.eos), tokens * (4 + 2 * 8))
    row("n-gram ids of predecessors", f"T={tokens}", lambda: model.hashed(ids, before), tokens * (4 + 18 * 8))


def gate(tokens: int) -> None:
    hc, width = 4, 2560
    kv = torch.randn(tokens, hc * width + width, device=DEVICE, dtype=torch.bfloat16)
    hidden = torch.randn(tokens, hc * width, device=DEVICE, dtype=torch.bfloat16)
    weights = [torch.randn(hc * width, device=DEVICE, dtype=torch.bfloat16) * 0.1 for _ in range(3)]
    key, value = kv[:, : hc * width], kv[:, hc * width :]
    moved_bytes = 2 * tokens * (4 * hc * width + width)
    row("gate", f"T={tokens}", lambda: torch.ops.capwise.ple_gate(key, value, hidden, *weights, 1e-6, hc), moved_bytes)


def conv(lengths: list[int], stride: int) -> None:
    channels = 10240
    starts, slots, initial = requests(lengths, stride)
    tokens = sum(lengths)
    x = torch.randn(tokens, channels, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.randn(channels, 4, device=DEVICE, dtype=torch.bfloat16)
    state = torch.randn(len(lengths) + 2, channels, 9, device=DEVICE, dtype=torch.bfloat16)
    size = f"T={tokens}, R={len(lengths)}, stride {stride}"
    row(
        "short conv",
        size,
        lambda: torch.ops.capwise.ple_short_conv(x, weight, state, starts, slots, initial, 3),
        4 * tokens * channels,
    )
    row(
        "short conv state",
        size,
        lambda: torch.ops.capwise.ple_short_conv_state_(x, state, starts, slots, initial, 9),
        2 * len(lengths) * channels * 18,
    )


def scan(lengths: list[int]) -> None:
    """The gated delta rule at released sizes; requests of two to four tokens verify drafts."""
    tokens, requests_, columns, heads = sum(lengths), len(lengths), 4, (16, 48)
    spec = 1 < max(lengths) <= columns
    starts, _, initial = requests(lengths, 1)
    table = torch.arange(1, requests_ * columns + 1, dtype=torch.int32, device=DEVICE).view(requests_, columns)
    qkv = torch.randn(tokens, (2 * heads[0] + heads[1]) * 128, device=DEVICE, dtype=torch.bfloat16)
    q, k, v = (part.unflatten(1, (-1, 128)) for part in qkv.split([2048, 2048, 6144], 1))
    g, beta = -torch.rand(tokens, heads[1], device=DEVICE), torch.rand(tokens, heads[1], device=DEVICE)
    state = torch.randn(requests_ * columns + 1, heads[1], 128, 128, device=DEVICE)
    accepted = torch.ones(requests_, dtype=torch.int32, device=DEVICE)
    verify = accepted, torch.full((requests_,), spec, device=DEVICE)
    slot = heads[1] * 128 * 128 * 4
    moved_bytes = requests_ * slot * (1 + (lengths[0] if spec else 1)) + 2 * tokens * (qkv.shape[1] + v[0].numel())
    kind = "verify" if spec else "decode" if max(lengths) == 1 else "prefill"
    call = q, k, v, g, beta, state, starts, table, initial, *verify
    size = f"T={tokens}, R={requests_}"
    row(f"gated delta rule, {kind}", size, lambda: torch.ops.capwise.gdn_scan_(*call), moved_bytes)
    if kind == "prefill" and find_spec("fla") is not None:
        # Not in a graph: the op waits for the device.
        eager = device_time(lambda: torch.ops.capwise.gdn_chunked_(*call))
        print(f"| gated delta rule, {kind}, by flash-linear-attention | {size} | {eager:.1f} | | |")


def experts(tokens: int, number: int = 64, k: int = 10) -> None:
    """Routing and experts; the bytes are those of the weights that any token can reach, and of the rows."""
    hidden, inner = 2560, 640
    u = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16)
    logits = torch.randn(tokens, number, device=DEVICE, dtype=torch.bfloat16)
    gate_up = torch.randn(number, 2 * inner, hidden, device=DEVICE, dtype=torch.bfloat16) / 50
    down = torch.randn(number, hidden, inner, device=DEVICE, dtype=torch.bfloat16) / 25
    row("routing", f"T={tokens}, E={number}", lambda: torch.ops.capwise.moe_route(logits, k), 2 * logits.numel())
    weights, chosen = torch.ops.capwise.moe_route(logits, k)
    moved_bytes = 6 * min(tokens * k, number) * hidden * inner + 4 * tokens * (k + 1) * hidden
    call = u, weights, chosen, gate_up, down
    row("experts", f"T={tokens}, E={number}", lambda: torch.ops.capwise.moe_experts(*call), moved_bytes)


def residual(tokens: int) -> None:
    """Reading and writing four residual streams."""
    hc, width = 4, 2560
    x, n = (torch.randn(tokens, hc * width, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    y, inject = (torch.randn(tokens, m, device=DEVICE, dtype=torch.bfloat16) for m in (width, hc))
    weight, wide = torch.randn(hc * width, device=DEVICE, dtype=torch.bfloat16), 2 * tokens * hc * width
    ops, size = torch.ops.capwise, f"T={tokens}"
    row("streams, norm", size, lambda: ops.hc_norm(x, weight, 1e-6, hc), 2 * wide)
    row("streams, mix", size, lambda: ops.hc_mix(n, x, hc), 2 * wide + wide // hc)
    row("streams, write", size, lambda: ops.hc_write(x, y, inject), 2 * wide + wide // hc)


def attention(lengths: list[int], context: int) -> None:
    """The attention ops at released sizes, requests anywhere up to `context` tokens long."""
    sizes = Sizes(slots=80, attention=replace(Attention(pages=1), table=context // Attention.page))
    wide, tokens = sizes.attention, sum(lengths)
    where = sample("slot_mapping", lengths, sizes)["logical_pos"].long() + 1
    visible, key = where // wide.ratio, 2 * wide.index_width
    seen = visible.clamp(max=wide.chosen) * wide.ratio + where % wide.ratio
    scored = int(visible.sum())
    moved_bytes = {
        "mrope_kv_write_": 4 * tokens * (wide.query_heads + 2 * wide.heads) * wide.width,
        "qsa_compress_": tokens * key * (1 + 1 / wide.ratio),
        "qsa_commit_": 2 * tokens * key,
        "qsa_scores": scored * key + 4 * tokens * context // wide.ratio,
        "top_blocks": 4 * (scored + tokens * wide.chosen),
        "sparse_attention": 4 * int(seen.sum()) * wide.heads * wide.width + 4 * tokens * wide.query_heads * wide.width,
    }
    for name, size in moved_bytes.items():
        call = {n: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for n, v in sample(name, lengths, sizes).items()}
        if name == "top_blocks":
            call["visible"] = visible.int().to(DEVICE)
        op = getattr(torch.ops.capwise, name)
        extents = f"T={tokens}, R={len(lengths)}, up to {context}"
        row(name, extents, lambda op=op, call=call: op(**call), int(size))


def row(name: str, size: str, run: Callable[[], Any], moved_bytes: int) -> None:
    eager, graphed = device_time(run), in_graph(run)
    print(f"| {name} | {size} | {eager:.1f} | {graphed:.1f} | {moved_bytes / graphed / 1e3:.0f} |")


def step(case: Case, at: int) -> None:
    print(f"| {case.name}, step {at} ", end="")
    batch = {k: moved(v, DEVICE) for k, v in case.batches[at].items()}
    rows = []
    for repair in ("auto", "split"):
        compiled = CompiledModel(
            copy.deepcopy(case.model).to(DEVICE), case_options(case, repair=repair, lower="eager", capture="graph")
        )
        for _ in range(3):
            compiled(**batch)
        run = lambda c=compiled: c(**batch)
        rows.append((device_time(run), host_time(run)))
    model = copy.deepcopy(case.model).to(DEVICE)
    with torch.no_grad():
        model(**batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(**batch)
    floor = device_time(graph.replay), host_time(graph.replay)
    eager = device_time(lambda: model(**batch)), host_time(lambda: model(**batch))
    cells = [floor, *rows, eager]
    print("".join(f"| {d:.1f} / {h:.1f} " for d, h in cells) + f"| {rows[0][0] / floor[0]:.2f} |")


def main() -> None:
    import triton

    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}\n")
    kernels()
    print("\nstep time / host time a call, us")
    print("| step | floor | auto | split | eager | auto / floor |\n|---|---|---|---|---|---|")
    step(demo_cases.s1(), 1)
    step(demo_cases.s2(4, "ours"), 0)
    step(demo_cases.s2(4, "ours"), 1)


if __name__ == "__main__":
    main()
