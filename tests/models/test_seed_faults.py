"""The two seed faults on the tape: what a naive engine gets wrong, and that capwise does not."""

import dataclasses
from inspect import signature

import pytest
import torch

from capwise import Case, demo, testing, verify
from capwise.backend import check_case, programs_of
from capwise.models import demo_cases as cases
from capwise.models.qwen4_exp import PLE, Config, Request, build_batch, input_axes
from capwise.ops import contract as c


def test_s1_a_naive_engine_is_wrong_and_capwise_is_not():
    counted = {i: kind != "burst" for i, kind in enumerate(cases.s1_kinds())}
    unsafe = demo.replay(cases.s1(), True, counted)
    safe = demo.replay(cases.s1(), False, counted)
    assert unsafe.steps == safe.steps == 46
    assert unsafe.wrong_ids >= 50 and unsafe.wrong_steps >= 15
    assert not safe.wrong
    assert safe.plan() == {"pieces": 1, "seams": 0, "fills": 1, "copies": 0}


def test_s1_probes_before_and_after_a_burst():
    assert demo.probes_identical(cases.s1_before_after()) == {"of": 10, "unsafe": 0, "capwise": 10}


def test_s1_published_ids_and_their_stale_row():
    case = cases.s1_golden()
    assert demo.replay(case, False).outputs[1].tolist() == [list(row) for row in cases.GOLDEN_IDS]
    stale = demo.replay(case, True).outputs[1].tolist()
    assert stale[2] == list(cases.GOLDEN_STALE_ROW)
    assert stale[3] != list(cases.GOLDEN_IDS[3]) and stale[4] == list(cases.GOLDEN_IDS[4])


def test_s1_long_prompts_and_single_decodes_are_unchanged():
    for unsafe in (True, False):
        assert not demo.replay(cases.s1_controls(), unsafe).wrong_steps or unsafe
    safe, unsafe = (demo.replay(cases.s1_controls(), u) for u in (False, True))
    for step in (1, 3):
        assert torch.equal(safe.outputs[step], unsafe.outputs[step])


def test_s1_the_fill_is_last_and_the_codes_are_those_of_a_frozen_request_count():
    report = check_case(cases.s1_golden())
    assert report.codes() == {"CW101", "CW201"}
    assert {d.repair for d in report if d.code == "CW201"} == {"fill last"}
    assert not report.seams and all(d.severity == "note" for d in report)


def test_s1_negative_control_with_requests_in_the_key():
    case = cases.s1_golden()
    case.key = ("T", "R")
    report = check_case(case)
    assert not report.codes() & {"CW101", "CW201"}
    assert report.fills == 0
    assert verify(case).ok


def test_s1_filling_only_the_contexts_fails():
    """The contract that asks for the last boundary is what makes it right: with the contexts filled in its place, a
    stale boundary still finds a stale row."""
    op = torch.ops.capwise.ple_ngram_ids.default
    right = c.declared(op)
    requests = {
        "query_start_loc": dataclasses.replace(right.requests["query_start_loc"], tail=c.Any()),
        "ngram_context": dataclasses.replace(right.requests["ngram_context"], tail=c.Fill("eos")),
    }
    c.declare(op, dataclasses.replace(right, requests=requests))
    try:
        assert not verify(cases.s1_before_after(), poison=False).ok
    finally:
        c.declare(op, right)
    assert verify(cases.s1_before_after(), poison=False).ok


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_s2_our_kernel_honours_the_stride_and_copies_nothing(stride):
    case = cases.s2(stride, "ours", channels=96)
    outcome = demo.replay(case, False)
    assert not outcome.wrong
    assert outcome.plan() == {"pieces": 1, "seams": 0, "fills": 1, "copies": 0}
    assert "CW401" not in outcome.report.codes()


@pytest.mark.parametrize("stride", [2, 4])
def test_s2_the_unit_stride_kernel_gets_a_contiguous_copy(stride):
    case = cases.s2(stride, "unit", channels=96)
    unsafe, safe = demo.replay(case, True), demo.replay(case, False)
    assert unsafe.wrong_rows and unsafe.foreign_slots
    assert not safe.wrong
    assert safe.report.copies == 2
    assert [d.repair for d in safe.report if d.code == "CW401"] == ["contiguous copy"] * 2


def test_s2_one_kernel_of_two_repaired_still_raises_it_on_the_other():
    case = cases.s2_golden(4, "unit")
    op = torch.ops.footgun.unit_stride_short_conv.default
    right = c.declared(op)
    c.declare(op, dataclasses.replace(right, strides={}))
    try:
        found = {d.op for d in check_case(case) if d.code == "CW401"}
        assert found == {"footgun.unit_stride_short_conv_state_.default"}
        assert not verify(case).ok  # whoever says that the kernel honours strides is caught by execution
    finally:
        c.declare(op, right)


@pytest.mark.parametrize("make", [cases.s1_golden, lambda: cases.s2_golden(4, "ours")])
def test_split_makes_the_request_bound_ops_seams(make):
    result = verify(make(), repair="split")
    assert result.ok
    assert result.report.seams and all(s.op.startswith("capwise.ple_") for s in result.report.seams)


@pytest.mark.parametrize("make", [cases.s1_golden, lambda: cases.s2_golden(4, "ours")])
def test_without_any_contract_the_ops_are_found_from_the_symbols_of_their_arguments(make):
    with testing.withheld_contracts():
        result = verify(make())
    assert result.ok
    found = [d for d in result.report if d.code == "CW001"]
    assert {d.op for d in found} == {s.op for s in result.report.seams} and found
    assert all(any("symbol R" in note and "outside the key" in note for note in d.notes) for d in found)


def _ple_case():
    config = Config.tiny()
    words = [(7 * i + 3) % (config.vocab_size - 1) for i in range(64)]
    torch.manual_seed(0)
    model = PLE(config, 14)
    steps = [
        [Request(words, 0, 5, 1), Request(words, 3, 1, 5), Request(words, 9, 2, 9)],
        [Request(words, 5, 3, 1)],
        [Request(words, 8, 1, 1), Request(words, 11, 4, 9)],
    ]
    batches = []
    for step in steps:
        batch = build_batch(step, config, num_spec=3)
        tokens = batch["input_ids"].shape[0]
        batch["hidden"] = torch.randn(tokens, config.hc_count * config.hidden_size)
        batches.append({name: value for name, value in batch.items() if name in signature(model.forward).parameters})
    names = list(batches[0])
    return Case(model, batches, inputs=input_axes(config, 3, names), capacity={"R": 8, "T": 32}, name="PLE")


def test_the_whole_ple_path_is_one_piece_and_replay_sound():
    result = verify(_ple_case(), histories=2)
    assert result.ok, str(result)
    assert result.report.pieces == 1 and not result.report.seams


def test_row_local_ops_are_never_seams_even_without_contracts():
    with testing.withheld_contracts():
        (program,) = programs_of(_ple_case())
    seams = {s.op for s in program.report.seams}
    assert all(op.startswith("capwise.") for op in seams)


def test_the_demo_says_what_it_counts():
    group = {"unsafe": demo.Outcome(wrong_ids=3, wrong_steps=2), "capwise": demo.Outcome()}
    rows = {"unsafe": demo.Outcome(wrong_rows=1), "capwise": demo.Outcome()}
    result = demo.DemoResult(group, rows, rows, {"of": 2, "unsafe": 0, "capwise": 2})
    assert result.ok
    assert result.to_dict()["s1"]["unsafe"] == {"wrong_ids": 3, "wrong_steps": 2}
    assert set(result.to_dict()["s1"]["capwise"]) >= {"wrong_ids", "wrong_steps", "pieces", "seams", "fills"}
    group["capwise"].wrong_ids = 1
    assert not result.ok
