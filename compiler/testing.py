"""For tests of programs and of ops that capwise compiles.

`check_contract` executes an op under perturbation of every claim of its contract; `probe` drafts one. The pytest
fixture `assert_replay_sound` is in `capwise.pytest_plugin`: `pytest_plugins = ["capwise.pytest_plugin"]`.
"""

from __future__ import annotations

from capwise.claims import ContractRefuted, Refuted, check_contract
from capwise.claims.probe import Draft, probe
from capwise.contracts import opened as opened_contracts
from capwise.declared import ContractError, check_declared
from capwise.opening import open_op
from capwise.ops.contract import withheld as withheld_contracts

__all__ = [
    "ContractError",
    "ContractRefuted",
    "Draft",
    "Refuted",
    "check_contract",
    "check_declared",
    "open_op",
    "opened_contracts",
    "probe",
    "withheld_contracts",
]
