"""Public faults of the kind "alias, overlap, race"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
