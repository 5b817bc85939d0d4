"""N-gram ids: published numbers, and the kernel against the reference."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.models.demo_cases import GOLDEN, GOLDEN_IDS, GOLDEN_STALE_ROW
from capwise.models.qwen4_exp import Config, NgramIds
from capwise.ops.ngram_ids import ple_ngram_ids
from capwise.ops.search import request_rows


def _int32(values):
    return torch.tensor(values, dtype=torch.int32)


def _both(module, *args):
    reference = module(*args)
    with compat.interpreted():
        kernel = module(*args)
    assert torch.equal(reference, kernel)
    return reference


def test_published_ids():
    ids = _both(NgramIds(GOLDEN), _int32([11, 12, 13, 99, 15]), _int32([0, 5]), _int32([[7, 8]]))
    assert ids.tolist() == [list(row) for row in GOLDEN_IDS]


def test_stale_boundaries_give_the_published_wrong_ids_and_a_filled_tail_the_right_ones():
    tokens, context = _int32([11, 12, 13, 99, 15, 1, 1, 1]), _int32([[7, 8], *[[99, 99]] * 7])
    module = NgramIds(GOLDEN)
    stale = _both(module, tokens, _int32([0, 5, 2, 3, 4, 5, 6, 7, 8]), context)[:5].tolist()
    assert stale[2] == list(GOLDEN_STALE_ROW)
    assert stale[3] != list(GOLDEN_IDS[3]) and stale[4] == list(GOLDEN_IDS[4])
    filled = _both(module, tokens, _int32([0, *[5] * 8]), context)[:5].tolist()
    assert filled == [list(row) for row in GOLDEN_IDS]


def test_the_search_bisects_where_boundaries_are_not_monotone():
    assert request_rows(8, _int32([0, 8, 2, 12, 16, 20, 24, 28, 32])).tolist() == [0, 0, 2, 2, 2, 2, 2, 2]
    assert request_rows(5, _int32([0, 5, 2, 3, 4, 5, 6, 7, 8])).tolist() == [0, 0, 2, 3, 4]
    assert request_rows(6, _int32([0, 3, 6, 6, 8])).tolist() == [0, 0, 0, 1, 1, 1]


def test_an_eos_hides_what_stands_before_it_but_not_itself():
    module, starts = NgramIds(GOLDEN), _int32([0, 3])
    one = module(_int32([5, 99, 6]), starts, _int32([[1, 2]]))
    other = module(_int32([50, 99, 6]), starts, _int32([[1, 2]]))
    assert torch.equal(one[2], other[2]) and not torch.equal(one[1], other[1])


def test_released_tables():
    config = Config()
    module = NgramIds(config)
    ids = _both(module, _int32([248319, 248044, 0]), _int32([0, 3]), _int32([[248044, 248318]]))
    assert ids.shape == (3, 16) and ids.dtype == torch.int64
    assert bool((ids >= 0).all()) and bool((ids < config.table_rows()).all())


@settings(max_examples=40, deadline=None, database=None)
@given(seed=st.integers(0, 10_000))
def test_kernel_equals_reference(seed, step, strided, junk):
    """Any strides; steps of decodes only, of one request, with empty requests; one boundary list in four is garbage."""
    batch, generator = step(seed), torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 100, (batch.tokens,), generator=generator, dtype=(torch.int32, torch.int64)[seed % 2])
    ids[torch.rand(ids.shape, generator=generator) < 0.2] = 99
    starts = batch.starts
    if seed % 4 == 0:
        starts[1:] = junk(starts[1:], seed)
    context = torch.randint(90, 100, (batch.requests, 2), generator=generator, dtype=torch.int32)
    _both(NgramIds(GOLDEN), strided(ids, seed), strided(starts, seed + 1), strided(context, seed + 2))


def test_ids_lie_in_the_table_whatever_the_tokens_are():
    """Products overflow and turn negative: the remainder is the floor's."""
    tokens = torch.tensor([-5, 2**62 + 3, -(2**63), 2**63 - 1, 2**40])
    ids = _both(NgramIds(GOLDEN), tokens, _int32([0, 5]), _int32([[-1, -(2**31)]]))
    assert bool((ids >= 0).all()) and bool((ids < GOLDEN.table_rows()).all())


def test_no_tokens():
    assert _both(NgramIds(GOLDEN), _int32([]), _int32([0, 0]), _int32([[7, 8]])).shape == (0, 4)


def test_contradicting_extents_are_refused(raises):
    tables = (torch.ones(3, dtype=torch.int64), torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64))
    with raises("ngram_context: expected [R, n-1] = (1, 2); got (2, 2)"):
        ple_ngram_ids(_int32([1]), _int32([0, 1]), _int32([[1, 2], [3, 4]]), *tables, 9)
    with raises("at least one request"):
        ple_ngram_ids(_int32([1]), _int32([0]), torch.empty(0, 2, dtype=torch.int32), *tables, 9)


def test_tables_may_be_strided():
    """Every table is a column of a wider one, whose other column must not be read."""

    def column(values):
        return torch.stack([torch.tensor(values), torch.full((len(values),), 5)], 1)[:, 0]

    call = (_int32([3, 4, 5, 6]), _int32([0, 3, 4]), _int32([[1, 2], [7, 8]]))
    tables = ([3, 5, 7], [11, 13, 17, 19], [0, 11, 24, 41])
    expected = ple_ngram_ids(*call, *map(torch.tensor, tables), 99)
    with compat.interpreted():
        got = ple_ngram_ids(*call, *map(column, tables), 99)
    assert torch.equal(got, expected)
