"""For tests of programs that capwise compiles."""

from __future__ import annotations

from capwise.contracts import opened as opened_contracts
from capwise.declared import ContractError, check_declared
from capwise.opening import open_op
from capwise.ops.contract import withheld as withheld_contracts

__all__ = ["ContractError", "check_declared", "open_op", "opened_contracts", "withheld_contracts"]
