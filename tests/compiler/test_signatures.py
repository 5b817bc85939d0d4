"""Signatures of kernels from the launches of a Case, by record and by command."""

import json
from pathlib import Path

import pytest
import torch
import triton

from capwise.cli import main
from capwise.models import kernel_cases as k
from capwise.signatures import record_signatures

KERNELS = k.__file__


def gathers():
    return k.case(k.Gathers(True), "x", "table")


def test_every_launch_is_recorded_once_and_runs():
    case = k.case(k.Writes(0), "x", "rows", "slots")
    before = case.model.state.clone()
    (signature,) = record_signatures([case]).of(k.write_checked_kernel)
    assert signature.types == {"x_ptr": "*fp32", "state_ptr": "*fp32", "idx_ptr": "*i32", "stride_x": "i32",
                               "stride_state": "i32"}  # fmt: skip
    assert signature.fixed == {"NULL": 0, "H": k.WIDTH}
    assert torch.equal(case.model.state, before)


def test_launches_that_differ_are_signatures_of_their_own():
    @triton.jit
    def scaled(x_ptr, n: k.tl.constexpr):
        k.tl.store(x_ptr, n)

    class Scales(torch.nn.Module):
        def forward(self, x):
            scaled[(1,)](x, 2)
            scaled[(1,)](x.double(), 2)
            scaled[(1,)](x, 2)
            return x

    found = record_signatures([k.case(Scales(), "x")]).of(scaled)
    assert [s.types["x_ptr"] for s in found] == ["*fp32", "*fp64"] and found[0].fixed == {"n": 2}


def test_what_a_case_raises_is_raised_and_triton_is_as_before():
    class Breaks(torch.nn.Module):
        def forward(self, x):
            raise ZeroDivisionError("not today")

    before = triton.runtime.jit.JITFunction.run
    with pytest.raises(ZeroDivisionError, match="not today"):
        record_signatures([k.case(Breaks(), "x")])
    assert triton.runtime.jit.JITFunction.run is before


def test_the_command_takes_types_and_sizes_from_a_case(capsys):
    target = f"{Path(__file__)}:gathers"
    assert main(["kernels", KERNELS, "--case", target, "--format", "json"]) in (0, 1)
    rows = [row for row in json.loads(capsys.readouterr().out) if row["kernel"] == "slot_passed_kernel"]
    assert {row["arg"]: row["extent"] for row in rows}["state_ptr"].endswith(f"+ {k.WIDTH}")
    assert set(rows[0]) == {"kernel", "arg", "access", "axes", "extent", "verdict", "hazards", "file", "line"}


def test_what_is_guessed_is_marked(capsys):
    main(["kernels", KERNELS, "--case", f"{Path(__file__)}:gathers"])
    marked = {line.split("(")[0].split()[-1]: "types guessed" in line
              for line in capsys.readouterr().out.splitlines() if "_kernel(" in line}  # fmt: skip
    assert not marked["slot_passed_kernel"] and marked["slot_unit_kernel"]


def test_a_case_that_cannot_be_loaded_is_one_line(capsys):
    assert main(["kernels", KERNELS, "--case", f"{Path(__file__)}:gather"]) == 2
    assert "gathers" in capsys.readouterr().err
