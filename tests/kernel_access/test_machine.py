"""Control flow: what runs under which condition, and offsets in closed form."""

import time

from capwise.kernel_access import summarize
from capwise.kernel_access.printing import text


def guards(summary, name, arg):
    return [[text(g) for g in a.guards] for a in summary(name)[arg].accesses]


def test_early_return_guards_all_that_follows(summary):
    assert guards(summary, "state_checked", "state_ptr") == [["idx_ptr[pid0] != -1"]]


def test_nested_return_guards_by_both_conditions_and_their_join(summary):
    assert guards(summary, "early_returns", "a_ptr") == [["pid0 < n"]]
    assert guards(summary, "early_returns", "b_ptr") == [["pid0 < n", "2 < a_ptr[pid0]"]]
    (joined,) = guards(summary, "state_two_ways", "state_ptr")
    assert joined == ["(0 <= idx_ptr[pid0]) or (flag_ptr[pid0] != 0)"]


def test_both_branches_rejoin_to_no_condition(summary):
    assert guards(summary, "either_base", "out_ptr") == [[]]
    assert guards(summary, "either_base", "a_ptr") == [["flag_ptr[pid0] <= 0"]]


def test_pointer_moved_in_nested_loops_has_a_closed_form(offsets, summary):
    (offset,) = offsets("nested", "x_ptr")
    assert "carried" not in offset and "n*trip" in offset and "5" not in offset.split("trip")[0]
    assert len(summary("nested")["x_ptr"].accesses[0].loops) == 2


def test_pointer_moved_in_a_while_loop_has_a_closed_form(offsets):
    (offset,) = offsets("walk", "x_ptr")
    assert "carried" not in offset and "16*trip" in offset


def test_block_pointers_are_followed(summary, block_pointers):
    row = summary("block_pointers")["x_ptr"]
    if block_pointers:
        assert "16*" in text(row.accesses[0].poly) and row.accesses[0].mask is not None
        assert row.exact and row.extent == "cols + rows*stride - stride"
    else:
        assert row.verdict == "unknown" and row.reasons


def test_functions_that_are_called_are_followed(summary):
    assert summary("called")["x_ptr"].verdict == "proved" and summary("called")["x_ptr"].exact


def test_unknowns_are_said_and_not_guessed(summary):
    for name, arg, why in (
        ("descriptor", "x_ptr", "tensor descriptor"),
        ("assembly", "x_ptr", "not followed"),
        ("own_memory", "out_ptr", "not followed"),
    ):
        row = summary(name)[arg]
        assert (row.verdict, row.extent if name != "own_memory" else "unknown") == ("unknown", "unknown"), name
        assert any(why in r for r in row.reasons), name
        assert summary(name).unknown, name


def test_memory_behind_a_pointer_table_belongs_to_no_argument(summary):
    found = summary("pointer_table")
    assert any("pointer read from memory" in u for u in found.unknown)
    assert [a.arg for a in found.accesses if a.reason] == [None]
    assert found["table_ptr"].verdict == "proved"


def test_index_made_from_floats_is_unknown(kernel):
    found = summarize(kernel("float_index"), {"x_ptr": "*fp32", "w_ptr": "*fp32", "out_ptr": "*fp32"}, {})
    assert found["x_ptr"].verdict == "unknown" and found["w_ptr"].verdict == "proved"


def test_long_chains_of_choices_end_in_time(kernel):
    started = time.process_time()
    found = summarize(kernel("unrolled_choices"))
    assert time.process_time() - started < 5
    assert found["out_ptr"].verdict == "proved" and found["qsl_ptr"].extent in ("unknown", "num_reqs")


def test_tensors_carried_round_a_loop(offsets):
    (offset,) = offsets("carried_lanes", "x_ptr")
    assert "3*trip" in offset and offset.count("carried") == 1 and "64*range1(16)" in offset


def test_inexact_conditions_are_not_called_exact(summary):
    row = summary("float_mask")["out_ptr"]
    assert row.verdict == "proved" and not row.exact
