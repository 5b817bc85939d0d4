"""Host memory in a program of a device. Where no device is, tensors without memory (meta) stand for the device's."""

from __future__ import annotations

import torch

from capwise.facts import val


def _staged(x, scale):
    return x.to("meta").float() * scale


def _host_work(x, scale):
    return (x + 1).to("meta") * 2


def _both(x, scale):
    return x + 1, x.to("meta") * 2


def _back(x, scale):
    return (x.to("meta") * 2).cpu()


def _program(make_case, program_of, model, **options):
    steps = [{"x": torch.arange(t), "scale": torch.tensor(2.0)} for t in (6, 3)]
    return program_of(make_case(model, steps, {"x": ("T",), "scale": ()}), **options)


def _found(program) -> dict[tuple[str, str], str | None]:
    return {(d.code, d.node): d.repair for d in program.report if d.code not in ("CW301", "CW501", "CW502")}


def test_an_input_that_is_only_copied_over_stands_on_the_device(make_case, program_of) -> None:
    program = _program(make_case, program_of, _staged)
    repair = "staging ring with events"
    assert _found(program) == {("CW306", "x"): repair, ("CW306", "scale"): repair}
    inputs = [n for n in program.module.graph.nodes if n.op == "placeholder" and n.users]
    assert {val(n).device.type for n in inputs if isinstance(val(n), torch.Tensor)} == {"meta"}
    assert not program.seams and {program.values[n].device.type for n in ("x", "scale")} == {"meta"}


def test_a_naive_engine_keeps_the_address_of_the_host(make_case, program_of) -> None:
    program = _program(make_case, program_of, _staged, repair="none")
    assert _found(program)["CW306", "x"] is None
    assert program.values["x"].device.type == "cpu"


def test_work_of_the_host_is_not_in_a_recording(make_case, program_of) -> None:
    program = _program(make_case, program_of, _host_work)
    assert _found(program) == {("CW103", "add"): "seam", ("CW306", "_to_copy"): "seam"}
    assert [s.code for s in program.report.seams] == ["CW103", "CW306"]


def test_an_input_that_the_host_needs_too_stays_there(make_case, program_of) -> None:
    found = _found(_program(make_case, program_of, _both))
    assert found == {("CW103", "add"): "seam", ("CW306", "_to_copy"): "seam"}


def test_a_copy_back_waits(make_case, program_of) -> None:
    assert _found(_program(make_case, program_of, _back))["CW002", "_to_copy_1"] == "seam"


def test_a_program_of_one_device_is_left_alone(make_case, program_of, around) -> None:
    steps = [{"x": torch.ones(t), "scale": torch.tensor(2.0)} for t in (6, 3)]
    case = make_case(lambda x, scale: x.clone() * scale, steps, {"x": ("T",), "scale": ()})
    assert not _found(program_of(case))


def _constants(x, scale):
    table = torch.arange(4).float() + torch.tensor([1.0, 2.0, 3.0, 4.0])
    return x.to("meta")[:, None] * table.to("meta") * torch.full((), 3.5) * x.shape[0]


def test_constants_of_the_host_are_part_of_the_program(make_case, program_of) -> None:
    program = _program(make_case, program_of, _constants)
    assert set(_found(program)) == {("CW306", "x"), ("CW102", "mul_2")} and not program.seams
