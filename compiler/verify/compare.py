"""Where two values differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# A GEMM at 5 rows and at 8 rows differs in the last bits: 2.6e-4 was measured in fp32 at K = 2560.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 5e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def difference(
    right: Any, got: Any, exact: bool, scratch: Sequence[tuple[int, int]] = ()
) -> tuple[tuple[int, ...], Any, Any, float] | None:
    """Where two values differ: (rows, expected, got, tolerance), or None.

    Args:
        exact: bitwise; else integers bitwise, floats within the tolerance of their dtype. NaN equals NaN.
        scratch: (dimension, row) pairs that are not compared.
    """
    if not isinstance(right, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = right == got or (isinstance(right, float) and right != right)
        return None if same else ((), right, got, 0.0)
    if right.shape != got.shape or right.dtype != got.dtype:
        return ((), f"{tuple(right.shape)} {right.dtype}", f"{tuple(got.shape)} {got.dtype}", 0.0)
    tolerance = 0.0 if exact else TOLERANCE.get(right.dtype, 0.0)
    bad = _differs(right, got, tolerance)
    for dim, row in scratch:
        if dim < bad.dim() and row < bad.shape[dim]:
            bad.select(dim, row).fill_(False)
    if not bool(bad.any()):
        return None
    at = tuple(int(i) for i in bad.nonzero()[0])
    rows = bad.reshape(bad.shape[0], -1).any(1).nonzero().flatten().tolist() if bad.dim() else []
    return (tuple(rows), right[at].item(), got[at].item(), tolerance)


def _differs(right: torch.Tensor, got: torch.Tensor, tolerance: float) -> torch.Tensor:
    equal = right == got
    if right.dtype.is_floating_point or right.dtype.is_complex:
        equal = equal | (right.isnan() & got.isnan())
        if tolerance:
            equal = equal | torch.isclose(right, got, rtol=tolerance, atol=tolerance)
    return ~equal
