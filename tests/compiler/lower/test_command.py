"""`capwise lower`: tables, JSON and files of kernels that nobody described by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from triton.runtime import driver

from capwise.cli import main
from capwise.lower.case_kernels import Wanted, case_kernels
from capwise.lower.command import compile_wanted, lower_cases, table
from capwise.lower.inductor_code import inductor_code
from capwise.lower.launches import spec_of
from capwise.lower.recorded import op_launches
from capwise.lower.row import LowerRow
from capwise.lower.targets import Target
from capwise.lower.triton_aot import load_manifest
from capwise.models.footguns import FOOTGUNS
from capwise.models.naive_shift import ours
from capwise.ops.samples import SMALL

KEYS = "kernel target ok registers spills scratch shared wave matrix bytes codes error".split()
H100, MI300 = Target.parse("cuda:90"), Target.parse("hip:gfx942")


@pytest.fixture(scope="module")
def shifting(tmp_path_factory):
    """A case with a shipped kernel and one that Inductor writes, lowered for two targets with files."""
    out = tmp_path_factory.mktemp("out")
    return lower_cases([(ours(), {})], [H100, MI300], out), out


def test_the_kernels_of_a_case_launched_and_generated(shifting):
    rows, _ = shifting
    generated = "Shifting.0.0 piece0: triton_poi_fused_add_0 (Inductor, CPU scheduling)"
    assert [(r.kernel, r.target, r.ok) for r in rows] == [
        (name, target, True) for name in ("_align_shift_kernel", generated) for target in ("cuda:90", "hip:gfx942")
    ]
    assert all(r.registers and r.bytes for r in rows)


def test_the_manifest_is_enough_to_launch(shifting):
    _, out = shifting
    kernels = {(a.kernel.split()[-1], a.target): a for a in load_manifest(out / "manifest.json")}
    assert len(kernels) == 4
    shift = kernels["_align_shift_kernel", "cuda:90"]
    assert shift.file.read_bytes()[:4] == b"\x7fELF" and shift.grid == ("cdiv(64, BLOCK_C)",)
    assert shift.grid_at(T=1, R=1) == (64 // shift.constants["BLOCK_C"], 1, 1)
    assert shift.recorded_at == {"T": 64, "R": 4} and shift.constants["BLOCK_R"] == 4
    assert shift.assumes["state_ptr"] == {"tt.divisibility": 16, "tt.pointer_range": 32}
    added = next(a for (_, target), a in kernels.items() if target == "hip:gfx942" and "Inductor" in a.kernel)
    assert added.grid == ("cdiv(4*T, XBLOCK)",)
    assert added.grid_at(T=100) == (-(-400 // added.constants["XBLOCK"]), 1, 1)


def test_a_kernel_without_a_grid_is_an_error_row_where_files_are_wanted(tmp_path):
    (launch,) = op_launches("ple_table_gather", (4,), SMALL)
    lost = Wanted("gather", replace(spec_of(launch.kernel, launch.bound), label="gather"), grid_error="no expression")
    (row,) = compile_wanted([lost], [MI300], tmp_path)
    assert (row.ok, row.error) == (False, "no expression") and row.bytes
    assert load_manifest(tmp_path / "manifest.json") == []


def test_a_piece_that_inductor_cannot_lower_is_an_error_row():
    rows = compile_wanted([Wanted("piece0", error="add: nothing known")], [H100, MI300], None)
    assert [(r.kernel, r.target, r.ok, r.error) for r in rows] == [
        ("piece0", name, False, "add: nothing known") for name in ("cuda:90", "hip:gfx942")
    ]
    assert table(rows).endswith("error piece0 on hip:gfx942: add: nothing known")


def test_two_kernels_of_one_piece(tmp_path):
    found = case_kernels(FOOTGUNS["row of a token"].case(), {}, tmp_path, grids=True)
    assert [w.spec.grid for w in found] == [("cdiv(T, XBLOCK)",), ("cdiv(4*T, XBLOCK)",)]


def test_generating_leaves_everything_as_it_was():
    before = (GraphLowering.codegen, driver._active, config.cpu_backend, config.fx_graph_cache)
    found: list[str] = []
    with pytest.raises(RuntimeError, match="asked for"), inductor_code(found):
        assert config.cpu_backend == "triton" and driver._active is not before[1]
        raise RuntimeError("asked for")
    assert (GraphLowering.codegen, driver._active, config.cpu_backend, config.fx_graph_cache) == before
    with inductor_code(found), pytest.raises(Exception, match="Generated"):
        torch.compile(lambda x: x * 2 + 1)(torch.ones(5))
    assert "@triton.jit" in found[0]
    assert (GraphLowering.codegen, driver._active, config.cpu_backend, config.fx_graph_cache) == before


# ------------------------------------------------------------------------------------------------ the table
def _row(kernel: str, target: str, **more) -> LowerRow:
    return LowerRow(kernel, target, True, registers=32, wave=32, bytes=512, **more)


def test_the_table(text):
    rows = [
        _row("gate", "cuda:90", matrix=("wgmma",)),
        _row("gate", "hip:gfx942", codes=("CW601",), notes=("sums in another order",)),
        LowerRow("piece0: fused (Inductor, CPU scheduling)", "cuda:90", False, error="too large"),
    ]
    assert table(rows) == text(
        """
                      registers  spills  scratch  shared  wave  bytes  matrix  codes
        gate
          cuda:90            32       0        0       0    32    512  wgmma
          hip:gfx942         32       0        0       0    32    512  -       CW601
        piece0: fused (Inductor, CPU scheduling)
          cuda:90             -       -        -       -     -      -  -

        CW601 gate on hip:gfx942: sums in another order
        error piece0: fused (Inductor, CPU scheduling) on cuda:90: too large
        'Inductor, CPU scheduling': what Inductor writes where there is no GPU, not what a GPU run emits.
        """
    )
    assert table([]) == "no Triton kernel"


# ------------------------------------------------------------------------------------------------ the command line
@pytest.fixture
def lowered(monkeypatch):
    """The command line over rows that are made up, and what it asked for."""
    asked = {}

    def ops(targets, out):
        asked.update(targets=[t.name for t in targets], out=out)
        return [_row("gate", t.name) for t in targets]

    def cases(given, targets, out):
        asked.update(cases=[case.name for case, _ in given])
        return [LowerRow("gate", t.name, False, error="refused") for t in targets]

    monkeypatch.setattr("capwise.lower.command.lower_ops", ops)
    monkeypatch.setattr("capwise.lower.command.lower_cases", cases)
    return asked


def test_without_a_target_all_of_them_and_the_shipped_kernels(lowered, capsys, tmp_path):
    assert main(["lower", "--format", "json", "--out", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [list(row) for row in rows] == [KEYS] * 6
    assert lowered == {"targets": [row["target"] for row in rows], "out": tmp_path}


def test_a_case_and_a_row_that_failed(lowered, capsys):
    assert main(["lower", "capwise.models.naive_shift:ours", "--target", "cuda:90", "--target", "hip:gfx950"]) == 1
    assert lowered == {"cases": ["shift by channel"]}
    assert "error gate on hip:gfx950: refused" in capsys.readouterr().out


def test_a_target_that_is_none_is_refused(lowered, capsys):
    assert main(["lower", "--target", "hip:gfx943"]) == 2
    assert "option '--target': expected one of cuda:80," in capsys.readouterr().err
    assert lowered == {}
