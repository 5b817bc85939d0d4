"""Live extents on the device in place of host numbers."""

from __future__ import annotations

import torch


def test_a_count_of_tokens_becomes_a_live_scalar(make_case, around, text, replays, differs):
    case = make_case(lambda x: x * (x.shape[0] * 2 + 1))
    before, after = around(case, "device_scalar")
    assert before == text(
        """
        %0 = mul(T, 2)
        %1 = add(%0, 1)
        %2 = aten.mul.Tensor(x, %1)  [T:padded, 4]
        return [%2]
        """
    )
    assert after == text(
        """
        %0 = mul(T, 2)
        %1 = add(%0, 1)
        %2 = aten.mul.Tensor(live_t, 2)
        %3 = aten.add.Tensor(%2, 1)
        %4 = aten.mul.Tensor(x, %3)  [T:padded, 4]
        return [%4]
        """
    )
    replays(case)
    differs(case)


def test_float_arithmetic_is_done_again_on_the_device(make_case, around, text, replays, differs):
    case = make_case(lambda x: x * (1.0 / x.shape[0]))
    before, after = around(case, "device_scalar")
    assert "live_t" not in before
    assert (
        text(
            """
        %2 = aten._to_copy.default(live_t, dtype=torch.float64)
        %3 = aten.full.default([], 1.0)
        %4 = aten.div.Tensor(%3, %2)
        %5 = aten.mul.Tensor(x, %4)  [T:padded, 4]
        """
        )
        in after
    )
    replays(case)
    differs(case)


def test_a_number_made_a_tensor_is_the_live_scalar_itself(make_case, around, replays, differs):
    case = make_case(lambda x: x * torch.tensor(x.shape[0]))
    before, after = around(case, "device_scalar")
    assert "aten.scalar_tensor" in before and "aten.scalar_tensor" not in after
    assert "aten._to_copy.default(live_t, dtype=torch.int64)" in after
    replays(case)
    differs(case)


def test_an_extent_is_not_content(make_case, around, replays):
    """Sizes of views and factories follow the captured extent, and must."""
    case = make_case(lambda x: x.view(x.shape[0] * 2, 2) + torch.ones(x.shape[0] * 2, 1))
    before, after = around(case, "device_scalar")
    assert before == after and "live_t" not in after
    replays(case)


def test_a_constant_is_no_extent(make_case, around, replays):
    case = make_case(lambda x: x * x.shape[1])
    before, after = around(case, "device_scalar")
    assert before == after
    replays(case)


def test_an_op_that_takes_no_tensor_there_is_a_seam(make_case, around, replays):
    case = make_case(lambda x: x * torch.full((4,), float(x.shape[0])))
    before, after = around(case, "device_scalar")
    assert before == after and "seam aten.full.default" in after
    replays(case)
