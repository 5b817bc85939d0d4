"""`--dump DIR` writes the compiler's texts and Dynamo's view; nothing else writes anything."""

from __future__ import annotations

import builtins
import importlib.util
import os
import tempfile
from pathlib import Path

import pytest

import capwise
from capwise.cli import main
from capwise.models.footguns import FOOTGUNS

TARGET = f"{Path(__file__).parent / 'graph_target.py'}:cases"


def test_a_dump_has_texts_after_every_pass_and_what_dynamo_captured(tmp_path, capsys):
    assert main(["check", TARGET, "--dump", str(tmp_path / "d"), "--format", "json"]) == 0
    assert capsys.readouterr().err == ""
    texts = sorted(p.name for p in (tmp_path / "d").glob("*.txt"))
    assert any(t.endswith(".program.txt") for t in texts) and any(t.endswith(".fill.txt") for t in texts)
    captured = [p.read_text() for p in (tmp_path / "d" / "dynamo").glob("__compiled_fn*.py")]
    assert any("footgun" in text for text in captured)


def test_without_depyf_one_line_says_what_is_left_out(tmp_path, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "depyf" else found(name, *more)
    )
    assert main(["check", TARGET, "--dump", str(tmp_path / "d"), "--format", "json"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "depyf is not installed" in line and "pip install 'capwise[debug]'" in line
    assert list((tmp_path / "d").glob("*.txt")) and not (tmp_path / "d" / "dynamo").exists()


def test_nothing_else_dumps_anything(tmp_path, capsys, monkeypatch):
    """Neither check, verify, graph nor a compiled call, whatever variables are set."""
    for name, value in {"TORCH_LOGS": "+capwise", "CUDA_LAUNCH_BLOCKING": "1", "HIP_LAUNCH_BLOCKING": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written: list[str] = []
    opened = builtins.open

    def watched(file, mode="r", *args, **kwargs):
        if set(mode) & set("wax+") and file != os.devnull:
            written.append(str(file))
        return opened(file, mode, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", watched)
    assert main(["check", TARGET, "--format", "json"]) == 0
    assert main(["verify", TARGET, "--format", "json"]) == 0
    assert main(["graph", TARGET]) == 0
    case = FOOTGUNS["times the number of tokens"].case()
    model = capwise.compile(case.model, inputs=case.inputs, capture="tape", lower="eager")
    model(**case.batches[0])
    capsys.readouterr()
    assert written == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["check", TARGET, "--format", "json"], ["graph", TARGET]])
def test_texts_and_reports_hold_no_values(command, capsys):
    """The batches' own numbers are nowhere in what is printed."""
    assert main(command) == 0
    text = capsys.readouterr().out
    values = {f"{v:.3f}" for b in FOOTGUNS["opaque op"].case().batches for v in b["x"].flatten().tolist()}
    assert not [v for v in values if v in text]
