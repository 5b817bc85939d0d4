"""Kernels by name, and their summaries, each made once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import triton

from capwise.kernel_access import KernelSummary, load_kernels, summarize

BLOCK_POINTERS = tuple(int(x) for x in triton.__version__.split(".")[:2]) < (3, 9)
"""Triton 3.9 took `tl.make_block_ptr` away."""

SIZES = {"B": 16, "H": 16, "W": 4, "P": 16, "G": 3}


@cache
def _kernels() -> dict[str, Any]:
    files = (Path(__file__).with_name(name) for name in ("kernels.py", "flow_kernels.py"))
    return {k.__name__: k for file in files for k in load_kernels(str(file))}


@cache
def _summary(name: str) -> KernelSummary:
    kernel = _kernels()[name]
    sizes = {p.name: SIZES[p.name] for p in kernel.params if p.is_constexpr and p.name in SIZES}
    return summarize(kernel, constexprs=sizes)


@pytest.fixture(scope="session")
def kernel() -> Callable[[str], Any]:
    """A kernel by name."""
    return lambda name: _kernels()[name]


@pytest.fixture(scope="session")
def summary() -> Callable[[str], KernelSummary]:
    """Summary with a guessed signature and small tiles."""
    return _summary


@pytest.fixture(scope="session")
def block_pointers() -> bool:
    """Whether this Triton has them."""
    return BLOCK_POINTERS


@pytest.fixture(scope="session")
def hazards(summary: Callable[[str], KernelSummary]) -> Callable[[str, str], dict[str, Any]]:
    """Hazards of one argument by code (the first of each code)."""

    def of(name: str, arg: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for hazard in summary(name)[arg].hazards:
            out.setdefault(hazard.code, hazard)
        return out

    return of


@pytest.fixture(scope="session")
def offsets(summary: Callable[[str], KernelSummary]) -> Callable[[str, str], list[str]]:
    """Offsets of one argument as text."""
    from capwise.kernel_access.printing import text

    return lambda name, arg: [text(a.poly) for a in summary(name)[arg].accesses]
