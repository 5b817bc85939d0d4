"""Tail values under which a padded program harms nothing."""

import pytest
import triton
import triton.language as tl

from capwise.kernel_access import prove_sentinel, summarize


def verdict(summary, name, **tails):
    return prove_sentinel(summary(name), tails).verdict


def test_null_slot_behind_a_check_is_a_no_op(summary):
    proof = prove_sentinel(summary("state_checked"), {"idx_ptr": -1})
    assert proof.verdict == "proved" and proof.path == ("state_ptr at line 79: not reached",)


def test_any_other_slot_is_written_and_the_path_says_where(summary):
    proof = prove_sentinel(summary("state_checked"), {"idx_ptr": 0})
    assert proof.verdict == "refuted" and "state_ptr at line 79" in proof.path[0]


@pytest.mark.parametrize("value", [-1, 0, 5])
def test_without_a_check_no_value_is_harmless(summary, value):
    assert verdict(summary, "state_unchecked", idx_ptr=value) == "refuted"


def test_null_value_is_the_one_checked_for(summary):
    assert verdict(summary, "state_masked", idx_ptr=-1) == "proved"
    assert verdict(summary, "state_masked", idx_ptr=0) == "refuted"


def test_check_on_one_of_two_ways_is_refuted_on_the_other(summary):
    assert verdict(summary, "state_two_ways", idx_ptr=-1) != "proved"
    assert verdict(summary, "state_two_ways", idx_ptr=-1, flag_ptr=0) == "proved"
    assert verdict(summary, "state_two_ways", idx_ptr=-1, flag_ptr=1) == "refuted"


def test_equal_boundaries_leave_a_loop_empty(summary):
    assert verdict(summary, "boundaries", qsl_ptr="last") == "proved"
    assert prove_sentinel(summary("boundaries"), {}).verdict == "refuted"


def test_slot_mapping_of_minus_one_stores_nothing(summary):
    assert verdict(summary, "scatter", slot_ptr=-1) == "proved"
    assert verdict(summary, "scatter", slot_ptr=0) == "refuted"


def test_rows_of_the_padded_program_are_its_own_unless_said_otherwise(summary):
    assert prove_sentinel(summary("slot_passed"), {"idx_ptr": 0}).verdict == "proved"
    assert prove_sentinel(summary("state_by_program"), {"len_ptr": 3}, own=("state_ptr",)).verdict == "refuted"
    assert prove_sentinel(summary("state_by_program"), {"len_ptr": 0}, own=("state_ptr",)).verdict == "proved"


def test_default_of_a_masked_load_stays_possible(summary):
    assert verdict(summary, "tail_masked_load", idx_ptr=-1) != "proved"


def test_zero_length_leaves_a_while_loop_empty(summary):
    assert verdict(summary, "until_length", len_ptr=0) == "proved"
    assert verdict(summary, "until_length", len_ptr=2) == "refuted"


def test_what_is_not_followed_is_unknown(summary):
    assert verdict(summary, "float_slot", w_ptr=0) == "unknown"


def test_an_argument_that_is_not_there_is_an_error(summary):
    with pytest.raises(KeyError, match="nothing"):
        prove_sentinel(summary("search"), {"nothing": 0})


def test_what_a_search_reads_may_be_live(summary):
    assert verdict(summary, "search_and_store", qsl_ptr="last") != "proved"


def test_rows_named_by_another_program_id_are_shared(summary):
    assert verdict(summary, "shared_by_heads", idx_ptr=-1) == "refuted"


@triton.jit
def paged(slots_ptr, cache_ptr, page_size, stride, ABOVE: tl.constexpr):
    page = tl.load(slots_ptr + tl.program_id(0)) // page_size
    if page > ABOVE:
        tl.store(cache_ptr + page.to(tl.int64) * stride, 1.0)


@pytest.mark.parametrize("above, verdict", [(0, "proved"), (-2, "refuted")])
def test_a_negative_slot_is_on_no_page_above_the_null_page(above, verdict):
    """Quotients round towards zero: -1 // page_size is 0 or, for pages of one, -1."""
    signature = {"slots_ptr": "*i32", "cache_ptr": "*fp32", "page_size": "i32", "stride": "i32"}
    found = summarize(paged, signature, {"ABOVE": above})
    assert prove_sentinel(found, {"slots_ptr": -1}, ("cache_ptr",)).verdict == verdict
