"""The whole decoder compiled: one piece, no seam, and replay equal to eager on every step."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

import capwise
from capwise.backend import CompiledModel, case_options
from capwise.models.qwen4_exp import opaque, serving_cases
from capwise.ops.contract import Contract, Rows, declare


@pytest.fixture
def bodies(monkeypatch):
    """Ops run by their torch bodies on the tape too: what is recorded is many times cheaper to replay than kernels in
    the interpreter, which have tests of their own."""
    monkeypatch.setattr("capwise.ops.launch.triton", None)


def test_a_mixed_history_replays_as_eager_runs_it(bodies):
    steps = serving_cases.steps(14)
    kinds = {kind for step in steps for kind in step.kinds}
    assert {"prefill", "extend", "decode", "verify0", "verify1", "verify2", "idle"} <= kinds
    result = capwise.verify(serving_cases.decoder(14), adversaries=["poison"])
    assert result.ok and result.steps == 14 and not result.misses, str(result)
    report = result.report
    assert (report.pieces, report.seams, report.copies) == (1, [], 0)
    assert {d.severity for d in report} == {"note"}
    assert {d.code for d in report} <= {"CW101", "CW201", "CW204", "CW206"}
    fills = {d.repair for d in report if d.code != "CW101"}
    assert fills <= {"fill last", "fill 0", "null slot fill"}, fills


def test_kernels_on_the_tape():
    assert capwise.verify(serving_cases.decoder(1), adversaries=[]).ok


# ----------------------------------------------------------------------------------------- prefill by another library
def test_prefill_by_another_library_is_a_seam_a_linear_layer(bodies, fla):
    result = capwise.verify(serving_cases.decoder(3, prefill="fla"), adversaries=[])
    assert result.ok and result.steps == 3 and not result.misses, str(result)
    assert {(s.op, s.code) for s in result.report.seams} == {("capwise.gdn_chunked_.default", "CW002")}
    assert result.report.pieces == 1 + serving_cases.TINY.layer_types.count("linear_attention")


def test_prefill_by_another_library_needs_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    assert serving_cases.model().layers[0].mixer.prefill is None
    with pytest.raises(ImportError, match=r"expected flash-linear-attention; .* pip install 'capwise\[fla\]'"):
        serving_cases.model(prefill="fla")
    with pytest.raises(ValueError, match="prefill: expected None or 'fla'; got 'flash'"):
        serving_cases.model(prefill="flash")


# ---------------------------------------------------------------------------------------------------- closed kernels
def _vendor_ops():
    return {name: getattr(torch.ops.vendor, name.split(".")[1]).default for name in opaque.HOLDS}


def _engine(steps, **options):
    """The opaque decoder beside the open one, over the same steps: largest differences, and the compiled model."""
    right = serving_cases.model()
    model = opaque.OpaqueDecoder(copy.deepcopy(right), serving_cases.REQUESTS)
    case = capwise.Case(
        model, [{"input_ids": s.batch["input_ids"]} for s in steps], {"input_ids": ("T",)},
        {"T": serving_cases.TOKENS}, ("T",), {"capture_sizes": (4, serving_cases.TOKENS)},
    )  # fmt: skip
    run = CompiledModel(model, case_options(case, capture="tape", lower="eager", **options))
    far = []
    for step in steps:
        with torch.no_grad():
            want, streams = right(**step.batch)
        with opaque.forward_context(model, step.batch):
            got, mine = run(step.batch["input_ids"])
        far.append(max(float((want - got[: want.shape[0]]).abs().max()), float((streams - mine).abs().max())))
    return far, run


def test_closed_kernels_become_seams_by_themselves(bodies):
    far, run = _engine(serving_cases.steps(4))
    assert max(far) < 1e-4
    assert {seam.op for seam in run.report.seams} == set(opaque.HOLDS)
    # Three linear layers, n-grams with their convolution, attention, the rows of the head: each cuts once.
    (program,) = run.programs
    nodes = [n for one in program.steps if one.kind == "seam" for n in one.module.graph.nodes]
    eager = [str(n.target) for n in nodes if str(n.target).startswith("vendor")]
    assert sorted(eager) == sorted([*opaque.HOLDS, *["vendor.gdn_attention_core.default"] * 2])


def test_the_shipped_case_of_closed_ops_replays_as_eager_runs_it(bodies):
    assert [case.name for case in serving_cases.cases()] == ["Qwen4Exp decoder", "Qwen4Exp decoder, closed ops"]
    result = capwise.verify(serving_cases.closed(4), adversaries=["poison"])
    assert result.ok and result.steps == 4, str(result)
    assert {seam.op for seam in result.report.seams} == {*opaque.HOLDS, "vendor.begin_step.default"}


def test_a_contract_that_takes_their_signature_at_its_word_is_not_believed(monkeypatch):
    """Every tensor argument is [T, ...]: declared row-local, as an engine's list that forgets them has it."""
    from capwise.ops import contract as contracts

    for op in _vendor_ops().values():
        monkeypatch.delitem(contracts._DECLARED, op, raising=False)
        tensors = [a.name for a in op._schema.arguments if str(a.type) == "Tensor"]
        rows = {name: Rows("T") for name in tensors} | {"out": Rows("T", write=True)}
        named = {n: v for n, v in rows.items() if n in tensors or op._schema.returns}
        monkeypatch.setitem(contracts._DECLARED, op, None)
        declare(op, Contract(rows=named, locality="row"))
    model = opaque.OpaqueDecoder(serving_cases.model(), serving_cases.REQUESTS)
    batch = {"input_ids": serving_cases.steps(1)[0].batch["input_ids"]}
    report = capwise.check(model, batch, inputs={"input_ids": ("T",)}, capacity={"T": 16})
    assert {(seam.op, seam.code) for seam in report.seams} == {(name, "CW003") for name in opaque.HOLDS}


def test_a_vendor_op_without_an_engine_says_so(monkeypatch):
    monkeypatch.setattr(opaque, "_stack", [])
    with pytest.raises(RuntimeError, match="vendor ops: expected a forward context around the step; got none"):
        torch.ops.vendor.ple_ngram_ids(torch.zeros(1, dtype=torch.int32), 4, "layers.1.ple.ids")
