"""Kernels run in the interpreter, on CPU tensors, while the block lasts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from capwise import compat


@triton.jit
def double(value):
    return value * 2


@triton.jit
def doubles(x_ptr, out_ptr, rows, flag, BLOCK: tl.constexpr = 4):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = double(tl.load(x_ptr + at, mask=at < rows, other=0.0))
    for _ in range(1):
        value = tl.where(flag, value, -value)
    tl.store(out_ptr + at, value, mask=at < rows)


def test_kernels_run_on_cpu_tensors_inside():
    x, out = torch.arange(6.0), torch.full((8,), 9.0)
    with compat.interpreted():
        assert compat.interpreting()
        doubles[(2,)](x, out, 6, True)
    assert not compat.interpreting() and out.tolist() == [0, 2, 4, 6, 8, 10, 9, 9]


def test_a_launch_may_take_names_a_grid_function_and_options():
    x, out = torch.ones(4), torch.zeros(4)
    with compat.interpreted():
        doubles[lambda meta: (triton.cdiv(meta["rows"], meta["BLOCK"]),)](
            x_ptr=x, out_ptr=out, rows=4, flag=False, BLOCK=2, num_warps=1
        )
    assert out.tolist() == [-2.0] * 4


def test_one_launch_without_the_block():
    out = torch.zeros(4)
    compat.run_interpreted(doubles, (1,), x_ptr=torch.ones(4), out_ptr=out, rows=3, flag=True)
    assert out.tolist() == [2, 2, 2, 0]
