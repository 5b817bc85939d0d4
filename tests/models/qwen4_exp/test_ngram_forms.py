"""N-gram ids in normal form: what needs requests is done once a step, and what is left is row-local to the analysis."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch
from torch import nn

import capwise
from capwise.backend import check_case, programs_of
from capwise.models import demo_cases
from capwise.models.qwen4_exp import PLE, Config, NgramIds, Request, build_batch, input_axes, serving_cases
from capwise.ops.contract import all_declared
from capwise.ops.samples import sample
from capwise.testing import open_op, opened_contracts, withheld_contracts

OPS = torch.ops.capwise
PREDECESSORS, HASH = "capwise.ple_predecessors.default", "capwise.ple_ngram_hash.default"


class Predecessors(nn.Module):
    def forward(self, input_ids, query_start_loc, ngram_context):
        return OPS.ple_predecessors(input_ids, query_start_loc, ngram_context, demo_cases.GOLDEN.eos_token_id)


class Hashed(NgramIds):
    def forward(self, input_ids, predecessors):
        return self.hashed(input_ids, predecessors)


class Normal(NgramIds):
    def forward(self, input_ids, query_start_loc, ngram_context):
        return self.hashed(input_ids, OPS.ple_predecessors(input_ids, query_start_loc, ngram_context, self.eos))


def _predecessors(batch: Mapping[str, torch.Tensor], config: Config) -> torch.Tensor:
    names = ("input_ids", "query_start_loc", "ngram_context")
    return OPS.ple_predecessors(*[batch[name] for name in names], config.eos_token_id)


def _bound(model: nn.Module) -> capwise.Case:
    """The seed fault's history, in another model: eight requests, then one of five tokens."""
    return dataclasses.replace(demo_cases.s1_golden(), model=model)


def _staged() -> capwise.Case:
    """The same with predecessors in place of boundaries and contexts: one more input by token."""
    case, config = _bound(Hashed(demo_cases.GOLDEN)), demo_cases.GOLDEN
    batches = [{"input_ids": b["input_ids"], "predecessors": _predecessors(b, config)} for b in case.batches]
    axes = input_axes(config, names=("input_ids", "predecessors"))
    return dataclasses.replace(case, batches=batches, inputs=axes, capacity={"T": 256})


@pytest.mark.parametrize("repair", ("auto", "split", "none"))
def test_the_hash_of_staged_predecessors_needs_no_repair(repair):
    """Row-local under the tokens alone: nothing is filled, said or cut, and even a naive replay is right."""
    case = _staged()
    assert case.inputs == {"input_ids": ("T",), "predecessors": ("T", 2)}
    result = capwise.verify(case, unsafe=repair == "none", **({} if repair == "none" else {"repair": repair}))
    assert result.ok, str(result)
    report = result.report
    assert (report.pieces, report.seams, report.fills, report.copies) == (1, [], 0, 0)
    assert not list(report)
    (program,) = programs_of(case)
    assert HASH in {str(node.target) for one in program.steps for node in one.module.graph.nodes}


def test_without_its_contract_the_hash_is_unknown_and_still_no_requests_reach_it():
    with withheld_contracts():
        report = check_case(_staged())
    (found,) = [d for d in report if d.code == "CW001"]
    assert found.op == HASH and not any("outside the key" in note for note in found.notes)


def test_read_off_its_kernel_the_hash_is_row_local():
    """Nobody's word but the kernel's: no argument by request, and again nothing to repair."""
    op, named = OPS.ple_ngram_hash.default, {"input_ids": ("T",), "predecessors": ("T", None)}
    calls = [((), sample("ple_ngram_hash", lengths)) for lengths in ([12, 3, 5], [16, 4, 1, 9, 2], [9, 1])]
    with withheld_contracts():
        opened = open_op(op, calls, named)
        assert opened.contract is not None, opened.reasons
        assert opened.contract.locality == all_declared()[op].locality == "row" and not opened.contract.requests
        with opened_contracts({op: opened.contract}):
            report = check_case(_staged())
    assert not list(report) and (report.pieces, report.seams, report.fills) == (1, [], 0)


def test_the_predecessors_are_what_needs_the_fill():
    report = check_case(_bound(Predecessors()))
    assert report.codes() == {"CW101", "CW201"} and {d.op for d in report} == {PREDECESSORS}
    assert {d.repair for d in report if d.code == "CW201"} == {"fill last"}
    assert report.fills == 1 and not report.seams
    assert capwise.verify(_bound(Predecessors())).ok
    assert not capwise.verify(_bound(Predecessors()), unsafe=True).ok


@pytest.mark.parametrize("repair", ("auto", "split"))
def test_in_one_program_only_the_predecessors_are_at_fault(repair):
    """Published ids; what is cut where nothing may be filled is the first op alone."""
    result = capwise.verify(_bound(Normal(demo_cases.GOLDEN)), repair=repair)
    assert result.ok, str(result)
    assert {d.op for d in result.report} == {PREDECESSORS}
    assert [seam.op for seam in result.report.seams] == ([PREDECESSORS] if repair == "split" else [])
    case = _bound(Normal(demo_cases.GOLDEN))
    assert case.model(**case.batches[1]).tolist() == [list(row) for row in demo_cases.GOLDEN_IDS]


# ------------------------------------------------------------------------------------------------------ in the models
def _ple_case(staged: bool) -> capwise.Case:
    config = Config.tiny()
    words = [(7 * i + 3) % (config.vocab_size - 1) for i in range(64)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PLE(config, 14)
    steps = (
        [Request(words, 0, 5, 1), Request(words, 3, 1, 5), Request(words, 9, 2, 9)],
        [Request(words, 5, 3, 1)],
    )
    batches = []
    for step in steps:
        tokens = sum(request.length for request in step)
        hidden = torch.randn(tokens, config.width, generator=torch.Generator().manual_seed(tokens))
        batch = build_batch(step, config, 3, hidden)
        batches.append({**batch, "predecessors": _predecessors(batch, config)} if staged else batch)
    axes = input_axes(config, 3, list(batches[0]))
    return capwise.Case(model, batches, inputs=axes, capacity={"R": 8, "T": 32}, name="PLE")


def test_a_layer_with_staged_predecessors_reads_no_context():
    """Bitwise what the raw form gives; whatever stands in the contexts; what is said is of the convolution alone."""
    raw, staged = _ple_case(False), _ple_case(True)
    for batch, right in zip(staged.batches, raw.batches):
        batch["ngram_context"] = batch["ngram_context"] + 1
        assert torch.equal(staged.model(**batch), raw.model(**right))
    result = capwise.verify(_ple_case(True), adversaries=["poison"])
    assert result.ok and not result.report.seams, str(result)
    assert {d.op.split(".")[1] for d in result.report} == {"ple_short_conv", "ple_short_conv_state_"}
    assert "capwise.ple_ngram_ids.default" in {d.op for d in check_case(raw)}


def test_the_decoder_takes_predecessors():
    """Every step the same bits, with contexts that nobody may read; and other predecessors give something else."""
    raw, normal, wrong = (serving_cases.model() for _ in range(3))
    with torch.no_grad():
        for step in serving_cases.steps(4):
            before = _predecessors(step.batch, serving_cases.TINY)
            unread = {**step.batch, "ngram_context": step.batch["ngram_context"] + 1}
            right = raw(**step.batch)
            assert all(map(torch.equal, normal(**unread, predecessors=before), right))
            assert not torch.equal(wrong(**step.batch, predecessors=before + 1)[1], right[1])
