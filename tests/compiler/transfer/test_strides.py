"""Whether a value has the strides that its consumer needs."""

from __future__ import annotations

import pytest
import torch

from capwise.ops.contract import Contiguous, Unit
from capwise.transfer.strides import is_satisfied

ODD = torch.arange(8.0).view(1, 4, 2)[:, :2]  # sizes (1, 2, 2), strides (8, 2, 1)


@pytest.mark.parametrize(
    ("need", "value", "holds"),
    [
        (Contiguous(), ODD, True),  # nobody steps along one element
        (Contiguous(raw=True), ODD, False),
        (Contiguous(raw=True), ODD.clone(memory_format=torch.contiguous_format), True),
        (Contiguous(raw=True), ODD.contiguous(), False),  # it is dense already, and stays as it is
        (Contiguous(), ODD[:, :, :1], False),
        (Contiguous(raw=True), torch.arange(4.0)[::4].as_strided((1,), (4,)), False),
        (Contiguous(), torch.arange(4.0).as_strided((1,), (4,)), True),
        (Unit(), torch.arange(8.0).view(2, 4)[:, ::2], False),
        (Unit(), torch.arange(8.0).view(2, 4)[:, :1], True),
    ],
)
def test_strides_of_one_element(need, value, holds):
    assert is_satisfied(need, value) is holds
