"""The table of all public cases: `python -m tests.cases.table` writes docs/cases.md.

`python -m tests.cases.table --print C74` prints the rows of some records.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cases.harness import CAPTURE, GROUPS, Finding, Record, examine, same
from tests.cases.records import KINDS, all_records

PAGE = Path(__file__).parents[2] / "docs" / "cases.md"
TOTAL = sum(KINDS.values())
MOST_FALSE_ALARMS = 2
HEAD = (
    "| case | what goes wrong | code | verdict | repair | unsafe | twin |",
    "|---|---|---|---|---|---|---|",
)
INTRO = f"""# The public cases

{TOTAL} faults of real systems, each as a Case of `tests/cases` with the numbers of its report. *unsafe* is what
`repair="none"` gives, which must be the report's wrong value; with `auto` replay gives the right one. *code* was
written down before the first run. *twin* is the same model repaired, by so many lines, which must raise no error, no
warning and no seam.

Written by `python -m tests.cases.table`; `tests/cases` checks each row.
"""


def row(found: Finding) -> str:
    """One record's line."""
    record = found.record
    cells = [f"{record.id} [{record.ref}]({_url(record.ref)})", record.title, *_verdict(found), _unsafe(found)]
    return "| " + " | ".join([*cells, _twin(found)]) + " |"


def _url(ref: str) -> str:
    repository, _, number = ref.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def _verdict(found: Finding) -> tuple[str, str, str]:
    if found.report is None:
        return f"({', '.join(found.record.codes)})" if found.record.codes else "none", "outside", f"{found.caught}"
    if not found.hits:
        return "missed", "", ""
    first = found.hits[0]
    by = f"; {found.caught}" if found.caught else ""
    return first.code, first.verdict, f"{first.repair or 'refused'}{by}"


def _unsafe(found: Finding) -> str:
    record = found.record
    if record.unshown is not None:
        return f"not shown: {record.unshown}"
    if found.unsafe is None:
        return f"{_value(record.wrong)}, right is {_value(record.expected)} (the report's)"
    if record.wrong == CAPTURE:
        return f"{CAPTURE}; right is {_value(record.expected)}"
    return f"{_value(found.number(found.unsafe))}, right is {_value(found.number(found.auto))}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _twin(found: Finding) -> str:
    if found.report is None:
        return "caught with the defect, passes without" if found.caught_without is None else "false alarm"
    lines = "1 line" if found.lines == 1 else f"{found.lines} lines"
    return f"{'clean' if not found.alarms else 'false alarm'}, {lines}"


def is_right(found: Finding) -> bool:
    """Whether a record counts: its wrong number shown (or said why not), caught with its family, and right then."""
    record = found.record
    if found.report is None:
        return found.caught is not None and found.caught_without is None
    shown = record.unshown is not None or same(found.number(found.unsafe), record.wrong)
    right = found.auto is not None and found.auto.ok and same(found.number(found.auto), record.expected)
    return bool(found.hits) and shown and right


def page(findings: Sequence[Finding]) -> str:
    """The whole page."""
    right = sum(is_right(f) for f in findings)
    alarms = sum(bool(f.alarms) for f in findings if f.twin_report is not None)
    parts = [INTRO, f"**{right} of {TOTAL}** caught and right; {alarms} false alarms (at most {MOST_FALSE_ALARMS}).\n"]
    for group, words in GROUPS.items():
        mine = sorted((f for f in findings if f.record.group == group), key=lambda f: int(f.record.id[1:]))
        shown = sum(f.unsafe is not None and not f.unsafe.ok for f in mine)
        caught = f"{sum(is_right(f) for f in mine)} of {len(mine)} caught, {shown} shown to go wrong on the tape."
        parts.append("\n".join([f"## {words[0].upper()}{words[1:]}", "", caught, "", *HEAD, *map(row, mine), ""]))
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> None:
    records = all_records()
    if arguments[:1] == ["--print"]:
        chosen: list[Record] = [r for r in records if r.id in arguments[1:]]
        print("\n".join(row(examine(r)) for r in chosen))
        return
    PAGE.write_text(page([examine(r) for r in records]), encoding="utf-8")
    print(f"{PAGE}: {len(records)} records")


if __name__ == "__main__":
    main(sys.argv[1:])
