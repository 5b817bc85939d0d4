"""What a contract claims, put to the test by sample calls: each claim is perturbed, and what changes refutes it.

tails (what stands past the live extent), rows (which rows see which, and requests in another order), layout (strides),
slots (the null row), effects (writes, hidden inputs, host syncs, the order of programs); probe drafts a contract.
A claim that no sample refutes is no theorem: it is what the samples could not contradict.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from capwise.claims import effects, layout, rows, slots, tails
from capwise.claims.calls import Calls, Refuted, Result, Sample, resolved
from capwise.declared import ContractError
from capwise.ops import contract as c

__all__ = ["ContractRefuted", "Refuted", "check_contract", "refuted"]

CHECKS: tuple[ModuleType, ...] = (effects, tails, rows, layout, slots)


class ContractRefuted(ContractError, AssertionError):
    """A contract that a sample call contradicts. refuted: each field with what was seen."""

    def __init__(self, op: torch._ops.OpOverload, found: Sequence[Refuted]) -> None:
        super().__init__(f"contract of {op}: " + "; ".join(str(one) for one in found))
        self.refuted = tuple(found)


def check_contract(op: Any, samples: Sequence[Sample], contract: c.Contract | None = None) -> None:
    """Executes an op under perturbation of every claim of its contract.

    Args:
        op: an overload, packet, `torch.library.custom_op` or "ns::name".
        samples: calls as (args, kwargs), over CPU tensors at live extents. Several extents, requests of several
            lengths, and slots that are not the null one, test most.
        contract: the declared one if None.

    Raises:
        ContractRefuted: a claim does not hold; names its field.
        ValueError: no contract, no sample, one that the op does not take, or that contradicts the contract's axes.
    """
    overload = resolved(op)
    held = contract if contract is not None else c.declared(overload)
    if held is None:
        raise ValueError(f"{overload}: expected an op with a contract; declare one, or draft one with `capwise probe`")
    found = refuted(overload, samples, held)
    if found:
        raise ContractRefuted(overload, found)


def refuted(
    op: torch._ops.OpOverload, samples: Sequence[Sample], contract: c.Contract, checks: Sequence[ModuleType] = CHECKS
) -> list[Refuted]:
    """Every field that some sample refutes, once. checks: which of CHECKS are made."""
    if not samples:
        raise ValueError(f"{op}: expected samples, a list of (args, kwargs); got none")
    found: dict[str, Refuted] = {}
    runs: list[tuple[Calls, Result]] = []
    for number, calls in enumerate(Calls(op, contract, sample) for sample in samples):
        runs.append((calls, calls.run()))
        if runs[-1][1].error:
            raise ValueError(f"samples[{number}]: expected a call that {op} takes; it raises {runs[-1][1].error}")
        for check in checks:
            for one in check.check(calls):
                found.setdefault(one.field, one)
    if effects in checks:
        for one in effects.never_written(runs):
            found.setdefault(one.field, one)
    return list(found.values())
