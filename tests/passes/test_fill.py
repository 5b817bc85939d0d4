"""Neutral values written into the tails of single arguments, as plain ATen on live scalars."""

from __future__ import annotations

import torch


def test_an_argument_that_the_arena_cannot_fill_gets_a_filled_copy(make_case, around, text, replays, differs):
    """exp(0) is 1: no fill of x makes the tail of exp(x) neutral for the sum."""
    case = make_case(lambda x: x - torch.exp(x).sum(0))
    before, after = around(case, "fill")
    assert before == text(
        """
        %0 = aten.exp.default(x)  [T:filled(1.0), 4]
        %1 = aten.sum.dim_IntList(%0, [0])  [4]
        %2 = aten.sub.Tensor(x, %1)  [T:padded, 4]
        return [%2]
        """
    )
    assert after == text(
        """
        %0 = aten.exp.default(x)  [T:filled(1.0), 4]
        %1 = aten.sym_size.int(%0, 0)
        %2 = aten.arange.default(%1)
        %3 = aten.lt.Tensor(%2, live_t)
        %4 = aten.unsqueeze.default(%3, -1)
        %5 = aten.where.ScalarOther(%4, %0, 0.0)
        %6 = aten.sum.dim_IntList(%5, [0])  [4]
        %7 = aten.sub.Tensor(x, %6)  [T:padded, 4]
        return [%7]
        """
    )
    replays(case)
    differs(case)


def test_an_argument_that_the_arena_fills_is_left_alone(make_case, around, replays, differs):
    """relu(0) is 0: the arena's zero reaches the sum."""
    case = make_case(lambda x: x - torch.relu(x).sum(0))
    before, after = around(case, "fill")
    assert before == after and "filled(0.0)" in after
    replays(case)
    differs(case)


def test_a_sum_within_rows_is_left_alone(make_case, around, replays):
    case = make_case(lambda x: x - torch.exp(x).sum(1, keepdim=True))
    before, after = around(case, "fill")
    assert before == after
    replays(case)


def test_the_tail_of_a_minor_factor_is_filled_inside(make_case, around, text, replays, differs):
    case = make_case(lambda x: x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2).amax(0))
    before, after = around(case, "fill")
    assert "where" not in before
    lines = after.splitlines()
    assert (
        lines[-11:]
        == text(
            """
        %6 = aten.sym_size.int(%5, 0)
        %7 = floordiv(%6, 2)
        %8 = aten.reshape.default(%5, [2, %7, 2])
        %9 = aten.sym_size.int(%8, 1)
        %10 = aten.arange.default(%9)
        %11 = aten.lt.Tensor(%10, live_t)
        %12 = aten.unsqueeze.default(%11, -1)
        %13 = aten.where.ScalarOther(%12, %8, -inf)
        %14 = aten.reshape.default(%13, [%6, 2])
        %15 = aten.amax.default(%14, [0])  [2]
        return [%15]
        """
        ).splitlines()
    )
    replays(case)
    differs(case)


def test_the_last_live_row_is_repeated_by_a_gather(make_case, around, text, replays, differs):
    case = make_case(lambda x: (x.sum(0), (x * 2)[-1]))
    before, after = around(case, "fill")
    assert "index_select" not in before
    assert (
        text(
            """
        %4 = aten.sub.Tensor(live_t, 1)
        %5 = aten.minimum.default(%3, %4)
        %6 = aten.index_select.default(%1, 0, %5)
        %7 = aten.select.int(%6, 0, -1)  [4]
        """
        )
        in after
    ), after
    replays(case)
    differs(case)


def test_negative_row_numbers_are_brought_into_the_live_range(make_case, around, text, replays, differs):
    steps = [
        {"x": torch.arange(t * 4.0).view(t, 4), "at": torch.tensor(a)} for t, a in ((6, [-1, 0]), (3, [-1, -2, 1]))
    ]
    case = make_case(lambda x, at: x[at], steps, {"at": ("R",)})
    before, after = around(case, "fill")
    assert before == text(
        """
        %0 = aten.index.Tensor(x, [at])  [R:padded, 4]
        return [%0]
        """
    )
    assert after == text(
        """
        %0 = aten.remainder.Tensor(at, live_t)
        %1 = aten.index.Tensor(x, [%0])  [R:padded, 4]
        return [%1]
        """
    )
    replays(case)
    differs(case)


def test_under_split_nothing_is_filled(make_case, around, replays):
    case = make_case(lambda x: x - torch.exp(x).sum(0))
    before, after = around(case, "fill", repair="split")
    assert before == after and "seam aten.sum" in after
    replays(case, repair="split")
