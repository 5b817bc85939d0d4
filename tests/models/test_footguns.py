"""The wrong programs run, trace in one graph, and can be copied."""

from __future__ import annotations

import copy

import pytest
import torch

from capwise.models.footguns import FOOTGUNS

CODES = {"CW001", "CW002", "CW101", "CW102", "CW103", "CW104", "CW201", "CW202", "CW204", "CW206", "CW303", "CW304"}
CODES |= {"CW401"}


def test_every_code_has_a_program():
    assert {f.code for f in FOOTGUNS.values()} == CODES


@pytest.mark.parametrize("name", FOOTGUNS)
def test_a_footgun_runs_eagerly_on_its_history(name):
    case = FOOTGUNS[name].case()
    model = copy.deepcopy(case.model)
    assert len(case.batches) >= 2
    for batch in case.batches:
        model(**batch)
    assert case.inputs.keys() == case.batches[0].keys()


@pytest.mark.parametrize("name", FOOTGUNS)
def test_a_footgun_traces_in_one_graph(name):
    case = FOOTGUNS[name].case()
    torch._dynamo.reset()
    graphs = []
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        compiled = torch.compile(case.model, backend=lambda g, _: graphs.append(g) or g.forward, fullgraph=True)
        compiled(**case.batches[0])
    torch._dynamo.reset()
    assert len(graphs) == 1


def test_two_cases_share_no_state():
    one, other = FOOTGUNS["write to slots"].case(), FOOTGUNS["write to slots"].case()
    one.model(**one.batches[0])
    assert not other.model.cache.any()
