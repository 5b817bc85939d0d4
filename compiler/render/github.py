"""Workflow commands that GitHub shows as annotations, and the table for the job's summary page.

GitHub shows at most 10 annotations a level and step, so findings on one line with one code are merged, and what is
past ten is counted in a plain line (https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions).
"""

from __future__ import annotations

from collections.abc import Sequence

from capwise.render.source import short_path
from capwise.render.text import count, summary
from capwise.report import SEVERITIES, Diagnostic, Report, Severity

MAX_PER_LEVEL = 10
_COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}


def github(reports: Sequence[Report]) -> str:
    """One `::error file=...::message` a place and code, worst first."""
    lines: list[str] = []
    for severity in SEVERITIES:
        groups = _groups(reports, severity)
        lines += [_annotation(_COMMANDS[severity], group) for group in groups[:MAX_PER_LEVEL]]
        if (left := len(groups) - MAX_PER_LEVEL) > 0:
            lines.append(f"{count(left, f'more {severity}')} not annotated")
    lines += [summary(report) for report in reports]
    return "\n".join(lines)


def step_summary(reports: Sequence[Report]) -> str:
    """The whole list as one Markdown table, for $GITHUB_STEP_SUMMARY."""
    rows = ["| level | code | place | finding | repair |", "|---|---|---|---|---|"]
    for report in reports:
        for d in report:
            place = f"{short_path(d.file)}:{d.line}" if d.file else ""
            cells = (d.severity, d.code, place, d.message, d.repair or "")
            rows.append("| " + " | ".join(_cell(text) for text in cells) + " |")
        rows.append(f"\n{summary(report)}\n" if report is reports[-1] else f"| | | | {_cell(summary(report))} | |")
    return "\n".join(rows)


def _groups(reports: Sequence[Report], severity: Severity) -> list[list[Diagnostic]]:
    groups: dict[tuple[str, str, int], list[Diagnostic]] = {}
    for report in reports:
        for d in report:
            if d.severity == severity:
                groups.setdefault((d.code, d.file, d.line), []).append(d)
    return list(groups.values())


def _annotation(command: str, group: list[Diagnostic]) -> str:
    first = group[0]
    properties = {"title": f"{first.code}: {first.message}"}
    if first.file:
        where = {"file": short_path(first.file), "line": first.line, "col": first.column}
        if first.span.end_column > first.column > 0:
            where["endColumn"] = first.span.end_column
        properties = {**{name: str(value) for name, value in where.items() if value}, **properties}
    fields = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{command} {fields}::{_data(_message(group))}"


def _message(group: list[Diagnostic]) -> str:
    first = group[0]
    lines = [first.label or first.message, *first.notes]
    if first.repair:
        lines.append(f"repair: {first.repair}")
    lines += [f"help: {text}" for text in first.help]
    if len(group) > 1:
        lines.append(f"{len(group)} findings on this line: " + ", ".join(d.node for d in group))
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
