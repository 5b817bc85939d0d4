"""The order of passes is a checked fact, and each leaves its text and time."""

from __future__ import annotations

import inspect
import re

import pytest

from capwise.compilation import CompilerPass
from capwise.pipeline import analysis, check_order, pipeline, planning, repair
from capwise.report import RULES


def test_the_pipeline_is_in_order():
    check_order(pipeline())
    assert pipeline() == [*analysis(), *repair(), *planning()]


@pytest.mark.parametrize("left_out", range(len(pipeline())))
def test_a_pass_that_is_left_out_is_missed(left_out):
    """By the first pass that needs what only it had given by then; a second run of a pass is missed by nobody."""
    passes = pipeline()
    gone = passes.pop(left_out)
    if gone is not pipeline()[-1] and (gone not in passes or left_out < passes.index(gone)):
        with pytest.raises(ValueError, match=r"pass '\w+' needs '\w+', which no earlier pass gives"):
            check_order(passes)
    else:
        check_order(passes)


def test_the_error_names_the_pass_and_the_fact():
    class Late(CompilerPass):
        name, needs = "late", ("nothing",)

    with pytest.raises(ValueError, match="pass 'late' needs 'nothing', which no earlier pass gives"):
        check_order([*pipeline(), Late])


def test_a_wrong_order_is_refused():
    with pytest.raises(ValueError):
        check_order(list(reversed(pipeline())))


@pytest.mark.parametrize("one", sorted(set(pipeline()), key=lambda p: p.name), ids=lambda p: p.name)
def test_a_pass_is_described(one):
    assert re.fullmatch(r"[a-z_]+", one.name) and set(one.codes) <= set(RULES)
    assert re.search(r"\biff\b", inspect.getdoc(one)), f"{one.name}: the docstring states the condition"
    assert one.__module__ == f"capwise.passes.{one.name}"


def test_each_pass_leaves_its_text_and_its_time(make_case, program_of):
    program = program_of(make_case(lambda x: x - x.sum(0)))
    names = [one.name for one in pipeline()]
    assert [name for name, _ in program.report.timings] == names and set(program.texts) == set(names)
    for name in names:
        head = program.text(after=name).splitlines()[0]
        assert re.fullmatch(rf"# after {name} \(\d+\.\d ms\)", head)
    with pytest.raises(KeyError, match="after: expected one of host_inputs, annotate, provenance.*got 'fills'"):
        program.text(after="fills")


def test_the_graph_is_valid_after_each_pass(make_case, program_of, monkeypatch):
    seen = []
    call = CompilerPass.call

    def spy(self, module):
        result = call(self, module)
        module.graph.lint()
        seen.append(self.name)
        return result

    monkeypatch.setattr(CompilerPass, "call", spy)
    import torch

    program_of(make_case(lambda x: (x - torch.exp(x).sum(0)) * x.shape[0] + x.flip(0)))
    assert seen == [one.name for one in pipeline()]


def test_a_pass_that_says_nothing_of_its_work_fails():
    with pytest.raises(NotImplementedError, match="CompilerPass"):
        CompilerPass(None).run(None)
