"""The HTML page: self-contained, escaped, every diagnostic linked from the listing."""

from __future__ import annotations

import html.parser
import re
from dataclasses import replace

from capwise.render import render
from capwise.render.html import listing
from capwise.report import Diagnostic, Report

_VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(html.parser.HTMLParser):
    """Checks that tags close in order; collects tags, ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in _VOID else [tag]
        self.ids |= {value for name, value in attrs if name == "id" and value}
        self.links += [value for name, value in attrs if name in ("href", "src") and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_well_formed_and_needs_no_network(report: Report) -> None:
    text = render([report, Report(case="<Other> & co")], "html")
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "b>"} & set(page.tags)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"https?://|url\(", text)
    assert "mean_1 = <b>" in page.text
    assert "<Other> & co" in page.text


def test_page_states_findings_assumptions_and_counts(report: Report) -> None:
    text = Page(render(report, "html")).text
    for d in report:
        assert d.message in text and f"{d.severity}[{d.code}]" in text
    for fact in ("axis 0 of x is T: inferred", "rows 5..7 hold values", "mine::opaque", "4 fills", "pkg/model.py:6:13"):
        assert fact in text
    assert "12.5" in text


def test_clean_report_says_none() -> None:
    assert Page(render(Report(case="Clean"), "html")).text.count("None.") == 2


def test_listing_has_a_band_a_piece_and_a_badge_a_diagnostic(error: Diagnostic) -> None:
    text = (
        "program T\npiece 0(x)\n  mul = ...\nseam op\n  x = ...\n"
        "piece 1\n  mean_1 = ...\n  %0 = seam aten.mean.dim(x)\n"
        "guards\n  mean_10 = aten.mean.dim_out(x)"
    )
    found = [("d0", error), ("d1", replace(error, node="gone", op="aten.mean.dim"))]
    rows = [(line.band, line.letter, line.badges) for line in listing(text, found)]
    assert rows == [
        ("", "", ()),
        ("piece p0", "A", ()),
        ("piece p0", "A", ()),
        ("seam", "·", ()),
        ("seam", "·", ()),
        ("piece p1", "B", ()),
        ("piece p1", "B", (("d0", "CW202"),)),
        ("piece p1", "B", (("d1", "CW202"),)),
        ("", "", ()),
        ("", "", ()),
    ]
