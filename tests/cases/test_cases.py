"""Every public case: the fault shows, its code is raised, replay is right, and the repaired twin is clean."""

from __future__ import annotations

import pytest

from tests.cases.harness import CAPTURE, MOST_LINES, Record, examine, same
from tests.cases.records import KINDS, all_records, of_kind
from tests.cases.table import MOST_FALSE_ALARMS, PAGE, TOTAL, is_right, page, row

RECORDS = all_records()
WITH_CASE = [r for r in RECORDS if r.case is not None]
CAUGHT = [r for r in RECORDS if r.caught_by is not None]


def _ids(records: list[Record]) -> list[str]:
    return [r.id for r in records]


@pytest.mark.parametrize("record", WITH_CASE, ids=_ids(WITH_CASE))
def test_a_naive_engine_gives_the_wrong_number(record: Record) -> None:
    found = examine(record)
    assert found.unsafe is not None
    if record.unshown is not None:
        assert found.unsafe.ok, f"{record.unshown}, but: {found.unsafe}"
        return
    assert not found.unsafe.ok
    assert same(found.number(found.unsafe), record.wrong), str(found.unsafe)


@pytest.mark.parametrize("record", WITH_CASE, ids=_ids(WITH_CASE))
def test_replay_gives_the_right_number(record: Record) -> None:
    found = examine(record)
    assert found.auto is not None and found.auto.ok, str(found.auto)
    assert same(found.number(found.auto), record.expected)


@pytest.mark.parametrize("record", WITH_CASE, ids=_ids(WITH_CASE))
def test_its_code_is_raised(record: Record) -> None:
    found = examine(record)
    assert record.codes and found.hits, str(found.report)


@pytest.mark.parametrize("record", WITH_CASE, ids=_ids(WITH_CASE))
def test_the_repaired_twin_is_clean_and_right(record: Record) -> None:
    found = examine(record)
    assert found.twin is not None and found.twin.ok, str(found.twin)
    assert same(found.number(found.twin), record.expected)
    assert bool(found.alarms) == (record.false_alarm is not None), found.alarms
    assert 1 <= found.lines <= MOST_LINES


def test_a_defect_of_the_runtime_is_caught_where_it_is() -> None:
    for record in CAUGHT:
        found = examine(record)
        assert found.caught is not None and found.caught_without is None, record.id


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_of_a_kind_are_of_that_kind(kind: str) -> None:
    records = of_kind(kind)
    assert all(r.kind.replace("-", "_").startswith(kind) for r in records)
    assert len(records) == KINDS[kind]


@pytest.mark.parametrize("record", RECORDS, ids=_ids(RECORDS))
def test_its_row_in_the_table_is_up_to_date(record: Record) -> None:
    """Else: `python -m tests.cases.table`."""
    assert row(examine(record)) in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_table_is_complete_and_its_totals_are_right() -> None:
    assert len(RECORDS) == TOTAL == 63
    found = [examine(r) for r in RECORDS]
    assert PAGE.read_text(encoding="utf-8") == page(found)
    assert all(map(is_right, found))
    assert sum(bool(f.alarms) for f in found if f.twin_report is not None) <= MOST_FALSE_ALARMS


def test_numbers_and_references_are_unique() -> None:
    assert len({r.id for r in RECORDS}) == len({r.ref for r in RECORDS}) == len(RECORDS)


def test_a_wrong_number_differs_from_the_right_one() -> None:
    assert all(not same(r.wrong, r.expected) and r.expected != CAPTURE for r in RECORDS)
