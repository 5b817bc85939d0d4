"""Public faults as executable Cases: what a record says, and what is found when it is examined.

A record names, before its first run, the code that must be raised, the value that a naive engine gives and the right
one. `examine` then runs `check` on the faulty model, `verify` on it with and without repairs, and `verify` on the
repaired twin.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from capwise.backend import check_case
from capwise.case import Case
from capwise.report import Diagnostic, Report
from capwise.verify import VerifyResult, verify

Group = Literal["graph", "runner", "runtime"]
GROUPS: dict[Group, str] = {
    "graph": "visible in the graph",
    "runner": "in the host runner",
    "runtime": "in the runtime or driver",
}
# What stands for a wrong number where a naive engine cannot record the step at all.
CAPTURE = "cannot be recorded"
MOST_LINES = 5

Seen = Mapping[str, Any]


def last_output(steps: Sequence[Seen]) -> Any:
    """The first output of the last step: the default of `Record.read`."""
    return steps[-1]["output 0"]


@dataclass(frozen=True, eq=False)
class Record:
    """One public fault.

    Args:
        id, ref, kind: the record's number, its public reference, its kind.
        title: what goes wrong, in a few words, for the table.
        group: where the fault can be seen.
        codes: the code family: at least one of these must be raised.
        expected, wrong: the record's numbers, as plain numbers or lists; `wrong=CAPTURE` where a step cannot be
            recorded at all.
        case, twin: make the faulty and the repaired Case anew at each call. None only with `caught_by`.
        read: takes the record's number out of what the steps gave ("output i", "state name", "input name").
        sources: (faulty, repaired) pairs of classes or functions that differ; empty: the classes of the two models.
        unshown: why a naive engine's fault cannot be shown without a GPU; the case must then be right even unsafe.
        caught_by: for defects of a runtime or driver that no analysis can see: called with whether the runtime at hand
            has the defect, gives the name of the self-test or deny-list entry that catches it, or None.
        verify: further arguments of `verify`, such as `device`.
        false_alarm: why the twin is not clean, where that is known and counted.
    """

    id: str
    ref: str
    kind: str
    title: str
    group: Group
    codes: tuple[str, ...]
    expected: Any
    wrong: Any
    case: Callable[[], Case] | None = None
    twin: Callable[[], Case] | None = None
    read: Callable[[Sequence[Seen]], Any] = last_output
    sources: tuple[tuple[Any, Any], ...] = ()
    unshown: str | None = None
    caught_by: Callable[[bool], str | None] | None = None
    verify: Mapping[str, Any] = field(default_factory=dict)
    false_alarm: str | None = None

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(f"{self.id}: group: expected one of {', '.join(GROUPS)}; got {self.group!r}")
        if self.case is None and self.caught_by is None:
            raise ValueError(f"{self.id}: expected a case, or what catches the defect")
        if (self.case is None) != (self.twin is None):
            raise ValueError(f"{self.id}: expected a case and its twin together")


@dataclass(frozen=True)
class Finding:
    """What was found for a record; the fields are None where it has no case, or nothing that catches it."""

    record: Record
    report: Report | None = None
    unsafe: VerifyResult | None = None
    auto: VerifyResult | None = None
    twin: VerifyResult | None = None
    twin_report: Report | None = None
    lines: int = 0
    caught: str | None = None
    caught_without: str | None = None

    @property
    def hits(self) -> list[Diagnostic]:
        """Diagnostics of the expected family, worst first."""
        return [d for d in self.report or () if d.code in self.record.codes]

    @property
    def alarms(self) -> list[str]:
        """What makes the twin unclean: errors, warnings, seams."""
        assert self.twin_report is not None
        found = [f"{d.severity} {d.code}: {d.message}" for d in self.twin_report if d.severity != "note"]
        return found + [f"seam {seam.op}: {seam.code}" for seam in self.twin_report.seams]

    def number(self, result: VerifyResult | None) -> Any:
        """The record's number as a run gave it; CAPTURE where a step could not be recorded."""
        assert result is not None
        if any(m.what == "capture" for m in result.mismatches):
            return CAPTURE
        return plain(self.record.read(result.seen))


@functools.cache
def examine(record: Record) -> Finding:
    """Runs everything there is to run for a record, once a process."""
    caught, without = (record.caught_by(True), record.caught_by(False)) if record.caught_by else (None, None)
    if record.case is None or record.twin is None:
        return Finding(record, caught=caught, caught_without=without)
    faulty, twin = record.case(), record.twin()
    more: dict[str, Any] = {"keep": True, **record.verify}
    found = []
    for case, unsafe in ((faulty, True), (faulty, False), (twin, False)):
        torch._dynamo.reset()
        found.append(verify(case, unsafe=unsafe, **more))
    torch._dynamo.reset()
    report, twin_report = check_case(faulty), check_case(twin)
    torch._dynamo.reset()
    pairs = record.sources or ((type(faulty.model), type(twin.model)),)
    lines = sum(changed_lines(a, b) for a, b in pairs)
    return Finding(record, report, *found, twin_report, lines, caught, without)


def plain(value: Any) -> Any:
    """Tensors as numbers and lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def same(one: Any, other: Any) -> bool:
    """Equal numbers; NaN equals NaN."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return one == other or (one != one and other != other)


def changed_lines(faulty: Any, repaired: Any) -> int:
    """Lines of source that differ; the two names count as one, and a replaced line counts once."""
    before, after = (_lines(one) for one in (faulty, repaired))
    blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    return sum(max(a1 - a0, b1 - b0) for what, a0, a1, b0, b1 in blocks if what != "equal")


def _lines(one: Any) -> list[str]:
    named = getattr(one, "fn", getattr(one, "_init_fn", one))  # a Triton kernel, a custom op
    text = textwrap.dedent(inspect.getsource(named)).replace(named.__name__, "NAME")
    return [line for line in text.splitlines() if line.strip()]
