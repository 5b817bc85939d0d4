"""The seed faults through real device graphs. Run where a GPU is: pytest tests/gpu -m gpu"""

import copy
import json
from pathlib import Path

import pytest
import torch

from capwise import demo
from capwise.backend import CompiledModel, case_options
from capwise.models import demo_cases as cases
from capwise.verify import moved

pytestmark = pytest.mark.gpu
VERDICTS = Path(__file__).parent / "tape_verdicts.json"


def _on_device(batch):
    return {k: moved(v, torch.device("cuda")) for k, v in batch.items()}


def test_s1_probes_are_identical_before_and_after_a_burst_only_with_capwise():
    found = demo.probes_identical(cases.s1_before_after(), "cuda")
    assert found == {"of": 10, "unsafe": 0, "capwise": 10}


def test_s1_naive_engine_gets_ids_wrong_and_capwise_none():
    counted = {i: kind != "burst" for i, kind in enumerate(cases.s1_kinds())}
    unsafe = demo.replay(cases.s1(), True, counted, "cuda")
    safe = demo.replay(cases.s1(), False, counted, "cuda")
    assert unsafe.wrong_ids >= 50 and unsafe.wrong_steps >= 15
    assert not safe.wrong
    assert (safe.report.pieces, len(safe.report.seams)) == (1, 0)


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("kernel", ["ours", "unit"])
def test_s2_state_index_strides(stride, kernel):
    case = cases.s2(stride, kernel)
    safe = demo.replay(case, False, device="cuda")
    assert not safe.wrong
    assert safe.report.copies == (2 if kernel == "unit" and stride > 1 else 0)
    if stride > 1 and kernel == "unit":
        assert demo.replay(case, True, device="cuda").wrong


@pytest.mark.parametrize("repair", ["auto", "split"])
def test_both_repairs_are_right(repair):
    for case in (cases.s1_golden(), cases.s2_golden(4, "ours"), cases.s2_golden(4, "unit")):
        case.options = {**(case.options or {}), "repair": repair, "lower": "eager"}
        assert not demo.replay(case, False, device="cuda").wrong


def test_a_step_allocates_nothing_and_never_syncs():
    for case in (cases.s1(), cases.s2(4, "ours")):
        compiled = CompiledModel(copy.deepcopy(case.model).cuda(), case_options(case, lower="eager"))
        batches = [_on_device(b) for b in case.batches[:3]]
        for batch in batches * 2:
            compiled(**batch)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches:
                compiled(**batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_pieces_lowered_by_inductor_are_right():
    case = cases.s1_golden()
    case.options = {**(case.options or {}), "lower": "inductor"}
    assert not demo.replay(case, False, device="cuda").wrong


def test_the_device_agrees_with_the_tape_on_every_history():
    import importlib.util

    path = Path(__file__).parents[2] / "benchmarks" / "verdicts.py"
    spec = importlib.util.spec_from_file_location("verdicts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tape = json.loads(VERDICTS.read_text())
    device = {
        f"{case.name} [{n}] {'unsafe' if unsafe else 'capwise'}": module.verdicts(case, unsafe, "cuda")
        for n, case in enumerate(module.histories())
        for unsafe in (True, False)
    }
    assert device == tape
