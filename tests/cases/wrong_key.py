"""Public faults of the kind "wrong key"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
