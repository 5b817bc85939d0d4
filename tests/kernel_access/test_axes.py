"""What an argument is indexed by, with which stride, and what its contents are for."""

import pytest


def axes(summary, name, arg):
    return {(a.by, a.stride) for a in summary(name)[arg].axes}


def test_by_program_with_unit_and_with_passed_stride(summary):
    assert axes(summary, "slot_unit", "idx_ptr") == {("pid0", "unit")}
    assert axes(summary, "slot_passed", "idx_ptr") == {("pid0", "passed:stride_idx")}


def test_by_loaded_value(summary):
    assert axes(summary, "slot_unit", "state_ptr") == {("load:idx_ptr", "passed:stride_state"), ("range", "unit")}


def test_loop_from_a_loaded_value_is_the_same_axis(summary):
    assert axes(summary, "boundaries", "x_ptr") == {("load:qsl_ptr", "passed:stride_x"), ("range", "unit")}


def test_loop_from_a_program_id_is_the_same_axis(summary):
    assert axes(summary, "persistent", "x_ptr") == {("pid0", "passed:stride"), ("range", "unit")}


def test_constant_stride(summary):
    assert ("load:idx_ptr", "constant:16") in axes(summary, "rows_32_late", "x_ptr")


def test_tile_of_rows_takes_the_stride_of_one_row(summary):
    assert axes(summary, "state_masked", "x_ptr") == {
        ("pid0", "passed:stride_x"), ("range", "passed:stride_x"), ("range", "unit")}  # fmt: skip
    assert axes(summary, "masked_copy", "src_ptr") == {("pid0", "unit"), ("range", "unit")}


def test_a_condition_that_chooses_is_no_index(summary):
    assert {by for by, _ in axes(summary, "either_base", "a_ptr")} == {"pid0"}


def test_quotient_and_remainder_of_a_program_id(summary):
    assert ("pid0", "passed:stride") in axes(summary, "divided", "x_ptr")


@pytest.mark.parametrize(
    ("name", "arg", "role"),
    [
        ("search", "qsl_ptr", "boundary"),
        ("search_linear", "qsl_ptr", "boundary"),
        ("boundaries", "qsl_ptr", "boundary"),
        ("pages", "len_ptr", "length"),
        ("pages", "table_ptr", "slot"),
        ("state_checked", "idx_ptr", "slot"),
        ("masked_copy", "src_ptr", None),
        ("state_two_ways", "flag_ptr", None),
    ],
)
def test_roles(summary, name, arg, role):
    assert summary(name)[arg].role == role
