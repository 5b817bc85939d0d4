"""Known answers: each fault fires on the kernel that has it and not on its repaired twin."""

import pytest


def codes(summary, name):
    return {h.code for row in summary(name).arguments for h in row.hazards}


def test_slot_loaded_by_program_id_alone_assumes_unit_stride(hazards):
    found = hazards("slot_unit", "idx_ptr")
    assert found["CW401"].verdict == "assumed"
    assert found["CW401"].needs == "idx_ptr has stride 1 along pid0"
    assert found["CW401"].line == 10


def test_slot_loaded_with_its_stride_passed_is_clean(summary):
    assert codes(summary, "slot_passed") == set()


def test_one_of_two_arguments_repaired_leaves_the_other(hazards):
    assert "CW401" in hazards("state_masked", "idx_ptr")
    assert "CW401" not in hazards("state_masked", "x_ptr")


def test_flat_tile_bounded_by_a_mask_assumes_unit_stride(hazards):
    assert "CW401" in hazards("masked_copy", "src_ptr")


def test_columns_of_a_row_do_not_count_as_rows(summary):
    assert not summary("columns")["x_ptr"].hazards


@pytest.mark.parametrize("name", ["search", "search_linear", "search_lanes"])
def test_boundary_search_is_frozen_at_the_request_count_and_wants_fill_last(hazards, name):
    found = hazards(name, "qsl_ptr")
    assert "num_reqs in the key" in found["CW101"].needs and found["CW101"].needs.endswith("last")
    assert found["CW201"].needs.startswith("fill last")
    assert {found["CW101"].verdict, found["CW201"].verdict} == {"assumed"}


def test_neighbouring_boundaries_want_fill_last_without_any_scalar(hazards):
    found = hazards("boundaries", "qsl_ptr")
    assert found["CW201"].needs.startswith("fill last") and "CW101" not in found


def test_lengths_want_fill_0(hazards):
    assert hazards("pages", "len_ptr")["CW201"].needs.startswith("fill 0")


def test_rows_counted_by_a_scalar_are_frozen(hazards):
    assert hazards("masked_copy", "src_ptr")["CW101"].needs.startswith("n in the key")
    assert "CW101" not in hazards("columns", "x_ptr")


def test_rows_summed_up_to_a_scalar_need_a_neutral_tail(hazards):
    assert "neutral fill" in hazards("halves", "x_ptr")["CW201"].needs


def test_state_written_without_null_check(hazards, summary):
    assert hazards("state_unchecked", "state_ptr")["CW204"].needs.startswith("a null check on idx_ptr")
    assert summary("state_unchecked")["state_ptr"].nulls == {"idx_ptr": ()}


@pytest.mark.parametrize("name", ["state_checked", "state_masked"])
def test_state_written_behind_a_null_check_is_clean(hazards, summary, name):
    assert "CW204" not in hazards(name, "state_ptr")
    assert summary(name)["state_ptr"].nulls == {"idx_ptr": (-1,)}


def test_null_check_on_one_of_two_ways_is_none(hazards):
    assert "CW204" in hazards("state_two_ways", "state_ptr")


def test_atomic_scatter_counts_as_a_write(hazards):
    assert "CW204" in hazards("counted", "count_ptr")


def test_slot_times_row_in_32_bits_needs_a_bound(hazards):
    found = hazards("rows_32", "x_ptr")["CW403"]
    assert (found.verdict, found.needs) == ("assumed", "stride_x*max(idx_ptr) < 2**31")


def test_product_widened_too_late_still_needs_a_bound(hazards):
    assert hazards("rows_32_late", "x_ptr")["CW403"].needs == "16*max(idx_ptr) < 2**31"


def test_offsets_in_64_bits_need_none(hazards, summary):
    assert "CW403" not in hazards("slot_unit", "state_ptr")
    assert [a.width for a in summary("slot_unit")["state_ptr"].accesses] == [64]
    assert [a.width for a in summary("rows_32")["x_ptr"].accesses] == [32]


def test_a_tile_below_its_32_bit_limit_needs_no_bound(hazards):
    assert "CW403" not in hazards("masked_copy", "src_ptr")


def test_everything_about_the_caller_is_assumed_and_says_what_it_needs(kernel, summary):
    for name in ("slot_unit", "search", "boundaries", "state_unchecked", "rows_32", "masked_copy", "pages"):
        found = [h for row in summary(name).arguments for h in row.hazards]
        assert found and all(h.verdict == "assumed" and h.needs for h in found), name
    assert summary("slot_unit").guessed


def test_constant_row_strides_and_distinct_slots_are_kept_as_taken_for_granted(summary):
    assert "row stride of out_ptr along pid0 is 16" in summary("rows_32")["out_ptr"].takes
    assert "slots in idx_ptr are distinct" in summary("state_checked")["state_ptr"].takes
