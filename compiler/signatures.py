"""Signatures of kernels as a Case launches them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from capwise import compat
from capwise.case import Case
from capwise.kernel_access.ttir import unwrap
from capwise.lower.launches import triton_type

Place = tuple[str, int]


@dataclass(frozen=True)
class Signature:
    """Triton types of the run-time arguments, and values of the others, None among them."""

    types: Mapping[str, str]
    fixed: Mapping[str, Any]


@dataclass
class Signatures:
    """What some cases launched, by where a kernel is defined: a file that is run anew has kernels of its own."""

    launches: dict[Place, list[Signature]] = field(default_factory=dict)

    def of(self, kernel: Any) -> list[Signature]:
        """The signatures that a kernel was launched with, each once; none where it was not launched.

        Raises:
            TypeError: no jit kernel.
        """
        return self.launches.get(_place(kernel), [])

    def add(self, kernel: Any, bound: Mapping[str, Any]) -> None:
        """One launch with its arguments by name. Raises ValueError for an argument that Triton has no type for."""
        types: dict[str, str] = {}
        fixed: dict[str, Any] = {}
        for parameter in kernel.params:
            value = bound[parameter.name]
            if parameter.is_constexpr or value is None:
                fixed[parameter.name] = value
            else:
                types[parameter.name] = triton_type(parameter.name, value)
        known = self.launches.setdefault(_place(kernel), [])
        if all(repr(one) != repr(Signature(types, fixed)) for one in known):
            known.append(Signature(types, fixed))


def record_signatures(cases: Sequence[Case]) -> Signatures:
    """Runs every batch of some cases eagerly, kernels in the interpreter, on copies of their models.

    Raises:
        what the models raise.
    """
    found = Signatures()
    for case in cases:
        model = copy.deepcopy(case.model)
        with torch.no_grad(), compat.watching_launches(found.add):
            for batch in case.batches:
                model(**copy.deepcopy(dict(batch)))
    return found


def _place(kernel: Any) -> Place:
    code = unwrap(kernel).fn.__code__
    return str(Path(code.co_filename).resolve()), code.co_firstlineno
