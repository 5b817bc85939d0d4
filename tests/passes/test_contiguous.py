"""Contiguous copies before kernels that assume a stride; what such a kernel writes is copied back."""

from __future__ import annotations

import torch
from torch import nn

from capwise.models.footguns import FOOTGUNS
from capwise.ops.contract import Axes, Contiguous, Contract, Rows, contract


@torch.library.custom_op("contiguous_tests::dense_add_", mutates_args={"x"})
def dense_add_(x: torch.Tensor, y: torch.Tensor) -> None:
    """Assumes that x is dense: adds in the order of memory."""
    flat = x.as_strided((x.numel(),), (1,))
    flat.add_(y.reshape(-1))


@dense_add_.register_fake
def _(x, y):
    return None


@contract("contiguous_tests::dense_add_")
def dense_add_contract():
    rows = {"x": Rows("T", None, write=True), "y": Rows("T", None)}
    return Contract(rows=rows, locality="row", strides={"x": Contiguous(), "y": Contiguous()})


class Strided(nn.Module):
    def forward(self, x):
        y = x * 2
        torch.ops.contiguous_tests.dense_add_(y[:, 1:3], x[:, :2].contiguous())
        return y + 1


class Right(nn.Module):
    def forward(self, x):
        y = x * 2
        y[:, 1:3] += x[:, :2]
        return y + 1


class Dense(nn.Module):
    def forward(self, x):
        y = x * 2
        torch.ops.contiguous_tests.dense_add_(y, x)
        return y + 1


def test_a_strided_argument_is_copied_in_and_back(make_case, around, text, replays):
    case = make_case(Strided())
    case.reference = Right()
    before, after = around(case, "contiguous")
    assert before == text(
        """
        %0 = aten.mul.Tensor(x, 2)  [T:padded, 4]
        %1 = aten.slice.Tensor(%0, 1, 1, 3)  [T:padded, 2]
        %2 = aten.slice.Tensor(x, 1, 0, 2)  [T:padded, 2]
        %3 = aten.clone.default(%2, memory_format=torch.contiguous_format)  [T:padded, 2]
        %4 = contiguous_tests.dense_add_.default(%1, %3)
        %5 = aten.add.Tensor(%0, 1)  [T:padded, 4]
        return [%5]
        """
    )
    assert (
        text(
            """
        %4 = aten.clone.default(%1, memory_format=torch.contiguous_format)
        %5 = contiguous_tests.dense_add_.default(%4, %3)
        %6 = aten.copy_.default(%1, %4)
        """
        )
        in after
    ), after
    replays(case)


def test_a_dense_argument_is_left_alone(make_case, around, replays):
    before, after = around(make_case(Dense()), "contiguous")
    assert before == after and "clone" not in after
    replays(make_case(Dense()))


def test_the_unit_stride_kernel_gets_a_dense_column(around):
    before, after = around(FOOTGUNS["unit stride"].case(), "contiguous")
    assert "clone" not in before and after.count("memory_format=torch.contiguous_format") == 2


def test_contracts_name_what_they_need():
    assert dense_add_contract().arguments["x"] == Axes(("T", None), write=True)
