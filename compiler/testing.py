"""For tests of programs that capwise compiles."""

from __future__ import annotations

from capwise.ops.contract import withheld as withheld_contracts

__all__ = ["withheld_contracts"]
