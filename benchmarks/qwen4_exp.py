"""The whole decoder: against transformers on a CPU, and as recorded graphs on a device.

    python benchmarks/qwen4_exp.py [--tokens 2000]            logits against transformers over random schedules
    python benchmarks/qwen4_exp.py --device cuda --part check  every step of a mixed history against eager, in float32
    python benchmarks/qwen4_exp.py --device cuda --part time   step and host time, in bfloat16
    python benchmarks/qwen4_exp.py --device cuda --part host   step time against the floor, and where host time goes
    python benchmarks/qwen4_exp.py --device cuda --part ranks  two GPUs: table and head split, against the whole model

The device model has released layer sizes, 12 layers and 64 experts, and an n-gram table that fits. The floor is one
graph of exactly the batch that is timed, recorded by hand around the same lowered pieces, with no staging, fills or
guards.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from timing import host_parts, host_time, print_differences, print_parts, step_time

import capwise
from capwise.models.qwen4_exp import Config, Decoder, Request, build_batch, input_axes, oracle
from capwise.models.qwen4_exp.parallel import agree, run_ranks, shard_
from capwise.models.qwen4_exp.pool import Pool

PAGE, MAX_BLOCKS, REQUESTS = 16, 128, 64
BUCKETS = (8, 64, 512)
Batch = dict[str, torch.Tensor]


# ------------------------------------------------------------------------------------------------------------- oracle
def oracle_table(tokens: int) -> None:
    """One row a schedule until `tokens` tokens were compared."""
    torch.set_num_threads(1)
    config = oracle.TINY
    theirs = oracle.transformers_model(config)
    print("| schedule | steps | tokens | selected rows | worst difference | largest logit | chunks |")
    print("|---|---|---|---|---|---|---|")
    total, worst, seed = 0, 0.0, 0
    while total < tokens:
        texts = oracle.random_texts(config, 8, 60, seed)
        model = oracle.serving_model(config, theirs, seed)
        steps = oracle.schedule(config, texts, seed)
        found = oracle.compare(model, oracle.head_of(model), steps, oracle.whole_logits(theirs, texts))
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(found.kinds.items()))
        print(
            f"| {seed} | {found.steps} | {found.tokens} | {found.selected} | {found.worst:.2e} "
            f"| {found.largest:.2f} | {kinds} |"
        )
        total, worst, seed = total + found.tokens, max(worst, found.worst), seed + 1
    print(f"\n{total} tokens in {seed} schedules, worst difference {worst:.2e}")


# ------------------------------------------------------------------------------------------------------------- device
def sizes(layers: int, experts: int) -> Config:
    """Released layer sizes; what does not fit is smaller: layers, experts, the n-gram table."""
    return Config(num_hidden_layers=layers, num_experts=experts, ngram_vocab_size_base=200_000, eos_token_id=248044)


def tiny() -> Config:
    return Config.tiny(num_hidden_layers=4)


def make(config: Config, num_spec: int, dtype: torch.dtype, device: str) -> Decoder:
    torch.manual_seed(0)
    blocks = REQUESTS * MAX_BLOCKS + 1
    with torch.device(device):
        model = Decoder(config, REQUESTS * (1 + num_spec) + 1, blocks, PAGE, num_spec, dtype)
    model.fill_state_(torch.Generator(device).manual_seed(0))
    return model


def twin(model: Decoder) -> Decoder:
    """The same weights, state of its own."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


class Traffic:
    """Steps of any size: decodes, verify chunks, and prompt chunks that fill the rest; contexts of some hundred
    tokens, which the noise in the pools stands for."""

    def __init__(self, config: Config, num_spec: int, device: str, seed: int = 0) -> None:
        self.config, self.num_spec, self.device = config, num_spec, device
        self.random = random.Random(seed)
        self.tokens = [self.random.randrange(config.vocab_size) for _ in range(PAGE * MAX_BLOCKS)]

    def batch(self, tokens: int, most: int = 40) -> Batch:
        draw = self.random
        pool = Pool(REQUESTS * MAX_BLOCKS + 1, REQUESTS * (1 + self.num_spec) + 1, PAGE, self.num_spec, draw)
        rows: list[Request] = []
        left = tokens
        while left:
            kind = draw.choice(("decode", "decode", "verify", "prefill", "extend"))
            last = len(rows) == most - 1
            if last or left > 64 and kind in ("prefill", "extend"):
                length = left if last else draw.randint(1, left // 2)
            else:
                length = min(left, {"decode": 1, "verify": draw.randint(1, 1 + self.num_spec)}.get(kind, 4))
            verify = kind == "verify" and length <= 1 + self.num_spec
            room = PAGE * MAX_BLOCKS - length
            computed = 0 if kind == "prefill" and not verify else draw.randint(1, max(1, min(room, 900)))
            pool.reserve(len(rows), computed + length)
            history = self.tokens[: computed + length]
            slots, blocks = pool.slots(len(rows)), pool.blocks(len(rows))
            accepted = draw.randint(1, 1 + self.num_spec) if verify else 1
            rows.append(Request(history, computed, length, slots, blocks, verify, accepted))
            left -= length
        draw.shuffle(rows)
        made = build_batch(rows, self.config, self.num_spec, page_size=PAGE, max_blocks=MAX_BLOCKS)
        return {name: value.to(self.device) for name, value in made.items()}


def compiled(model: Decoder, num_spec: int, **options: Any) -> Any:
    return capwise.compile(
        model,
        inputs=input_axes(model.config, num_spec),
        capacity={"R": REQUESTS, "T": BUCKETS[-1]},
        capture_sizes=BUCKETS,
        **options,
    )


def history(traffic: Traffic, steps: int) -> Iterator[Batch]:
    """Sizes from 1 to the largest bucket, larger and smaller in turn, so that tails are stale."""
    largest = BUCKETS[-1]
    fixed = [8, 64, 512, 3, 40, 300, 1, 64, 2, 512, 7, 65]
    for i in range(steps):
        yield traffic.batch(min(fixed[i], largest) if i < len(fixed) else traffic.random.randint(1, largest))


def check(model: Decoder, num_spec: int, steps: int, device: str, lower: str) -> None:
    """Every step against eager; logits, streams and all state."""
    traffic = Traffic(model.config, num_spec, device)
    eager, mine = twin(model), twin(model)
    run = compiled(mine, num_spec, lower=lower)
    print("| step | T | R | logits | streams | state | largest logit |\n|---|---|---|---|---|---|---|")
    worst = 0.0
    for i, batch in enumerate(history(traffic, steps)):
        start = time.perf_counter()
        with torch.no_grad():
            want, streams = eager(**batch)
        got, mine_streams = run(**batch)
        found = [far(want, got), far(streams, mine_streams), *state_difference(eager, mine)]
        worst = max(worst, *found[:2])
        tokens, requests = batch["input_ids"].shape[0], batch["seq_lens"].shape[0]
        cells = " | ".join(f"{value:.2e}" for value in (found[0], found[1], max(found[2:])))
        seconds = time.perf_counter() - start
        print(f"| {i} | {tokens} | {requests} | {cells} | {float(want.abs().max()):.2f} | {seconds:.1f} s", flush=True)
    report = run.report
    print(f"\nworst {worst:.2e}; pieces {report.pieces}, seams {len(report.seams)}, guard misses {run.misses}")


def far(want: torch.Tensor, got: torch.Tensor) -> float:
    difference = (want.float() - got.float()).abs().max() if want.numel() else torch.zeros(())
    return float(difference) if difference == difference else float("inf")


def state_difference(one: Decoder, other: Decoder) -> list[float]:
    """The null rows are scratch."""
    others = dict(other.named_buffers())
    return [far(a[1:], others[n][1:]) for n, a in one.named_buffers() if a.dim() > 1]


# -------------------------------------------------------------------------------------------------------------- times
def floors(model: Decoder, num_spec: int, batches: dict[int, Batch], lower: str) -> dict[int, Callable[[], Any]]:
    """For each batch one graph of exactly it, from the same pieces at live extents."""
    run = compiled(model, num_spec, lower=lower, capture="off")
    replays = {}
    for tokens, batch in batches.items():
        for _ in range(3):
            run(**batch)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            run(**batch)
        replays[tokens] = graph.replay
    return replays


def timed(model: Decoder, num_spec: int, device: str, lower: str, repairs: list[str]) -> None:
    traffic = Traffic(model.config, num_spec, device, 1)
    batches = {tokens: traffic.batch(tokens) for tokens in BUCKETS}
    rows: dict[int, dict[str, tuple[float, float]]] = {tokens: {} for tokens in BUCKETS}
    for name in repairs:
        start = time.perf_counter()
        run = compiled(twin(model), num_spec, lower=lower, repair=name)
        for tokens in reversed(BUCKETS):
            batch = batches[tokens]
            call = lambda run=run, batch=batch: run(**batch)
            call()
            rows[tokens][name] = step_time(call), host_time(call)
        report = run.report
        print(
            f"{name}: pieces {report.pieces}, seams {len(report.seams)}, guard misses {run.misses}, graphs "
            f"{len(BUCKETS)} buckets, {time.perf_counter() - start:.0f} s to compile, record and time",
            flush=True,
        )
    eager, replays = twin(model), floors(twin(model), num_spec, batches, lower)
    for tokens, batch in batches.items():
        replay = replays[tokens]
        rows[tokens]["floor"] = step_time(replay), host_time(replay)
        with torch.no_grad():
            call = lambda batch=batch: eager(**batch)
            rows[tokens]["eager"] = step_time(call, 10), host_time(call, 3)
    names = ["floor", *repairs, "eager"]
    print("\nstep time / host time a call, us\n")
    print(f"| T | R | {' | '.join(names)} | auto / floor | split / auto |\n|{'---|' * (len(names) + 4)}")
    for tokens, cells in rows.items():
        requests = batches[tokens]["seq_lens"].shape[0]
        shown = " | ".join(f"{cells[n][0]:.0f} / {cells[n][1]:.0f}" for n in names)
        ratios = [_ratio(cells, "auto", "floor"), _ratio(cells, "split", "auto")]
        print(f"| {tokens} | {requests} | {shown} | {' | '.join(ratios)} |")
    print(f"\npeak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def host(model: Decoder, num_spec: int, device: str, lower: str) -> None:
    """Where the host time of a step goes. Without a device nothing is launched once the tapes are made."""
    traffic, parts = Traffic(model.config, num_spec, device, 1), {}
    batches = {tokens: traffic.batch(tokens) for tokens in (BUCKETS if device == "cuda" else BUCKETS[:1])}
    run = compiled(twin(model), num_spec, lower=lower, capture="auto" if device == "cuda" else "tape")
    for batch in reversed(batches.values()):
        run(**batch)
        if device != "cuda":
            for bound in run.ticket.executor.bound.values():
                bound.calls.clear()
    replays = floors(twin(model), num_spec, batches, lower) if device == "cuda" else {}
    for tokens, batch in batches.items():
        name = f"T={tokens}, R={batch['seq_lens'].shape[0]}"
        parts[name] = host_parts(run, batch)
        if replays:
            step, least = step_time(lambda batch=batch: run(**batch)), step_time(replays[tokens])
            print(f"{name}: a step {step:.0f} us, the floor {least:.0f} us, ratio {step / least:.3f}", flush=True)
    print()
    print_parts(parts)
    for tokens, replay in replays.items():
        print_differences(f"T={tokens}", lambda batch=batches[tokens]: run(**batch), replay)
    print(f"\npieces {run.report.pieces}, seams {len(run.report.seams)}, guard misses {run.misses}")


def _ratio(cells: dict[str, tuple[float, float]], one: str, other: str) -> str:
    return f"{cells[one][0] / cells[other][0]:.2f}" if one in cells and other in cells else ""


def ranks(device: str, config: Config, num_spec: int, steps: int, lower: str) -> None:
    """Two ranks, each with half of the n-gram table and of the head, against the whole model on the same rank."""
    backend = "nccl" if device == "cuda" else "gloo"
    found = run_ranks(one_rank, 2, (device, config, num_spec, steps, lower), backend, seconds=570)
    print("| rank | steps | worst difference | pieces | seams | guard misses |\n|---|---|---|---|---|---|")
    for rank, cells in enumerate(found):
        print(f"| {rank} | {steps} | {cells[0]:.2e} | {' | '.join(map(str, cells[1:]))} |")


def one_rank(
    rank: int, world: int, device: str, config: Config, num_spec: int, steps: int, lower: str
) -> tuple[float, int, int, int]:
    torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cuda":
        torch.cuda.set_device(rank)
    whole = make(config, num_spec, torch.float32, device)
    mine = shard_(twin(whole), rank, world, dist.group.WORLD.group_name)
    run = compiled(mine, num_spec, lower=lower)
    worst = 0.0
    for batch in history(Traffic(config, num_spec, device), steps):
        agree(batch)
        with torch.no_grad():
            want = whole(**batch)
        worst = max(worst, *(far(a, b) for a, b in zip(want, run(**batch))))
    return worst, run.report.pieces, len(run.report.seams), run.misses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=2000, help="how many to compare with transformers")
    parser.add_argument("--part", choices=("check", "time", "host", "ranks"), default="check")
    parser.add_argument("--sizes", choices=("released", "tiny"), default="released")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--spec", type=int, default=1, help="S, draft tokens")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lower", choices=("inductor", "eager"), default="inductor")
    parser.add_argument("--repair", nargs="+", default=["auto", "split"])
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    if args.device == "cpu" and args.sizes == "released":
        oracle_table(args.tokens)
        return
    config = tiny() if args.sizes == "tiny" else sizes(args.layers, args.experts)
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {config.num_hidden_layers} layers, {config.num_experts} experts\n")
    torch.backends.cuda.matmul.allow_tf32 = False
    if args.part == "ranks":
        ranks(args.device, config, args.spec, args.steps, args.lower)
        return
    dtype = torch.float32 if args.part == "check" else torch.bfloat16
    model = make(config, args.spec, dtype, args.device)
    if args.part == "check":
        check(model, args.spec, args.steps, args.device, args.lower)
    elif args.part == "host":
        host(model, args.spec, args.device, args.lower)
    else:
        timed(model, args.spec, args.device, args.lower, args.repair)


if __name__ == "__main__":
    main()
