"""N-gram ids: published numbers, kernels against references, and the normal form against the raw one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.models.demo_cases import GOLDEN, GOLDEN_IDS, GOLDEN_STALE_ROW
from capwise.models.qwen4_exp import Config, NgramIds
from capwise.ops.ngram_ids import ple_ngram_hash, ple_ngram_ids
from capwise.ops.predecessors import ple_predecessors
from capwise.ops.search import request_rows


def _int32(values):
    return torch.tensor(values, dtype=torch.int32)


def _both(module, *args):
    reference = module(*args)
    with compat.interpreted():
        kernel = module(*args)
    assert torch.equal(reference, kernel)
    return reference


def _normal(module, ids, starts, context):
    return module.hashed(ids, ple_predecessors(ids, starts, context, module.eos))


def test_published_ids():
    ids = _both(NgramIds(GOLDEN), _int32([11, 12, 13, 99, 15]), _int32([0, 5]), _int32([[7, 8]]))
    assert ids.tolist() == [list(row) for row in GOLDEN_IDS]
    assert NgramIds(GOLDEN).hashed(_int32([11, 15]), torch.tensor([[8, 7], [99, 99]])).tolist() == ids[[0, 4]].tolist()


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


@pytest.mark.parametrize("kernel", (False, True), ids=("reference", "kernel"))
@settings(max_examples=20, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), pad=st.sampled_from(((0, 0), (3, 2))))
def test_the_normal_form_gives_the_same_bits(kernel, seed, pad, step, strided, junk):
    """Any strides, tails of noise, eos anywhere, predecessors of either type; one boundary list in four is garbage."""
    batch, generator = step(seed), torch.Generator().manual_seed(seed)
    ids = torch.randint(90, 100, (batch.tokens,), generator=generator, dtype=(torch.int32, torch.int64)[seed % 2])
    context = torch.randint(90, 100, (batch.requests, 2), generator=generator, dtype=torch.int32)
    starts = torch.cat([batch.starts, batch.starts[-1:].expand(pad[1])])
    if seed % 4 == 0:
        starts[1:] = junk(starts[1:], seed)
    ids, context = (torch.cat([t, junk(t.new_empty((n, *t.shape[1:])), seed)]) for t, n in zip((ids, context), pad))
    module, args = NgramIds(GOLDEN), [strided(t, seed + i) for i, t in enumerate((ids, starts, context))]
    right = module(*args)
    with compat.interpreted() if kernel else torch.no_grad():
        before = ple_predecessors(*args, module.eos).to((torch.int64, torch.int32)[seed // 2 % 2])
        assert torch.equal(module.hashed(args[0], strided(before, seed + 9)), right)


WILD = torch.tensor([-5, 2**62 + 3, -(2**63), 2**63 - 1, 2**40])


@pytest.mark.parametrize("form", (NgramIds.forward, _normal), ids=("raw", "normal"))
def test_ids_lie_in_the_table_whatever_the_tokens_are(form):
    """Products overflow and turn negative: the remainder is the floor's."""
    module = NgramIds(GOLDEN)
    ids = _both(lambda *a: form(module, *a), WILD, _int32([0, 5]), _int32([[-1, -(2**31)]]))
    assert bool((ids >= 0).all()) and bool((ids < GOLDEN.table_rows()).all())


@pytest.mark.parametrize("form", (NgramIds.forward, _normal), ids=("raw", "normal"))
def test_no_tokens(form):
    module = NgramIds(GOLDEN)
    assert _both(lambda *a: form(module, *a), _int32([]), _int32([0, 0]), _int32([[7, 8]])).shape == (0, 4)


def test_a_row_of_the_hash_is_its_own():
    """Every row changes but one; a row alone gives what it gives among others."""
    module, generator = NgramIds(GOLDEN), torch.Generator().manual_seed(0)
    ids, before = (torch.randint(0, 100, (9, *more), generator=generator) for more in ((), (2,)))
    whole = _both(module.hashed, ids, before)
    for row in range(9):
        assert torch.equal(_both(module.hashed, ids[row : row + 1], before[row : row + 1]), whole[row : row + 1])
        others = torch.arange(9) != row
        assert torch.equal(_both(module.hashed, ids + 7 * others, before - 5 * others[:, None])[row], whole[row])


def test_contradicting_extents_are_refused(raises):
    tables = (torch.ones(3, dtype=torch.int64), torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64))
    with raises("ngram_context: expected [R, n-1] = (1, 2); got (2, 2)"):
        ple_ngram_ids(_int32([1]), _int32([0, 1]), _int32([[1, 2], [3, 4]]), *tables, 9)
    with raises("at least one request"):
        ple_ngram_ids(_int32([1]), _int32([0]), torch.empty(0, 2, dtype=torch.int32), *tables, 9)
    with raises("ple_ngram_hash: predecessors: expected [T, n-1] = (1, 2); got (2, 2)"):
        ple_ngram_hash(_int32([1]), _int32([[1, 2], [3, 4]]), *tables)
    with raises("ple_ngram_hash: predecessors: expected [T, n-1] = (1, 2); got (1, 3)"):
        ple_ngram_hash(_int32([1]), _int32([[1, 2, 3]]), *tables)
    with raises("ple_ngram_hash: input_ids: expected [T]; got (1, 1)"):
        ple_ngram_hash(_int32([[1]]), _int32([[1, 2]]), *tables)
    with raises("ple_ngram_hash: expected n >= 2 multipliers and a multiple of n-1 sizes and offsets; got 3 "):
        ple_ngram_hash(_int32([1]), _int32([[1, 2]]), *tables[:2], tables[2][:3])


def test_tables_may_be_strided():
    """Every table is a column of a wider one, whose other column must not be read."""

    def column(values):
        return torch.stack([torch.tensor(values), torch.full((len(values),), 5)], 1)[:, 0]

    call = (_int32([3, 4, 5, 6]), _int32([0, 3, 4]), _int32([[1, 2], [7, 8]]))
    tables = ([3, 5, 7], [11, 13, 17, 19], [0, 11, 24, 41])
    expected = ple_ngram_ids(*call, *map(torch.tensor, tables), 99)
    with compat.interpreted():
        got = ple_ngram_ids(*call, *map(column, tables), 99)
        hashed = ple_ngram_hash(call[0], ple_predecessors(*call, 99), *map(column, tables))
    assert torch.equal(got, expected) and torch.equal(hashed, expected)
