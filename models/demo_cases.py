"""The two seed faults as Cases.

S1: n-gram ids under a token key. A step of few requests after a burst of eight leaves the burst's boundaries and
contexts in the tails of the buffers; a graph that was recorded with room for eight requests searches all of them.

S2: the short convolution, its slots given as column 0 of a state table: once with the shipped kernel, which takes the
stride, once with one that assumes stride 1.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch

import capwise.models.unit_stride_conv  # noqa: F401  registers the ops
from capwise.case import Case
from capwise.models.qwen4_exp.batch import Request, build_batch, input_axes
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.ple import OURS, REFERENCE, Conv, NgramIds, ShortConv
from capwise.models.text import text_tokens

BURST = 8
S1_SIZES = (1, 2, 4, 8, 16, 32, 64)
S1_INPUTS = ("input_ids", "query_start_loc", "ngram_context")
S2_INPUTS = ("query_start_loc", "state_table", "has_initial")
Batch = dict[str, torch.Tensor]
Kernel = Literal["ours", "unit"]

# A published worked example: eight one-token requests leave [0, 1, ..., 8]; then one request of five tokens.
GOLDEN = Config(
    vocab_size=100, eos_token_id=99, hidden_size=16, ple_embed_dim=16, heads_per_ngram=2, ngram_vocab_size_base=1000
)
GOLDEN_IDS = (
    (716, 1172, 2672, 3369),
    (269, 1882, 2347, 3736),
    (833, 1850, 2733, 3414),
    (780, 1378, 2410, 3239),
    (876, 1278, 2923, 4028),
)
# What a stale tail makes of the third token, with contexts of eos in the tail.
GOLDEN_STALE_ROW = (462, 1855, 2582, 3672)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


# ---------------------------------------------------------------------------------------------------------------- S1


def _pick(batch: Batch, names: Sequence[str]) -> Batch:
    return {name: batch[name] for name in names}


class _Traffic:
    """Steps over windows of the text, each as an engine would schedule it."""

    def __init__(self, seed: int) -> None:
        self.config = Config()
        self.words = text_tokens(self.config)
        self.random = random.Random(seed)

    def request(self, computed: int, length: int, slot: int) -> Request:
        first = self.random.randrange(len(self.words) - computed - length)
        return Request(self.words[first : first + computed + length], computed, length, slot)

    def burst(self) -> list[Request]:
        lengths = [self.random.randint(1, 4) for _ in range(BURST)]
        return [self.request(self.random.randint(4, 40), n, i + 1) for i, n in enumerate(lengths)]

    def prompt(self) -> list[Request]:
        return [self.request(0, self.random.randint(3, 32), 1)]

    def tail(self) -> list[Request]:
        """The last chunk of a prompt that did not fit one step."""
        return [self.request(64, self.random.randint(2, 24), 1)]

    def prefix(self) -> list[Request]:
        """What a prefix hit leaves to compute."""
        return [self.request(16 * self.random.randint(1, 4), self.random.randint(2, 8), 1)]

    def mixed(self) -> list[Request]:
        """One short prompt among decodes."""
        decodes = [self.request(self.random.randint(4, 40), 1, i + 2) for i in range(self.random.randint(1, 3))]
        step = [self.request(0, self.random.randint(3, 12), 1), *decodes]
        self.random.shuffle(step)
        return step


PROBES = ("prompt", "tail", "prefix", "mixed")


@cache
def _s1_steps(steps: int, seed: int) -> tuple[tuple[str, Batch], ...]:
    traffic = _Traffic(seed)
    kinds: list[str] = []
    for i in range(steps):
        if i % 3 == 0:
            kinds.append("burst")
        kinds.append(PROBES[i % len(PROBES)])
    return tuple(
        (kind, _pick(build_batch(getattr(traffic, kind)(), traffic.config), S1_INPUTS)) for kind in kinds
    )


def _s1_case(batches: Sequence[Batch], name: str, config: Config | None = None) -> Case:
    config = config or Config()
    return Case(
        model=NgramIds(config),
        batches=[{k: v.clone() for k, v in batch.items()} for batch in batches],
        inputs=input_axes(config, names=S1_INPUTS),
        capacity={"R": BURST, "T": 256},
        key=("T",),
        options={"capture_sizes": S1_SIZES},
        name=name,
    )


def s1(steps: int = 46, seed: int = 0) -> Case:
    """`steps` probe steps of four kinds, one after another, with a burst of eight requests before every third."""
    return _s1_case([batch for _, batch in _s1_steps(steps, seed)], "S1 n-gram ids")


def s1_kinds(steps: int = 46, seed: int = 0) -> tuple[str, ...]:
    """What each batch of `s1` is: "burst", or one of PROBES."""
    return tuple(kind for kind, _ in _s1_steps(steps, seed))


def s1_before_after(probes: int = 10, seed: int = 0) -> Case:
    """`probes` short steps, a burst of eight requests, the same steps again: the two halves must agree bitwise."""
    traffic = _Traffic(seed)
    steps = [getattr(traffic, PROBES[i % len(PROBES)])() for i in range(probes)]
    history = [build_batch(step, traffic.config) for step in (*steps, traffic.burst(), *steps)]
    return _s1_case([_pick(batch, S1_INPUTS) for batch in history], "S1 before and after a burst")


def s1_controls(seed: int = 0) -> Case:
    """Steps that a stale tail does not reach: a single decode, and a prompt above the largest recorded size."""
    traffic = _Traffic(seed)
    steps = [traffic.burst(), [traffic.request(20, 1, 1)], traffic.burst(), [traffic.request(0, 200, 1)]]
    batches = [_pick(build_batch(step, traffic.config), S1_INPUTS) for step in steps]
    return _s1_case(batches, "S1 controls")


def s1_golden() -> Case:
    """Two steps with published ids: GOLDEN_IDS is what the second must give."""
    burst = [Request((i + 1,), 0, 1, i + 1) for i in range(BURST)]
    last = [Request((7, 8, 11, 12, 13, 99, 15), 2, 5, 1)]
    batches = [_pick(build_batch(step, GOLDEN), S1_INPUTS) for step in (burst, last)]
    return _s1_case(batches, "S1 golden", GOLDEN)


# ---------------------------------------------------------------------------------------------------------------- S2

UNIT = Conv(
    torch.ops.footgun.unit_stride_short_conv.default, torch.ops.footgun.unit_stride_short_conv_state_.default
)
CONVS = {"ours": OURS, "unit": UNIT}
SLOTS = 40


def _s2_batch(requests: Sequence[Request], stride: int, channels: int) -> Batch:
    config = Config()
    batch = _pick(build_batch(requests, config, num_spec=stride - 1), S2_INPUTS)
    return {"x": torch.randn(int(batch["query_start_loc"][-1]), channels), **batch}


def _s2_case(steps: Sequence[Sequence[Request]], stride: int, kernel: Kernel, channels: int, **sizes: int) -> Case:
    if kernel not in CONVS:
        raise ValueError(f"kernel: expected one of {', '.join(CONVS)}; got {kernel!r}")
    if stride not in (1, 2, 4):
        raise ValueError(f"stride: expected 1, 2 or 4; got {stride!r}")
    seed, dilation = sizes["seed"], sizes["dilation"]
    with _seeded(seed):
        model = ShortConv(channels, 4, dilation, SLOTS, CONVS[kernel])
        reference = ShortConv(channels, 4, dilation, SLOTS, REFERENCE)
        batches = [_s2_batch(step, stride, channels) for step in steps]
    reference.load_state_dict(model.state_dict())
    most = max(batch["x"].shape[0] for batch in batches)
    small = 16
    return Case(
        model=model,
        batches=batches,
        inputs={"x": ("T", channels), **input_axes(Config(), stride - 1, S2_INPUTS)},
        capacity={"R": 4, "T": -(-most // small) * small},
        key=("T",),
        options={"capture_sizes": tuple(sorted({small, -(-most // small) * small}))},
        reference=reference,
        name=f"S2 short conv, {kernel} kernel, stride {stride}",
    )


def s2(stride: int = 4, kernel: Kernel = "ours", channels: int = 10240, seed: int = 0) -> Case:
    """Two requests of 16 and 676 tokens, then three with a null slot among them, then two short ones.

    The tables' rows are 10.., 20.., 30..: what a kernel that ignores the stride takes for the second request's slot is
    number 11, which belongs to nobody.

    Raises:
        ValueError: stride not 1, 2 or 4; kernel not "ours" or "unit".
    """
    words = text_tokens(Config())
    steps = [
        [Request(words, 0, 16, 10), Request(words, 20, 676, 20)],
        [Request(words, 16, 1, 10), Request(words, 5, 4, 0), Request(words, 0, 7, 30)],
        [Request(words, 696, 3, 20), Request(words, 17, 5, 10)],
    ]
    return _s2_case(steps, stride, kernel, channels, seed=seed, dilation=3)


def s2_golden(stride: int = 4, kernel: Kernel = "ours", seed: int = 0) -> Case:
    """Three requests of twelve tokens, 64 channels, no dilation; slots 10, 20, 30."""
    words = text_tokens(Config())
    steps = [[Request(words, 12 * step, 12, slot) for slot in (10, 20, 30)] for step in range(2)]
    return _s2_case(steps, stride, kernel, 64, seed=seed, dilation=1)
