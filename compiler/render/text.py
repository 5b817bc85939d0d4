"""For people: `full` in the manner of rustc, and `concise`, one line a diagnostic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from capwise.render.source import place, source_line
from capwise.report import SEVERITIES, Diagnostic, Report, Span


def full(reports: Sequence[Report]) -> str:
    """Each diagnostic with its source line, evidence and remedies; what was assumed; one summary line last."""
    return "\n\n".join(_full(report, named=len(reports) > 1) for report in reports)


def concise(reports: Sequence[Report]) -> str:
    """`file:line:column: error[CW202] title`, worst first."""
    return "\n".join(_concise(d) for report in reports for d in report)


def summary(report: Report) -> str:
    """`2 errors, 1 warning, 3 notes; 1 piece, 0 seams, 4 fills, 0 copies`."""
    found = ", ".join(count(report.count(severity), severity) for severity in SEVERITIES)
    made = ", ".join(
        (
            count(report.pieces, "piece"),
            count(len(report.seams), "seam"),
            count(report.fills, "fill"),
            "1 copy" if report.copies == 1 else f"{report.copies} copies",
        )
    )
    return f"{found}; {made}"


def count(n: int, what: str) -> str:
    """`1 seam`, `2 seams`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _full(report: Report, named: bool) -> str:
    blocks = [f"case: {report.case}"] if named else []
    blocks += ["\n".join(_block(d)) for d in report]
    if report.assumptions:
        blocks.append("\n".join(f"assumed: {text}" for text in report.assumptions))
    blocks.append(summary(report))
    return "\n\n".join(blocks)


def _concise(d: Diagnostic) -> str:
    return f"{place(d.span) or '<unknown>'}: {d.severity}[{d.code}] {d.message}"


def _block(d: Diagnostic) -> Iterator[str]:
    margin = " " * len(str(d.line or ""))
    yield f"{d.severity}[{d.code}]: {d.message}"
    if where := place(d.span):
        yield f"{margin}--> {where}"
    yield from _source(d, margin)
    for name, text in _facts(d):
        first, *rest = text.splitlines() or [""]
        yield f"{margin} = {name}: {first}"
        yield from (f"{margin}   {' ' * len(name)}  {line}" for line in rest)


def _source(d: Diagnostic, margin: str) -> Iterator[str]:
    line = source_line(d.span)
    if line is None:
        return
    yield f"{margin} |"
    yield f"{d.line} | {line}"
    yield f"{margin} | {_carets(d.span, line)} {d.label}".rstrip()
    yield f"{margin} |"


def _carets(span: Span, line: str) -> str:
    """Carets under column..end_column, tabs kept so that they stand where the text stands."""
    if span.column < 1:
        start, end = len(line) - len(line.lstrip()), len(line.rstrip())
    else:
        start, end = min(span.column - 1, len(line)), min(span.end_column - 1, len(line))
    lead = "".join("\t" if c == "\t" else " " for c in line[:start])
    return lead + "^" * max(end - start, 1)


def _facts(d: Diagnostic) -> Iterator[tuple[str, str]]:
    """The `= name: text` lines, in reading order."""
    yield "verdict", d.verdict
    if not d.file:
        yield "node", d.node
    if d.label and source_line(d.span) is None:
        yield "note", d.label
    yield from (("note", note) for note in d.notes)
    if d.evidence:
        yield "evidence", ", ".join(f"{name}={value}" for name, value in d.evidence)
    if d.path:
        yield "path", "\n-> ".join(_step(step.what, step.span) for step in d.path)
    if d.repair is not None:
        yield "repair", d.repair
    elif d.candidates:
        costs = ", ".join(f"{name} (cost {cost:g})" for name, cost in d.candidates)
        yield "repair", f"none taken; candidates: {costs}"
    yield from (("help", text) for text in d.help)


def _step(what: str, span: Span) -> str:
    where = place(span, column=False)
    return f"{what} ({where})" if where else what
