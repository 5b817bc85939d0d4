"""Reads and writes of one buffer in one launch."""

import pytest


@pytest.mark.parametrize("name", ["shift_alone", "shift_blocks", "shift_by_passed"])
def test_in_place_shift_is_refuted_with_one_program_a_slot_and_with_several(hazards, name):
    found = hazards(name, "state_ptr")["CW304"]
    assert found.verdict == "refuted"
    assert "a lane reads" in found.needs and "1 after it" in found.needs


def test_barrier_orders_one_program(hazards):
    assert "CW304" not in hazards("shift_barrier", "state_ptr")


def test_barrier_does_not_order_two_programs(hazards):
    found = hazards("shift_blocks_barrier", "state_ptr")["CW304"]
    assert found.verdict == "refuted" and found.needs.startswith("a program reads")


def test_same_lane_reads_what_it_writes(hazards):
    assert "CW304" not in hazards("in_place", "x_ptr")


def test_disjoint_halves_are_proved_disjoint(hazards):
    assert "CW304" not in hazards("halves", "x_ptr")


def test_two_slots_may_be_one(hazards):
    found = hazards("moved_slots", "state_ptr")["CW304"]
    assert found.verdict == "assumed" and "disjoint" in found.needs


def test_one_cell_shared_by_all_programs(hazards):
    assert "single program" in hazards("shared_cell", "x_ptr")["CW304"].needs
