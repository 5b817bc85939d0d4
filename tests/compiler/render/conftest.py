"""A report with one diagnostic of each severity over a real source file, in a working directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from capwise.report import Diagnostic, PathStep, Report, SeamRow, Span

SOURCE = """\
import torch


def f(x, slots):
    h = x * 2
    h = h - h.mean(0, keepdim=True)
\treturn cache.index_put_((slots,), h)
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "pkg").mkdir()
    file = tmp_path / "pkg" / "model.py"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def error(source: Path) -> Diagnostic:
    return Diagnostic(
        code="CW202",
        verdict="refuted",
        node="mean_1",
        message="padded rows reach live rows through a batch reduction",
        label="reduces dim 0, which is padded from 5 to 8 rows",
        span=Span(str(source), 6, 13, 36),
        path=(PathStep("x, an input", Span(str(source), 4)), PathStep("mean over T", Span(str(source), 6))),
        notes=("rows 5..7 hold values of an earlier replay", "the divisor is 8, not 5:\nno fill is neutral"),
        help=("divide by the sum of a row mask",),
        candidates=(("seam", 2.0),),
        evidence=(("T_live", "5"), ("T_pad", "8")),
    )


@pytest.fixture
def report(source: Path, error: Diagnostic) -> Report:
    warning = Diagnostic(
        code="CW001",
        verdict="assumed",
        node="opaque",
        message="op has no contract: 50%, done",
        span=Span(str(source), 5, 9, 14),
        repair="seam",
    )
    note = Diagnostic(
        code="CW204",
        verdict="proved",
        node="index_put_",
        message="padded rows write persistent state",
        label="slots has a tail",
        span=Span(str(source), 7, 9, 41),
        repair="null slot fill",
    )
    return Report(
        case="Model",
        pieces=1,
        seams=[SeamRow("mine::opaque", "CW001", str(source), 5)],
        diagnostics=[note, warning, error],
        assumptions=["axis 0 of x is T: inferred"],
        fills=4,
        programs=["program T\npiece 0\n  mul = ...\nseam mine::opaque\n  opaque = ...\npiece 1\n  mean_1 = <b>"],
        timings=[("trace", 0.0125)],
    )
