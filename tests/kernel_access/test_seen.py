"""What a kernel does with its values: along which extents lanes are combined, and where that leaves rows alone."""

from functools import cache
from pathlib import Path

import pytest
import triton
import triton.language as tl

from capwise.kernel_access import load_kernels, summarize

SIGNATURE = {"x_ptr": "*fp32", "w_ptr": "*fp32", "flag_ptr": "*i32", "out_ptr": "*fp32", "n": "i32"}


@cache
def kernels():
    return {k.__name__: k for k in load_kernels(str(Path(__file__).with_name("any_kernels.py")))}


def seen(name):
    return summarize(kernels()[name], SIGNATURE, {"B": 4, "H": 8}).seen


@pytest.mark.parametrize("name", ["adds_masked", "stores_masked"])
def test_a_branch_taken_for_any_row_that_leaves_the_others_alone_combines_no_rows(name):
    found = seen(name)
    assert not found.combined and len(found.finite) == 1


@pytest.mark.parametrize("name", ["adds_to_all", "other_default", "wider_mask", "used_again", "stores_all"])
def test_a_branch_that_touches_the_others_combines_them(name):
    found = seen(name)
    assert found.mixes((4,), 0, 4) and not found.finite


@triton.jit
def product(a_ptr, b_ptr, out_ptr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, b))


def test_a_product_of_matrices_combines_what_it_sums_over():
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "out_ptr"), "*fp32")
    found = summarize(product, pointers, {"M": 16, "K": 32, "N": 64}).seen
    assert found.combined == {((16, 32), 1), ((32, 64), 0)}
    assert found.mixes((16, 32), 1, 32) and not found.mixes((16, 32), 0, 16) and not found.mixes((32, 64), 1, 64)
