"""The formats for machines: JSON, GitHub workflow commands, SARIF."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from capwise.render import render
from capwise.render.github import step_summary
from capwise.report import Diagnostic, Report, Span

_NAMED = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_RESULT = {
    "type": "object",
    "required": ["ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints"],
    "properties": {
        "ruleId": {"pattern": r"^CW\d{3}$"},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": _NAMED,
        "locations": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["physicalLocation"],
                "properties": {
                    "physicalLocation": {
                        "type": "object",
                        "required": ["artifactLocation", "region"],
                        "properties": {
                            "artifactLocation": {
                                "type": "object",
                                "required": ["uri"],
                                "properties": {"uri": {"type": "string", "pattern": r"^(?!/|\.\.)[^\s:]+$"}},
                            },
                            "region": {
                                "type": "object",
                                "required": ["startLine"],
                                "additionalProperties": False,
                                "properties": {
                                    name: {"type": "integer", "minimum": 1}
                                    for name in ("startLine", "startColumn", "endLine", "endColumn")
                                },
                            },
                        },
                    }
                },
            },
        },
        "partialFingerprints": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}},
    },
}
# What SARIF 2.1.0 (§3.13, §3.14, §3.19, §3.27) and GitHub code scanning require of a log.
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id", "shortDescription", "help"],
                                            "properties": {"shortDescription": _NAMED, "help": _NAMED},
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {"type": "array", "items": _RESULT},
                },
            },
        },
    },
}


def sarif_run(report: Report | list[Report]) -> dict[str, Any]:
    log = json.loads(render(report, "sarif"))
    jsonschema.validate(log, SARIF)
    run: dict[str, Any] = log["runs"][0]
    return run


def test_json_of_one_is_an_object_and_of_several_a_list(report: Report) -> None:
    assert json.loads(render(report, "json")) == report.to_dict()
    assert json.loads(render([report], "json")) == [report.to_dict()]
    assert list(report.to_dict())[:5] == ["version", "case", "pieces", "seams", "diagnostics"]


def test_github_escapes_and_ranks(report: Report) -> None:
    assert render(report, "github").splitlines() == [
        "::error file=pkg/model.py,line=6,col=13,endColumn=36,"
        "title=CW202%3A padded rows reach live rows through a batch reduction::"
        "reduces dim 0, which is padded from 5 to 8 rows%0Arows 5..7 hold values of an earlier replay%0A"
        "the divisor is 8, not 5:%0Ano fill is neutral%0Ahelp: divide by the sum of a row mask",
        "::warning file=pkg/model.py,line=5,col=9,endColumn=14,"
        "title=CW001%3A op has no contract%3A 50%25%2C done::op has no contract: 50%25, done%0Arepair: seam",
        "::notice file=pkg/model.py,line=7,col=9,endColumn=41,"
        "title=CW204%3A padded rows write persistent state::slots has a tail%0Arepair: null slot fill",
        "1 error, 1 warning, 1 note; 1 piece, 1 seam, 4 fills, 0 copies",
    ]


def test_github_merges_one_line_and_code(error: Diagnostic) -> None:
    lines = render(Report(diagnostics=[error, replace(error, node="mean_2")]), "github").splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("%0A2 findings on this line: mean_1, mean_2")


@pytest.mark.parametrize(("places", "left"), [(10, []), (11, ["1 more error"]), (14, ["4 more errors"])])
def test_github_shows_ten_a_level_and_counts_the_rest(error: Diagnostic, places: int, left: list[str]) -> None:
    many = [replace(error, span=Span("a.py", line, 1, 2)) for line in range(1, places + 1)]
    lines = render(Report(diagnostics=many), "github").splitlines()
    assert sum(line.startswith("::error ") for line in lines) == 10
    assert [line.removesuffix(" not annotated") for line in lines if line.endswith(" not annotated")] == left


def test_github_without_a_place_has_only_a_title(error: Diagnostic) -> None:
    assert render(Report(diagnostics=[replace(error, span=Span())]), "github").startswith("::error title=CW202%3A ")


def test_step_summary_is_a_table_of_all(report: Report) -> None:
    piped = replace(report.diagnostics[0], message="a | b\nc")
    table = step_summary([replace(report, diagnostics=[*report.diagnostics, piped])]).splitlines()
    assert sum(line.startswith("| ") for line in table) == 5
    assert "| note | CW204 | pkg/model.py:7 | a \\| b c | null slot fill |" in table


def test_sarif_has_what_code_scanning_needs(report: Report, source: Path) -> None:
    run = sarif_run(report)
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["CW001", "CW202", "CW204"]
    assert [(r["ruleId"], r["ruleIndex"], r["level"]) for r in run["results"]] == [
        ("CW202", 1, "error"),
        ("CW001", 0, "warning"),
        ("CW204", 2, "note"),
    ]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "pkg/model.py", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 6, "startColumn": 13, "endColumn": 36}
    steps = run["results"][0]["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [s["location"]["message"]["text"] for s in steps] == ["x, an input", "mean over T"]


def test_sarif_uri_is_relative_to_the_repository_not_to_the_working_directory(
    report: Report, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    uris = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in sarif_run(report)["results"]}
    assert uris == {"pkg/model.py"}


def test_sarif_fingerprint_survives_lines_added_above_and_tells_equal_lines_apart(
    error: Diagnostic, source: Path
) -> None:
    def prints(*found: Diagnostic) -> list[str]:
        run = sarif_run(Report(diagnostics=list(found)))
        return [r["partialFingerprints"]["primaryLocationLineHash"] for r in run["results"]]

    before = prints(error)
    assert len(set(prints(error, replace(error, node="mean_2")))) == 2
    assert prints(replace(error, message="another")) != before
    source.write_text("# a new line\n" + source.read_text())
    assert prints(replace(error, span=replace(error.span, line=7))) == before


def test_sarif_places_what_has_no_line_on_the_path_or_on_pyproject(error: Diagnostic) -> None:
    lost, outside = replace(error, span=Span(), path=()), replace(error, span=Span("/usr/lib/other.py", 3))
    first, second = sarif_run(Report(diagnostics=[outside, lost]))["results"]
    places = [
        (r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"], r["message"]["text"].splitlines()[-1])
        for r in (first, second)
    ]
    assert sorted(places) == [
        ("pkg/model.py", "at /usr/lib/other.py:3"),
        ("pyproject.toml", "at node mean_1, which has no source line"),
    ]
