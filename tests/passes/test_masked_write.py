"""Padded rows of owned state keep what they hold."""

from __future__ import annotations

import torch
from torch import nn


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.full((16, 4), 0.5))


class Copies(Owner):
    def forward(self, x):
        self.seen[: x.shape[0]] = x
        return x + 1


class Adds(Owner):
    def forward(self, x):
        self.seen[: x.shape[0]].add_(x)
        return x + 1


class Everything(Owner):
    def forward(self, x):
        self.seen.mul_(2)
        return x + self.seen[0]


class Temporary(Owner):
    def forward(self, x):
        y = x * 2
        y.add_(1)
        return y + self.seen[0]


def test_a_copy_into_rows_of_state_is_masked(make_case, around, text, replays, differs):
    before, after = around(make_case(Copies()), "masked_write")
    assert before == text(
        """
        %0 = aten.slice.Tensor(seen, 0, 0, T)  [T:padded, 4]
        %1 = aten.copy_.default(%0, x)  [T:padded, 4]
        %2 = aten.add.Tensor(x, 1)  [T:padded, 4]
        return [%2]
        """
    )
    assert after == text(
        """
        %0 = aten.slice.Tensor(seen, 0, 0, T)  [T:padded, 4]
        %1 = aten.sym_size.int(%0, 0)
        %2 = aten.arange.default(%1)
        %3 = aten.lt.Tensor(%2, live_t)
        %4 = aten.unsqueeze.default(%3, -1)
        %5 = aten.where.self(%4, x, %0)
        %6 = aten.copy_.default(%0, %5)  [T:padded, 4]
        %7 = aten.add.Tensor(x, 1)  [T:padded, 4]
        return [%7]
        """
    )
    replays(make_case(Copies()))
    differs(make_case(Copies()))


def test_another_in_place_op_works_on_a_copy_of_the_rows(make_case, around, text, replays, differs):
    before, after = around(make_case(Adds()), "masked_write")
    assert "clone" not in before
    assert after == text(
        """
        %0 = aten.slice.Tensor(seen, 0, 0, T)  [T:padded, 4]
        %1 = aten.clone.default(%0)
        %2 = aten.add_.Tensor(%1, x)  [T:padded, 4]
        %3 = aten.sym_size.int(%0, 0)
        %4 = aten.arange.default(%3)
        %5 = aten.lt.Tensor(%4, live_t)
        %6 = aten.unsqueeze.default(%5, -1)
        %7 = aten.where.self(%6, %1, %0)
        %8 = aten.copy_.default(%0, %7)
        %9 = aten.add.Tensor(x, 1)  [T:padded, 4]
        return [%9]
        """
    )
    replays(make_case(Adds()))
    differs(make_case(Adds()))


def test_a_write_to_all_of_the_state_is_left_alone(make_case, around, replays):
    before, after = around(make_case(Everything()), "masked_write")
    assert before == after
    replays(make_case(Everything()))


def test_a_write_to_a_temporary_is_left_alone(make_case, around, replays):
    before, after = around(make_case(Temporary()), "masked_write")
    assert before == after and "aten.add_.Tensor" in after
    replays(make_case(Temporary()))


def test_the_caller_s_own_argument_is_written_back_live(make_case, replays):
    def writes(x):
        x.add_(1)
        return x * 2

    replays(make_case(writes))
