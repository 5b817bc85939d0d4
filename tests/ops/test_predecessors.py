"""The tokens before each token: against a walk through whole texts, and the kernel against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.predecessors import ple_predecessors

BOTH = pytest.mark.parametrize("kernel", (False, True), ids=("reference", "kernel"))
EOS = 99


def body(kernel: bool):
    return compat.interpreted() if kernel else torch.no_grad()


def _int32(values):
    return torch.tensor(values, dtype=torch.int32)


def _walk(text: list[int], at: int, context: int) -> list[int]:
    """Back from `at`, not past an eos."""
    found: list[int] = []
    for word in reversed(text[at - context : at]):
        found.append(EOS if EOS in found else word)
    return found


@BOTH
@settings(max_examples=25, deadline=None, database=None)
@given(
    seed=st.integers(0, 10_000),
    context=st.integers(1, 4),
    pad=st.sampled_from(((0, 0), (3, 2), (0, 5))),
    dtype=st.sampled_from((torch.int32, torch.int64)),
)
def test_every_token_finds_the_ones_before_it(kernel, seed, context, pad, dtype, step, strided, junk):
    """Steps of decodes only, of one request, with empty requests; chunks shorter than the context; noise in tails."""
    batch, generator = step(seed), torch.Generator().manual_seed(seed)
    ids = torch.randint(90, 100, (batch.tokens,), generator=generator, dtype=dtype)
    before = torch.randint(95, 100, (batch.requests, context), generator=generator, dtype=torch.int32)
    wanted = []
    for row, chunk in zip(before.tolist(), ids.split(list(batch.lengths))):
        text = [*row, *chunk.tolist()]
        wanted += [_walk(text, context + p, context) for p in range(len(chunk))]
    tails = [junk(t.new_empty((n, *t.shape[1:])), seed) for t, n in zip((ids, before), pad)]
    starts = torch.cat([batch.starts, batch.starts[-1:].expand(pad[1])])
    args = torch.cat([ids, tails[0]]), starts, torch.cat([before, tails[1]])
    with body(kernel):
        out = ple_predecessors(*[strided(t, seed + i) for i, t in enumerate(args)], EOS)
    assert out.dtype == torch.int64 and out.shape == (batch.tokens + pad[0], context)
    assert out[: batch.tokens].tolist() == wanted


@BOTH
def test_one_token_of_one_request_and_an_eos_that_hides_what_is_older(kernel):
    with body(kernel):
        one = ple_predecessors(_int32([5]), _int32([0, 1]), _int32([[7, 8]]), EOS)
        itself = ple_predecessors(_int32([EOS, 6, 7]), _int32([0, 3]), _int32([[7, 8]]), EOS)
        first = ple_predecessors(_int32([5]), _int32([0, 1]), _int32([[7, EOS]]), EOS)
    assert one.tolist() == [[8, 7]]
    assert itself.tolist() == [[8, 7], [EOS, EOS], [6, EOS]]
    assert first.tolist() == [[EOS, EOS]]


@settings(max_examples=15, deadline=None, database=None)
@given(seed=st.integers(0, 10_000))
def test_kernel_equals_reference_where_boundaries_are_garbage(seed, step, strided, junk):
    batch, generator = step(seed), torch.Generator().manual_seed(seed)
    ids = torch.randint(90, 100, (batch.tokens,), generator=generator)
    before = torch.randint(90, 100, (batch.requests, 3), generator=generator, dtype=torch.int32)
    starts = batch.starts
    starts[1:] = junk(starts[1:], seed)
    args = [strided(t, seed + i) for i, t in enumerate((ids, starts, before))]
    right = ple_predecessors(*args, EOS)
    with compat.interpreted():
        assert torch.equal(ple_predecessors(*args, EOS), right)


@BOTH
def test_ids_of_64_bits_stay_whole(kernel):
    with body(kernel):
        out = ple_predecessors(torch.tensor([2**62 + 3, 1]), _int32([0, 2]), torch.tensor([[-(2**63)]]), 2**40)
    assert out.tolist() == [[-(2**63)], [2**62 + 3]]


@BOTH
def test_no_tokens(kernel):
    with body(kernel):
        assert ple_predecessors(_int32([]), _int32([0, 0]), _int32([[7, 8, 9]]), EOS).shape == (0, 3)
        assert ple_predecessors(_int32([]), _int32([0]), torch.empty(0, 2, dtype=torch.int32), EOS).shape == (0, 2)


def test_contradicting_extents_are_refused(raises):
    starts, before = _int32([0, 1]), _int32([[7, 8]])
    with raises("ple_predecessors: ngram_context: expected [R, n-1] = (1, 2); got (2, 2)"):
        ple_predecessors(_int32([1]), starts, before.repeat(2, 1), EOS)
    with raises("ple_predecessors: ngram_context: expected [R, n-1] = (1, 1); got (1, 0)"):
        ple_predecessors(_int32([1]), starts, before[:, :0], EOS)
    with raises("ple_predecessors: ngram_context: expected [R, n-1] = (1, 1); got (1,)"):
        ple_predecessors(_int32([1]), starts, before[:, 0], EOS)
    with raises("ple_predecessors: input_ids: expected [T]; got (1, 1)"):
        ple_predecessors(_int32([[1]]), starts, before, EOS)
    with raises("ple_predecessors: query_start_loc: expected at least one request; got none"):
        ple_predecessors(_int32([1]), starts[:1], before[:0], EOS)
