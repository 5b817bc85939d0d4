"""Diagnostics and reports: severities, order, JSON, merging."""

from __future__ import annotations

import ast
import inspect
import json

import pytest

from capwise import report
from capwise.report import RULES, Diagnostic, PathStep, Report, SeamRow, Span

CODES = (
    "CW001 CW002 CW003 CW101 CW102 CW103 CW104 CW201 CW202 CW203 CW204 CW205 CW206 CW301 CW302 CW303 CW304 CW305 CW306 "
    "CW401 CW402 CW403 CW501 CW502 CW601 CW901"
).split()


def _found(code="CW202", verdict="refuted", repair=None, line=1, file="a.py"):
    return Diagnostic(code, verdict, "node", "message", "label", Span(file, line, 5, 9), repair, op="aten.sum")


def test_the_codes_are_the_documented_ones():
    assert list(RULES) == CODES and all(rule.title and rule.repairs for rule in RULES.values())


def test_an_unknown_code_is_refused():
    with pytest.raises(ValueError, match="code: expected one of CW001.*got 'CW999'"):
        _found("CW999")


@pytest.mark.parametrize(
    "verdict, repair, severity",
    [
        ("refuted", None, "error"),
        ("assumed", None, "warning"),
        ("refuted", "seam", "warning"),
        ("assumed", "seam", "warning"),
        ("refuted", "fill 0", "note"),
        ("assumed", "guard", "note"),
    ],
)
def test_severity(verdict, repair, severity):
    assert _found(verdict=verdict, repair=repair).severity == severity


def test_a_diagnostic_says_where():
    one = _found()
    assert (one.file, one.line, one.column) == ("a.py", 1, 5) and str(one.span) == "a.py:1:5"
    assert str(Span()) == "<unknown>:0" and _found().repaired("fill 0").repair == "fill 0"


def test_json_of_a_diagnostic_has_the_documented_attributes():
    one = Diagnostic(
        "CW202", "refuted", "n", "m", path=(PathStep("x", Span("a.py", 3)),), notes=("n1",), help=("h",),
        candidates=(("seam", 2.0),), evidence=(("symbol", "T"),),
    )  # fmt: skip
    data = json.loads(json.dumps(one.to_dict()))
    keys = "code verdict severity message node file line column repair path notes help"
    assert set(keys.split()) <= set(data)
    assert data["path"] == [{"what": "x", "file": "a.py", "line": 3}] and data["notes"] == ["n1"]
    assert data["candidates"] == [{"repair": "seam", "cost": 2.0}] and data["evidence"] == {"symbol": "T"}


def test_a_report_lists_the_worst_first():
    made = Report()
    for one in (_found(repair="fill 0"), _found(repair="seam", line=9), _found(), _found(repair="seam", line=2)):
        made.add(one)
    assert [(d.severity, d.line) for d in made] == [("error", 1), ("warning", 2), ("warning", 9), ("note", 1)]
    assert len(made) == 4 and made.count("warning") == 2 and made.codes() == {"CW202"}


def test_json_of_a_report():
    made = Report("case", 2, [SeamRow("aten.flip", "CW202", "a.py", 3)], [_found()])
    data = json.loads(json.dumps(made.to_dict()))
    assert {"version": 1, "case": "case", "pieces": 2}.items() <= data.items()
    assert data["seams"] == [{"op": "aten.flip", "code": "CW202", "file": "a.py", "line": 3}]
    assert [d["code"] for d in data["diagnostics"]] == ["CW202"]


def test_merging_keeps_equal_findings_once():
    one = Report("case", 1, [], [_found()], ["said"], fills=1)
    one.merge(Report("", 3, [SeamRow("op", "CW001", "", 0)], [_found(), _found(line=2)], ["said", "more"], fills=0))
    assert (one.case, one.pieces, one.fills) == ("case", 3, 1)
    assert len(one.diagnostics) == 2 and one.assumptions == ["said", "more"] and len(one.seams) == 1


def test_a_report_prints_in_full():
    assert "CW202" in str(Report("case", diagnostics=[_found()]))


def test_reports_need_no_torch():
    tree = ast.parse(inspect.getsource(report))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not any(n.split(".")[0] == "torch" for n in names)
