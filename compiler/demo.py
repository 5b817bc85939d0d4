"""The demo: two real faults, replayed by a naive engine and by capwise, on the tape.

S1: n-gram ids of a real text under a token key; short steps after a burst of eight requests. S2: a short convolution
whose slots are a strided column of a block table, with a kernel that ignores the stride and with ours.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console, ConsoleOptions
from rich.table import Table

from capwise.backend import CompiledModel, case_options
from capwise.case import Case
from capwise.report import Report
from capwise.verify import moved


@dataclass
class Outcome:
    """What one engine did over one history. Rows are token rows; ids are single numbers of integer outputs."""

    wrong_ids: int = 0
    wrong_steps: int = 0
    wrong_rows: int = 0
    foreign_slots: int = 0
    steps: int = 0
    report: Report = field(default_factory=Report)
    outputs: list[torch.Tensor] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        return bool(self.wrong_ids or self.wrong_rows or self.wrong_steps or self.foreign_slots)

    def counts(self, *names: str) -> dict[str, int]:
        return {name: int(getattr(self, name)) for name in names}

    def plan(self) -> dict[str, int]:
        report = self.report
        return {"pieces": report.pieces, "seams": len(report.seams), "fills": report.fills, "copies": report.copies}


def replay(case: Case, unsafe: bool, counted: Mapping[int, bool] | None = None, device: str = "cpu") -> Outcome:
    """Runs a case's history eagerly and replayed and counts what differs.

    Args:
        unsafe: replay as a naive engine would (repair="none").
        counted: which steps count; None counts all.
        device: "cpu" replays on the tape, "cuda" through device graphs.
    """
    options = {"capture": "tape" if device == "cpu" else "graph"} | ({"repair": "none"} if unsafe else {})
    if device == "cpu":
        options["lower"] = "eager"
    model = copy.deepcopy(case.model).to(device)
    reference = copy.deepcopy(case.reference if case.reference is not None else case.model).to(device)
    compiled = CompiledModel(model, case_options(case, **options))
    outcome = Outcome()
    for step, batch in enumerate(case.batches):
        mine = {k: moved(v, torch.device(device)) for k, v in batch.items()}
        theirs = {k: moved(v, torch.device(device)) for k, v in batch.items()}
        with torch.no_grad():
            expected = reference(**theirs)
        got = compiled(**mine)
        outcome.outputs.append(got.detach().cpu().clone())
        if counted is None or counted[step]:
            _count(outcome, expected, got, model, reference, batch)
    outcome.report = compiled.report
    outcome.report.case = case.name
    return outcome


def _count(
    outcome: Outcome,
    expected: torch.Tensor,
    got: torch.Tensor,
    model: torch.nn.Module,
    reference: torch.nn.Module,
    batch: Mapping[str, Any],
) -> None:
    exact = not expected.dtype.is_floating_point
    bad = (expected != got) if exact else ~torch.isclose(expected, got, rtol=1e-3, atol=1e-4)
    rows = int(bad.flatten(1).any(1).sum())
    outcome.steps += 1
    outcome.wrong_rows += rows
    outcome.wrong_ids += int(bad.sum()) if exact else 0
    foreign = _foreign(model, reference, batch)
    outcome.foreign_slots += foreign
    outcome.wrong_steps += bool(rows or foreign)


def _foreign(model: torch.nn.Module, reference: torch.nn.Module, batch: Mapping[str, Any]) -> int:
    """State rows that are not as they should be and that no request of this step owns."""
    table = batch.get("state_table")
    if table is None:
        return 0
    owned = set(table[:, 0].tolist())
    count = 0
    for mine, right in zip(model.buffers(), reference.buffers()):
        if mine.dim() and mine.shape[0] > 1 and mine.dtype.is_floating_point:
            bad = ~torch.isclose(mine, right, rtol=1e-3, atol=1e-4).flatten(1).all(1)
            count += sum(int(row) not in owned for row in bad.nonzero().flatten())
    return count


@dataclass
class DemoResult:
    """Counts for each engine; ok: capwise was right everywhere, and the naive engine was wrong where it should be."""

    s1: dict[str, Outcome]
    s2: dict[str, Outcome]
    s2_ours: dict[str, Outcome]
    probes: dict[str, int]

    @property
    def ok(self) -> bool:
        right = not any(o.wrong for group in (self.s1, self.s2, self.s2_ours) for o in [group["capwise"]])
        shown = all(group["unsafe"].wrong for group in (self.s1, self.s2))
        return right and shown and self.probes["capwise"] == self.probes["of"]

    def to_dict(self) -> dict[str, Any]:
        ids, rows = ("wrong_ids", "wrong_steps"), ("wrong_rows", "foreign_slots")
        return {
            "s1": _both(self.s1, ids),
            "s2": _both(self.s2, rows),
            "s2_ours": _both(self.s2_ours, rows),
            "probes_identical": dict(self.probes),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        table = Table(title="replay against eager", title_justify="left")
        for name in ("history", "engine", "wrong ids", "wrong steps", "wrong rows", "foreign slots"):
            table.add_column(name, justify="left" if name in ("history", "engine") else "right")
        for name in ("pieces", "seams", "fills", "copies"):
            table.add_column(name, justify="right")
        for title, group in self._groups():
            for engine, o in group.items():
                plan = o.plan()
                table.add_row(
                    f"{title} ({o.steps} steps)",
                    engine,
                    *[str(getattr(o, n)) for n in ("wrong_ids", "wrong_steps", "wrong_rows", "foreign_slots")],
                    *[str(plan[n]) for n in ("pieces", "seams", "fills", "copies")],
                )
        yield table
        p = self.probes
        yield (
            f"S1, {p['of']} probes before and after a burst of eight requests: identical "
            f"{p['unsafe']} of {p['of']} unsafe, {p['capwise']} of {p['of']} with capwise"
        )
        for _, group in self._groups():
            yield str(group["capwise"].report)

    def _groups(self) -> list[tuple[str, dict[str, Outcome]]]:
        return [
            ("S1 n-gram ids", self.s1),
            ("S2 unit-stride kernel", self.s2),
            ("S2 our kernel", self.s2_ours),
        ]


def _both(group: Mapping[str, Outcome], names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    return {engine: {**o.counts(*names), **(o.plan() if engine == "capwise" else {})} for engine, o in group.items()}


def run(device: str = "cpu") -> DemoResult:
    """Both seed faults, each with a naive engine and with capwise."""
    from capwise.models import demo_cases as cases

    counted = {i: kind != "burst" for i, kind in enumerate(cases.s1_kinds())}
    return DemoResult(
        s1=_engines(cases.s1(), counted, device),
        s2=_engines(cases.s2(kernel="unit"), None, device),
        s2_ours=_engines(cases.s2(kernel="ours"), None, device),
        probes=probes_identical(cases.s1_before_after(), device),
    )


def _engines(case: Case, counted: Mapping[int, bool] | None, device: str) -> dict[str, Outcome]:
    return {
        "unsafe": replay(case, True, counted, device),
        "capwise": replay(case, False, counted, device),
    }


def probes_identical(case: Case, device: str = "cpu") -> dict[str, int]:
    """Of the probes before the burst (the middle step), how many come out bitwise the same after it."""
    found = {"of": (len(case.batches) - 1) // 2}
    for engine, unsafe in (("unsafe", True), ("capwise", False)):
        outputs = replay(case, unsafe, device=device).outputs
        before, after = outputs[: found["of"]], outputs[found["of"] + 1 :]
        found[engine] = sum(torch.equal(a, b) for a, b in zip(before, after))
    return found
