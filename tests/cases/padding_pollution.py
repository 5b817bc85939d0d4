"""Public faults of the kind "padding pollution"."""

from __future__ import annotations

from tests.cases.harness import Record

RECORDS: list[Record] = []
