"""Whether tensors still live where they did."""

from __future__ import annotations

import torch


def addresses_hold(tensors: list[torch.Tensor], addresses: list[int], indices: list[int]) -> bool:
    """Whether every tensor still lives where it did. One call where torch has it (builds for devices), which takes
    lists only; `indices` are those of all tensors."""
    if compare := getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None):
        return bool(compare(tensors, addresses, indices))
    return list(map(torch.Tensor.data_ptr, tensors)) == addresses
