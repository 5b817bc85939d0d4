"""A whole attention layer of the shipped ops under one graph a token bucket, whatever the requests."""

from __future__ import annotations

import pytest
import torch

import capwise
from capwise.backend import programs_of
from capwise.ops.mrope_path import mrope_path
from capwise.ops.samples import SMALL

A = SMALL.attention
WIDTHS = [n * A.width for n in (A.query_heads, A.heads, A.heads)] + [A.index_heads * A.index_width, A.index_width]
PAGES = 2 + 3 * A.table


class Layer(torch.nn.Module):
    """x [T, sum of WIDTHS] holds what the projections give -> rows to take logits of, [R, 3, HQ * D]."""

    def __init__(self, interleaved: bool, token_major: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.register_buffer("inv_freq", 1e4 ** (-torch.arange(5) / 5))
        self.register_buffer("weight", noise(A.index_width))
        self.register_buffer("kv_cache", noise(PAGES, A.page, 2, A.heads, A.width))
        self.register_buffer("block_keys", noise(PAGES, A.page // A.ratio, A.index_width))
        self.register_buffer("ring", noise(6, A.cap, A.index_width))
        self.register_buffer("ring_positions", torch.zeros(6, A.cap, 3, dtype=torch.int64))
        layout = "token-major" if token_major else "axis-major"
        self.major = {"token_major": token_major}
        self.rope = mrope_path(self.inv_freq, A.sections, A.width, interleaved=interleaved, layout=layout)

    def forward(self, x, positions, query_start_loc, seq_lens, block_table, state_indices, is_spec):
        ops = torch.ops.capwise
        q, k, v, iq, raw = x.split(WIDTHS, 1)
        q, k, v, iq = (
            t.unflatten(1, (n, -1))
            for t, n in ((q, A.query_heads), (k, A.heads), (v, A.heads), (iq, A.index_heads))
        )
        row, position = ops.token_requests(query_start_loc, seq_lens, x)
        slots = ops.slot_mapping(row, position, block_table, A.page)
        q = self.rope.rotate_and_write(q, k, v, positions, slots, self.kv_cache)
        request = query_start_loc, seq_lens, state_indices
        ring = raw, positions, self.ring, self.ring_positions
        pages = block_table, self.block_keys
        ops.qsa_compress_(
            *ring, self.weight, self.inv_freq, *request, *pages, A.sections, 1e-6, A.ratio, **self.major
        )
        ops.qsa_commit_(*ring, *request, **self.major)
        iq = self.rope.rotate(iq, positions)
        scores = ops.qsa_scores(iq, self.block_keys, row, position, block_table, A.ratio)
        blocks = ops.top_blocks(scores, 2, (position + 1) // A.ratio)
        out = ops.sparse_attention(q, self.kv_cache, blocks, row, position, block_table, A.ratio, A.width**-0.5)
        return ops.logits_rows(out.flatten(1), query_start_loc, is_spec, 3)


def layer_case(interleaved: bool = True, token_major: bool = False, steps: int = 4) -> capwise.Case:
    """A burst of three requests, then shorter steps: a verify chunk alone, T == R in the same bucket, one token."""
    generator = torch.Generator().manual_seed(1)
    done, batches = [0, 0, 0], []
    for chunks in ({0: 2, 1: 5, 2: 1}, {1: 3}, {0: 1, 1: 1, 2: 1}, {1: 1})[:steps]:
        tokens, starts = sum(chunks.values()), [0]
        positions = torch.randint(0, 500, (3, tokens), generator=generator)
        batch = {
            "x": torch.randn(tokens, sum(WIDTHS), generator=generator),
            "positions": positions.T.contiguous() if token_major else positions,
            "block_table": torch.tensor([[1 + r * A.table + i for i in range(A.table)] for r in chunks]).int(),
            "state_indices": torch.tensor([r + 1 for r in chunks]).int(),
            "is_spec": torch.tensor([n == 3 for n in chunks.values()]),
        }
        for r, n in chunks.items():
            starts.append(starts[-1] + n)
            done[r] += n
        batch["query_start_loc"] = torch.tensor(starts).int()
        batch["seq_lens"] = torch.tensor([done[r] for r in chunks]).int()
        batches.append(batch)
    return capwise.Case(
        model=Layer(interleaved, token_major),
        batches=batches,
        inputs={
            "x": ("T", sum(WIDTHS)),
            "positions": ("T", 3) if token_major else (3, "T"),
            "query_start_loc": ("R+1",),
            "seq_lens": ("R",),
            "block_table": capwise.Input("R", A.table, null=0),
            "state_indices": capwise.Input("R", null=0),
            "is_spec": ("R",),
        },
        capacity={"T": 8, "R": 3},
        options={"capture_sizes": (4, 8)},
        name="attention layer",
    )


@pytest.mark.parametrize(("token_major", "steps"), ((False, 3), (True, 2)), ids=("axis-major", "token-major"))
def test_one_piece_a_bucket_and_every_replay_is_right(token_major, steps, replays):
    case = layer_case(token_major=token_major, steps=steps)
    (program,) = programs_of(case)
    assert (len(program.pieces), len(program.seams)) == (1, 0)
    # All that follows from the boundaries is computed: positions and slots of padded rows are known to be -1.
    assert program.staged_fills == {"query_start_loc": "last"}
    assert {d.code for d in program.report} == {"CW101", "CW201"}
    replays(case, poison=True)


def test_stale_tails_of_a_burst_are_what_goes_wrong_without(differs):
    """Fewer tokens than captured: positions, boundaries and slots of the burst are still there."""
    differs(layer_case(steps=2))


def test_the_reference_path_is_right_too(replays):
    replays(layer_case(interleaved=False, steps=2), poison=True)
