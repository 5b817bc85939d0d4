"""The formats for people, word for word."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import capwise.render
from capwise.render import FORMATS, render
from capwise.render.colour import colour
from capwise.report import Diagnostic, Report, Span

FULL = """\
error[CW202]: padded rows reach live rows through a batch reduction
 --> pkg/model.py:6:13
  |
6 |     h = h - h.mean(0, keepdim=True)
  |             ^^^^^^^^^^^^^^^^^^^^^^^ reduces dim 0, which is padded from 5 to 8 rows
  |
  = verdict: refuted
  = note: rows 5..7 hold values of an earlier replay
  = note: the divisor is 8, not 5:
          no fill is neutral
  = evidence: T_live=5, T_pad=8
  = path: x, an input (pkg/model.py:4)
          -> mean over T (pkg/model.py:6)
  = repair: none taken; candidates: seam (cost 2)
  = help: divide by the sum of a row mask

warning[CW001]: op has no contract: 50%, done
 --> pkg/model.py:5:9
  |
5 |     h = x * 2
  |         ^^^^^
  |
  = verdict: assumed
  = repair: seam

note[CW204]: padded rows write persistent state
 --> pkg/model.py:7:9
  |
7 | \treturn cache.index_put_((slots,), h)
  | \t       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ slots has a tail
  |
  = verdict: proved
  = repair: null slot fill

assumed: axis 0 of x is T: inferred

1 error, 1 warning, 1 note; 1 piece, 1 seam, 4 fills, 0 copies"""


def test_full_shows_source_carets_evidence_and_summary(report: Report) -> None:
    assert render(report, "full") == FULL


def test_str_of_a_report_is_the_full_format(report: Report) -> None:
    assert str(report) == FULL


def test_concise_is_one_line_a_diagnostic_worst_first(report: Report) -> None:
    assert render(report, "concise") == (
        "pkg/model.py:6:13: error[CW202] padded rows reach live rows through a batch reduction\n"
        "pkg/model.py:5:9: warning[CW001] op has no contract: 50%, done\n"
        "pkg/model.py:7:9: note[CW204] padded rows write persistent state"
    )


def test_clean_report_is_its_summary_and_nothing_in_concise() -> None:
    clean = Report(case="Model", pieces=2, copies=1)
    assert render(clean) == "0 errors, 0 warnings, 0 notes; 2 pieces, 0 seams, 0 fills, 1 copy"
    assert render(clean, "concise") == ""


def test_several_reports_are_told_apart_by_case() -> None:
    assert render([Report(case="A"), Report(case="B")]) == (
        "case: A\n\n0 errors, 0 warnings, 0 notes; 0 pieces, 0 seams, 0 fills, 0 copies\n\n"
        "case: B\n\n0 errors, 0 warnings, 0 notes; 0 pieces, 0 seams, 0 fills, 0 copies"
    )


def test_without_a_readable_source_the_label_becomes_a_note(error: Diagnostic) -> None:
    gone = replace(error, span=Span("gone.py", 12, 3, 9), path=(), notes=(), evidence=(), candidates=(), help=())
    assert render(Report(diagnostics=[gone])).split("\n\n")[0] == (
        "error[CW202]: padded rows reach live rows through a batch reduction\n"
        "  --> gone.py:12:3\n"
        "   = verdict: refuted\n"
        "   = note: reduces dim 0, which is padded from 5 to 8 rows"
    )


def test_without_a_file_the_node_is_named(error: Diagnostic) -> None:
    text = render(Report(diagnostics=[replace(error, span=Span(), path=())]))
    assert " = node: mean_1" in text.splitlines()
    assert "-->" not in text
    assert render(Report(diagnostics=[replace(error, span=Span())]), "concise").startswith("<unknown>: error[CW202]")


@pytest.mark.parametrize(
    ("column", "end_column", "carets"),
    [
        (0, 0, "    ^^^^^^^^^"),
        (9, 0, "        ^"),
        (9, 11, "        ^^"),
        (13, 99, "            ^"),
        (99, 120, "             ^"),
    ],
)
def test_carets_stay_on_the_line(error: Diagnostic, column: int, end_column: int, carets: str) -> None:
    d = replace(error, span=replace(error.span, line=5, column=column, end_column=end_column), label="")
    assert f"  | {carets}" in render(Report(diagnostics=[d])).splitlines()


def test_an_edited_file_is_read_again(report: Report, source: Path) -> None:
    render(report)
    source.write_text("\n" * 5 + "    h = h - h.amax(0, keepdim=True)\n")
    assert "h.amax(0" in render(report)


def test_colour_changes_no_letter(report: Report) -> None:
    styled = colour(FULL)
    assert styled.plain == FULL
    assert {str(span.style) for span in styled.spans} >= {"bold red", "bold yellow", "bold green", "blue", "cyan"}


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of full, concise, json, github, sarif, html; got 'xml'"):
        render(Report(), "xml")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_takes_one_and_several(format: str, report: Report) -> None:
    assert render(report, format)
    assert render([report, Report(case="B")], format)


def test_renderers_import_nothing_of_ours_but_the_report() -> None:
    for file in Path(capwise.render.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] == "torch"], file
            ours = [n for n in names if n.startswith("capwise")]
            assert all(n.startswith(("capwise.report", "capwise.render")) for n in ours), file
