"""The attention ops in the order of a layer, over many steps, against each request alone: dense, in float64, by loops.

Nothing is shared with the ops: a request keeps the whole of what it was given, block keys are made from it anew for
every query, rotation is a product of complex numbers, the choice of blocks is a sort of (score, number) pairs.
"""

from __future__ import annotations

import cmath
import math
import random
from dataclasses import dataclass, field, replace

import pytest
import torch

from capwise import compat
from capwise.ops.metadata import slot_mapping, token_requests
from capwise.ops.mrope import mrope, mrope_kv_write_
from capwise.ops.qsa_index import qsa_commit_, qsa_compress_
from capwise.ops.qsa_scores import qsa_scores
from capwise.ops.sparse_attention import sparse_attention
from capwise.ops.top_blocks import top_blocks

EPS, SECTIONS, AXES = 1e-6, [2, 2, 1], (0, 1, 2, 0, 1)  # five pairs: time, height, width, time, height
PAIRS = len(AXES)
FREQUENCIES = [10.0 ** (-i / PAIRS) for i in range(PAIRS)]


@dataclass(frozen=True)
class Sizes:
    query_heads: int = 4
    heads: int = 2
    width: int = 12
    index_heads: int = 3
    index_width: int = 11
    ratio: int = 2
    page: int = 4
    pages: int = 40
    table: int = 8
    slots: int = 6
    drafts: int = 3
    chosen: int = 3
    cap: int = 6  # ratio + drafts, rounded up to a multiple of ratio


FOURS = Sizes(ratio=4, page=8, table=5, chosen=2, cap=8)


@dataclass
class Row:
    """What one token brings to the layer."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    iq: torch.Tensor
    raw: torch.Tensor
    position: list[int]


@dataclass
class Request:
    slot: int
    pages: list[int]
    rows: list[Row] = field(default_factory=list)


# ----------------------------------------------------------------------------------------------- one request, alone
def turn(x: torch.Tensor, position: list[int]) -> torch.Tensor:
    """x [h, D] rotated at a 3-axis position."""
    y = x.double().clone()
    for i in range(PAIRS):
        spin = cmath.exp(1j * position[AXES[i]] * FREQUENCIES[i])
        for head in range(len(x)):
            turned = complex(x[head, i], x[head, i + PAIRS]) * spin
            y[head, i], y[head, i + PAIRS] = turned.real, turned.imag
    return y


def block_key(rows: list[Row], weight: torch.Tensor) -> torch.Tensor:
    mean = sum(r.raw.double() for r in rows) / len(rows)
    normed = mean / math.sqrt(float(mean.square().mean()) + EPS) * (1 + weight.double())
    return turn(normed[None], rows[0].position)[0]


def attend(rows: list[Row], p: int, weight: torch.Tensor, sizes: Sizes) -> tuple[list[int], torch.Tensor, float]:
    """(chosen blocks, output [HQ, D], margin of the choice) of the query at position p."""
    me, visible = rows[p], (p + 1) // sizes.ratio
    iq, scores = turn(me.iq, me.position), []
    for b in range(visible):
        key = block_key(rows[b * sizes.ratio : (b + 1) * sizes.ratio], weight)
        scores.append(sum(max(float(h @ key), 0.0) for h in iq) / math.sqrt(sizes.index_width))
    ranked = sorted(range(visible), key=lambda b: (-scores[b], b))
    chosen, left = sorted(ranked[: sizes.chosen]), ranked[sizes.chosen :]
    margin = scores[ranked[sizes.chosen - 1]] - scores[left[0]] if left else 1.0
    seen = [b * sizes.ratio + i for b in chosen for i in range(sizes.ratio)] + list(range(visible * sizes.ratio, p + 1))
    q, group = turn(me.q, me.position), sizes.query_heads // sizes.heads
    out = torch.zeros(q.shape, dtype=torch.float64)
    for h in range(sizes.query_heads):
        keys = torch.stack([turn(rows[s].k, rows[s].position)[h // group] for s in seen])
        values = torch.stack([rows[s].v[h // group].double() for s in seen])
        out[h] = torch.softmax(keys @ q[h] * sizes.width**-0.5, 0) @ values
    return chosen, out, margin


# --------------------------------------------------------------------------------------------------- all, as served
class Served:
    """Pools full of noise, and one step of the ops over a padded batch."""

    def __init__(self, sizes: Sizes, generator: torch.Generator, token_major: bool) -> None:
        self.sizes, self.token_major = sizes, token_major
        s = sizes

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator) * 5

        self.kv_cache = noise(s.pages, s.page, 2, s.heads, s.width)
        self.block_keys = noise(s.pages, s.page // s.ratio, s.index_width)
        self.ring = noise(s.slots, s.cap, s.index_width)
        self.ring_positions = torch.randint(-99, 99, (s.slots, s.cap, 3), generator=generator)
        self.weight = torch.randn(s.index_width, generator=generator) * 0.3
        self.inv_freq = torch.tensor(FREQUENCIES)

    def step(self, chunks: list[tuple[Request, list[Row]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs [T, HQ, D] and chosen blocks [T, k] of chunks with `pad` more tokens and requests than there are."""
        s, requests = self.sizes, len(chunks) + pad
        rows = [row for _, chunk in chunks for row in chunk]
        names = ("q", "k", "v", "iq", "raw")
        junk = Row(*(torch.full_like(getattr(rows[0], n), float("nan")) for n in names), [7, 8, 9])
        rows += [junk] * pad
        q, k, v, iq, raw = (torch.stack([getattr(r, n) for r in rows]) for n in names)
        positions = torch.tensor([r.position for r in rows])
        positions = positions if self.token_major else positions.T.contiguous()
        lengths = [len(chunk) for _, chunk in chunks] + [0] * pad
        starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
        seq_lens = torch.tensor([len(r.rows) + len(c) for r, c in chunks] + [0] * pad, dtype=torch.int32)
        slots = torch.tensor([r.slot for r, _ in chunks] + [0] * pad, dtype=torch.int32)
        table = torch.zeros(requests, s.table, dtype=torch.int32)
        for i, (request, _) in enumerate(chunks):
            table[i, : len(request.pages)] = torch.tensor(request.pages)
        major = {"token_major": self.token_major}
        row, position = token_requests(starts, seq_lens, q)
        where = slot_mapping(row, position, table, s.page)
        q = mrope_kv_write_(q, k, v, positions, self.inv_freq, where, self.kv_cache, SECTIONS, **major)
        request = starts, seq_lens, slots
        ring = raw, positions, self.ring, self.ring_positions
        weights, blocks = (self.weight, self.inv_freq), (table, self.block_keys)
        qsa_compress_(*ring, *weights, *request, *blocks, SECTIONS, EPS, s.ratio, **major)
        qsa_commit_(*ring, *request, **major)
        iq = mrope(iq, positions, self.inv_freq, SECTIONS, **major)
        scores = qsa_scores(iq, self.block_keys, row, position, table, s.ratio)
        blocks = top_blocks(scores, s.chosen, (position + 1) // s.ratio)
        out = sparse_attention(q, self.kv_cache, blocks, row, position, table, s.ratio, s.width**-0.5)
        return out, blocks


def schedule(seed: int, sizes: Sizes, steps: int, token_major: bool):
    """Chunks of any length, verify chunks with rejections, requests that end and leave slot and pages to others."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    served, live = Served(sizes, generator, token_major), []
    free_slots, free_pages = list(range(1, sizes.slots)), list(range(1, sizes.pages))

    def row(p: int, shift: int) -> Row:
        s = sizes
        heads = ((s.query_heads, s.width), (s.heads, s.width), (s.heads, s.width), (s.index_heads, s.index_width))
        tensors = [torch.randn(shape, generator=generator) for shape in (*heads, (s.index_width,))]
        return Row(*tensors, [p + shift, p - shift, 2 * p])  # three different axes, negative ones too

    for _ in range(steps):
        if len(live) < 3 and rng.random() < 0.7 and free_slots:
            live.append(Request(free_slots.pop(rng.randrange(len(free_slots))), []))
        rng.shuffle(live)
        chunks = []
        for request in live:
            length = rng.choice((1, 1, 2, sizes.drafts + 1, 5, 9))
            length = min(length, sizes.table * sizes.page - len(request.rows))
            while len(request.pages) * sizes.page < len(request.rows) + length:
                request.pages.append(free_pages.pop(rng.randrange(len(free_pages))))
            chunks.append((request, [row(len(request.rows) + i, request.slot) for i in range(length)]))
        if not any(chunk for _, chunk in chunks):
            live.clear()
            continue
        yield served, chunks, rng.choice((0, 1, 4))
        for request, chunk in chunks:
            verify = 1 < len(chunk) <= sizes.drafts + 1
            request.rows += chunk[: rng.randint(1, len(chunk)) if verify else len(chunk)]
        for request in [r for r in live if len(r.rows) >= sizes.table * sizes.page - 9 or rng.random() < 0.1]:
            live.remove(request)
            free_slots.append(request.slot)
            free_pages += request.pages


def compare(seed: int, sizes: Sizes, steps: int, token_major: bool) -> tuple[int, int]:
    """(rows compared, rows whose choice left something out)."""
    rows = sparse = 0
    for served, chunks, pad in schedule(seed, sizes, steps, token_major):
        out, blocks = served.step(chunks, pad)
        t = 0
        for request, chunk in chunks:
            history = request.rows + chunk
            for p in range(len(request.rows), len(history)):
                chosen, right, margin = attend(history, p, served.weight, sizes)
                if margin > 1e-4:
                    assert [b for b in blocks[t].tolist() if b >= 0] == chosen, (t, p)
                    assert torch.allclose(out[t].double(), right, atol=2e-5), (t, p)
                    rows, sparse = rows + 1, sparse + (len(chosen) < (p + 1) // sizes.ratio)
                t += 1
        assert not out[t:].any()
    return rows, sparse


def test_a_layer_of_the_kernels_equals_each_request_alone():
    with compat.interpreted():
        rows, sparse = compare(3, Sizes(), 3, False)
    assert rows > 15 and sparse > 2


@pytest.mark.parametrize("token_major", (False, True), ids=("axis-major", "token-major"))
@pytest.mark.parametrize("sizes", (Sizes(), FOURS), ids=("ratio 2", "ratio 4"))
def test_a_layer_of_the_references_equals_each_request_alone(sizes, token_major):
    rows, sparse = compare(1 + token_major, sizes, 12, token_major)
    assert rows > 60 and sparse > 20


def test_a_ring_too_small_for_rejected_drafts_is_seen():
    """With room for `ratio` keys only, a rejected draft takes the place of a key that a later block needs."""
    compare(0, FOURS, 8, False)
    with pytest.raises(AssertionError):
        compare(0, replace(FOURS, cap=4), 8, False)
