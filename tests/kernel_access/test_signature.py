"""Signatures of kernels with nothing around."""

import pytest

from capwise.kernel_access import guess_signature, summarize


def test_pointers_are_told_by_use(kernel):
    found = guess_signature(kernel("moved_slots")).signature
    assert found == {"state_ptr": "*fp32", "from_ptr": "*i32", "to_ptr": "*i32", "stride_state": "i32"}


def test_loaded_values_compared_with_an_index_are_integers(kernel):
    assert guess_signature(kernel("search")).signature["qsl_ptr"] == "*i32"


def test_pointers_without_a_telling_name(kernel):
    found = guess_signature(kernel("plain_names"))
    assert found.signature == {"a": "*fp32", "b": "*i32", "c": "*fp32", "n": "i32", "eps": "fp32"}


def test_pointers_handed_to_helpers(kernel):
    assert guess_signature(kernel("called")).signature["x_ptr"].startswith("*")


def test_pointer_tables_hold_64_bits(kernel):
    assert guess_signature(kernel("pointer_table")).signature["table_ptr"] == "*i64"


def test_constexprs_by_name_and_by_use(kernel):
    found = guess_signature(kernel("state_checked")).constexprs
    assert found["NULL"] == -1 and found["H"] & (found["H"] - 1) == 0


def test_unrolled_loops_are_guessed_short(kernel):
    assert guess_signature(kernel("unrolled_rows")).constexprs["N"] == 4


def test_annotations_are_believed(kernel):
    assert guess_signature(kernel("annotated")).signature == {"a": "*fp32", "n": "i64", "scale": "fp32"}


def test_guessed_is_marked_and_given_is_not(kernel, summary):
    found = summary("masked_copy")
    assert found.guessed
    assert not summarize(kernel("masked_copy"), found.signature, found.constexprs).guessed


def test_given_constexprs_are_kept(kernel):
    assert summarize(kernel("masked_copy"), constexprs={"B": 128}).constexprs["B"] == 128


def test_no_guess_that_compiles_is_unknown_and_no_crash(kernel):
    found = summarize(kernel("never_compiles"))
    assert found.guessed and found.unknown[0].startswith("does not compile with a guessed signature")
    assert {row.verdict for row in found.arguments} == {"unknown"}


@pytest.mark.parametrize("name", ["search", "pages", "nested"])
def test_first_guess_compiles(kernel, name):
    guess = guess_signature(kernel(name))
    assert summarize(kernel(name), guess.signature, guess.constexprs).accesses
