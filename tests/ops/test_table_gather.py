"""Table rows of every token: the kernel against the reference."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from capwise import compat
from capwise.ops.table_gather import ple_table_gather


@settings(max_examples=20, deadline=None, database=None)
@given(tokens=st.integers(0, 9), heads=st.integers(1, 5), width=st.integers(1, 9), seed=st.integers(0, 999))
def test_kernel_equals_reference(tokens, heads, width, seed, strided):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(11, width, generator=generator).to((torch.float32, torch.float16)[seed % 2])
    ids = torch.randint(-2, 13, (tokens, heads), generator=generator)
    args = strided(ids, seed), strided(table, seed + 1)
    reference = ple_table_gather(*args)
    with compat.interpreted():
        kernel = ple_table_gather(*args)
    assert torch.equal(reference, kernel) and reference.shape == (tokens, heads * width)


def test_rows_stand_side_by_side_and_ids_outside_the_table_read_as_zeros():
    table = torch.arange(6.0).view(3, 2)
    ids = torch.tensor([[2, 0], [3, -1], [1, 2**62]])
    assert ple_table_gather(ids, table).tolist() == [[4, 5, 0, 1], [0, 0, 0, 0], [2, 3, 0, 0]]
