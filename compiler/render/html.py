"""One self-contained page: summary strip, coloured listing, diagnostics, assumptions. It opens without a network.

The listing is the program's own text with a colour band (and a letter: not colour alone) a piece, grey for seams, and a
badge on each node whose name (names may be renumbered) or op has a diagnostic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from capwise.render.source import place, source_line
from capwise.render.text import summary
from capwise.report import SEVERITIES, Diagnostic, Report

BANDS = 6
_HEADER = re.compile(r"^\W*(piece|seam)\b", re.IGNORECASE)
# `%3 = seam aten.mean.dim(...)`: the node's name and its op.
_NODE = re.compile(r"^\s*%?(\w+)(?: = (?:seam )?([\w.:]+)\()?")


@dataclass(frozen=True)
class Line:
    """One line of the listing: its band's CSS class, the letter of its piece, and the diagnostics of its node."""

    text: str
    band: str
    letter: str
    badges: tuple[tuple[str, str], ...]


def html(reports: Sequence[Report]) -> str:
    """The page; text is escaped by the template."""
    views = [_view(report, number) for number, report in enumerate(reports)]
    return _template().render(views=views, severities=SEVERITIES).rstrip("\n")


@cache
def _template() -> jinja2.Template:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("capwise.render", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return env.get_template("page.jinja")


def _view(report: Report, number: int) -> dict[str, object]:
    found = [(f"d{number}-{i}", d) for i, d in enumerate(report)]
    return {
        "report": report,
        "summary": summary(report),
        "listings": [listing(text, found) for text in report.programs],
        "found": [(anchor, d, place(d.span), _excerpt(d)) for anchor, d in found],
        "place": place,
    }


def _excerpt(d: Diagnostic) -> tuple[str, str, str] | None:
    """The source line in three parts, the middle one marked; None when it cannot be read."""
    line = source_line(d.span)
    if line is None:
        return None
    start = max(d.column - 1, 0)
    end = d.span.end_column - 1 if d.span.end_column > d.column else len(line)
    return line[:start], line[start:end], line[end:]


def listing(text: str, found: Sequence[tuple[str, Diagnostic]]) -> list[Line]:
    """The program's lines with their bands and badges; `found` pairs an anchor with its diagnostic."""
    lines: list[Line] = []
    band, letter, pieces = "", "", 0
    for line in text.splitlines():
        if header := _HEADER.match(line):
            seam = header[1].lower() == "seam"
            band, letter = ("seam", "·") if seam else (f"piece p{pieces % BANDS}", chr(ord("A") + pieces % 26))
            pieces += not seam
        elif line and not line[0].isspace():
            band, letter = "", ""
        node = None if header else _NODE.match(line)
        badges = [(anchor, d.code) for anchor, d in found if node and (d.node == node[1] or d.op and d.op == node[2])]
        lines.append(Line(line, band, letter, tuple(badges)))
    return lines
