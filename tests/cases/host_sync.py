"""Public faults of the kind "host sync or host read"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
