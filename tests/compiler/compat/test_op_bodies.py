"""What a custom op runs is found."""

from __future__ import annotations

import torch

from capwise import compat


@torch.library.custom_op("compat_tests::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_the_body_of_a_custom_op():
    body = compat.custom_op_body(torch.ops.compat_tests.op.default, "cpu")
    assert body(torch.zeros(1)).item() == 1
    assert compat.custom_op_body(torch.ops.aten.add.Tensor, "cpu") is None

    @op.register_kernel("cpu")
    def _(x):
        return x + 2

    assert compat.custom_op_body(torch.ops.compat_tests.op.default, "cpu")(torch.zeros(1)).item() == 2
