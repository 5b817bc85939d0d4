"""SARIF 2.1.0 for code scanning, written by hand: stable rule ids, repository-relative URIs, fingerprints.

GitHub refuses results without a location, so what has no line of its own is put on the last step of its path that lies
in the repository, else on line 1 of pyproject.toml, and the message says where it really is.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from capwise.render.source import place, source_line
from capwise.report import RULES, Diagnostic, Report, Rule, Span

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_FALLBACK = Span("pyproject.toml", 1)


def sarif(reports: Sequence[Report]) -> str:
    """One run with every report's findings."""
    root = repository_root(Path.cwd())
    found = [(report.case, d) for report in reports for d in report]
    codes = sorted({d.code for _, d in found})
    seen: Counter[str] = Counter()
    results = [_result(case, d, codes, root, seen) for case, d in found]
    driver = {
        "name": "capwise",
        "version": importlib.metadata.version("capwise"),
        "rules": [_rule(RULES[code]) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"SRCROOT": {"uri": root.as_uri() + "/"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def repository_root(start: Path) -> Path:
    """The nearest folder above `start` (itself included) that holds .git, else `start`."""
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.code,
        "shortDescription": {"text": rule.title},
        "help": {"text": f"Repairs, cheapest first: {', '.join(rule.repairs)}. See `capwise explain {rule.code}`."},
        "defaultConfiguration": {"level": "error"},
    }


def _result(case: str, d: Diagnostic, codes: list[str], root: Path, seen: Counter[str]) -> dict[str, Any]:
    span, uri = _location(d, root)
    fingerprint = _fingerprint(d, span, uri)
    seen[fingerprint] += 1
    result: dict[str, Any] = {
        "ruleId": d.code,
        "ruleIndex": codes.index(d.code),
        "level": d.severity,
        "message": {"text": _message(d, span)},
        "locations": [_physical(span, uri)],
        "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint}:{seen[fingerprint]}"},
        "properties": {"verdict": d.verdict, "repair": d.repair or "", "node": d.node, "case": case},
    }
    steps = [(step, at) for step in d.path if (at := _uri(step.span, root)) is not None]
    if steps:
        flow = [{"location": {**_physical(step.span, at), "message": {"text": step.what}}} for step, at in steps]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    return result


def _location(d: Diagnostic, root: Path) -> tuple[Span, str]:
    for span in (d.span, *(step.span for step in reversed(d.path)), _FALLBACK):
        if (uri := _uri(span, root)) is not None:
            return span, uri
    return _FALLBACK, _FALLBACK.file


def _uri(span: Span, root: Path) -> str | None:
    """The span's file relative to the repository, percent-encoded; None outside of it or without a line."""
    if not span.file or span.line < 1:
        return None
    try:
        return quote(Path(os.path.abspath(span.file)).relative_to(root).as_posix())
    except ValueError:
        return None


def _physical(span: Span, uri: str) -> dict[str, Any]:
    region = {"startLine": span.line}
    if span.column > 0:
        region["startColumn"] = span.column
    if span.end_column > span.column > 0:
        region["endColumn"] = span.end_column
    return {"physicalLocation": {"artifactLocation": {"uri": uri, "uriBaseId": "SRCROOT"}, "region": region}}


def _message(d: Diagnostic, span: Span) -> str:
    lines = [d.message, *([d.label] if d.label else []), *d.notes]
    if d.repair:
        lines.append(f"repair: {d.repair}")
    lines += [f"help: {text}" for text in d.help]
    if span != d.span:
        lines.append(f"at {place(d.span)}" if d.file else f"at node {d.node}, which has no source line")
    return "\n".join(lines)


def _fingerprint(d: Diagnostic, span: Span, uri: str) -> str:
    """Stays the same when lines above are added: the code, the file and the text of the line count, not its number."""
    text = (source_line(span) or "").strip()
    return hashlib.sha256("\0".join((d.code, uri, text, d.message)).encode()).hexdigest()[:16]
