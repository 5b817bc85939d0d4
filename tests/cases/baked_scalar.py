"""Public faults of the kind "baked scalar"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
