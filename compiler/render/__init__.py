"""Reports as text: a Report (or several) in, text out. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from capwise.render.github import github
from capwise.render.html import html
from capwise.render.sarif import sarif
from capwise.render.text import concise, full
from capwise.report import Report

__all__ = ["FORMATS", "render"]


def _json(reports: Sequence[Report]) -> str:
    return json.dumps([report.to_dict() for report in reports], indent=2)


_RENDERERS: dict[str, Callable[[Sequence[Report]], str]] = {
    "full": full,
    "concise": concise,
    "json": _json,
    "github": github,
    "sarif": sarif,
    "html": html,
}
FORMATS: tuple[str, ...] = tuple(_RENDERERS)


def render(report: Report | Sequence[Report], format: str = "full") -> str:
    """The report as text without a final newline; several reports make one document (JSON: a list).

    Source lines are read from the files that the spans name, as they are now.

    Raises:
        ValueError: no such format.
    """
    if format not in _RENDERERS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}; got {format!r}")
    if format == "json" and isinstance(report, Report):
        return json.dumps(report.to_dict(), indent=2)
    reports = [report] if isinstance(report, Report) else list(report)
    return _RENDERERS[format](reports)
