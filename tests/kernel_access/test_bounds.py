"""Extents in argument names."""

import pytest

EXTENTS = {
    ("slot_passed", "idx_ptr"): "grid0*stride_idx + 1 - stride_idx",
    ("slot_unit", "state_ptr"): "stride_state*max(idx_ptr) + 16",
    ("masked_copy", "src_ptr"): "n",
    ("columns", "x_ptr"): "n_cols + grid0*stride_x - stride_x",
    ("boundaries", "x_ptr"): "stride_x*max(qsl_ptr) + 16 - stride_x",
    ("boundaries", "qsl_ptr"): "grid0 + 1",
    ("persistent", "x_ptr"): "rows*stride + 16 - stride",
    ("halves", "x_ptr"): "2*n",
    ("pages", "cache_ptr"): "stride_page*max(table_ptr) + 256",
    ("called", "x_ptr"): "n",
    ("shift_blocks", "state_ptr"): "n + stride_state*max(idx_ptr)",
}


def factors(extent):
    """Order of factors and terms does not matter."""
    terms = [t.strip("+ ") for t in extent.replace("- ", "+ -").split("+ ") if t.strip()]
    return sorted("*".join(sorted(t.split("*"))) for t in terms)


@pytest.mark.parametrize(("name", "arg"), EXTENTS)
def test_extent(summary, name, arg):
    assert factors(summary(name)[arg].extent) == factors(EXTENTS[name, arg])


@pytest.mark.parametrize("name", ["search", "search_linear", "search_lanes"])
def test_search_stays_within_its_first_bounds_by_invariants(summary, name):
    row = summary(name)["qsl_ptr"]
    assert row.extent == "num_reqs + 1" and row.verdict == "proved"


def test_invariants_do_not_hold_for_a_search_that_runs_away(summary):
    row = summary("search_runaway")["qsl_ptr"]
    assert (row.extent, row.verdict) == ("unknown", "unknown")
    assert "has no bound" in row.reasons[0]


def test_reads_and_writes_apart(summary):
    row = summary("moved_slots")["state_ptr"]
    assert "from_ptr" in row.extent_read and "to_ptr" not in row.extent_read
    assert "to_ptr" in row.extent_written and row.extent.startswith("max(")


def test_what_was_taken_for_granted_is_said(summary):
    assert "stride_idx >= 0" in summary("slot_passed")["idx_ptr"].takes
    assert "heads >= 1" in summary("divided")["x_ptr"].takes


def test_floor_of_what_may_be_negative_is_unknown(summary):
    assert summary("unbounded_floor")["x_ptr"].verdict == "unknown"


def test_stated_assumptions_bound_what_they_speak_of(summary):
    assert summary("assumed_bound")["x_ptr"].extent == "n"
