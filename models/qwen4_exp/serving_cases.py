"""The whole decoder as Cases: histories that mix prefill, later chunks, decode and verify."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import torch

from capwise.case import Case
from capwise.models.qwen4_exp.batch import input_axes
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.decoder import Decoder
from capwise.models.qwen4_exp.opaque import OpaqueDecoder, Served
from capwise.models.qwen4_exp.oracle import random_texts
from capwise.models.qwen4_exp.pool import Pool
from capwise.models.qwen4_exp.schedule import Schedule, Step

NUM_SPEC, PAGE, MAX_BLOCKS, REQUESTS, TOKENS = 2, 8, 5, 4, 16
SLOTS, BLOCKS = 1 + (1 + NUM_SPEC) * REQUESTS, 1 + MAX_BLOCKS * REQUESTS
# Three linear layers, the second with n-grams, and one with an indexer.
TINY = Config.tiny(num_hidden_layers=4)


def model(seed: int = 0, prefill: str | None = None) -> Decoder:
    """A random decoder with noise in its pools; global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Decoder(TINY, SLOTS, BLOCKS, PAGE, NUM_SPEC, prefill=prefill)
    made.fill_state_(torch.Generator().manual_seed(seed))
    return made


def steps(count: int, seed: int = 0) -> list[Step]:
    """The first `count` steps of a random schedule: up to REQUESTS requests, up to TOKENS tokens."""
    pool = Pool(BLOCKS, SLOTS, PAGE, NUM_SPEC)
    texts = random_texts(TINY, 40, 24, seed)
    made = Schedule(
        TINY, texts, pool, seed, max_requests=REQUESTS, max_tokens=TOKENS, max_blocks=MAX_BLOCKS, chunks=(1, 2, 3, 5, 9)
    )
    return list(islice(made, count))


def decoder(count: int = 6, seed: int = 0, prefill: str | None = None) -> Case:
    """One piece a bucket, no seam, whatever the mix of requests; with `prefill` as for `Decoder`, a seam a linear
    layer."""
    return Case(
        model=model(seed, prefill),
        batches=[step.batch for step in steps(count, seed)],
        inputs=input_axes(TINY, NUM_SPEC),
        capacity={"R": REQUESTS, "T": TOKENS},
        key=("T",),
        options={"capture_sizes": (4, TOKENS)},
        name="Qwen4Exp decoder",
    )


def closed(count: int = 6, seed: int = 0) -> Case:
    """The same decoder with closed ops in place of everything that needs requests: each of them is a seam, and so is
    the op that hands them the step."""
    case = decoder(count, seed)
    return replace(case, model=Served(OpaqueDecoder(case.model, REQUESTS)), name="Qwen4Exp decoder, closed ops")


def cases() -> list[Case]:
    return [decoder(), closed()]
