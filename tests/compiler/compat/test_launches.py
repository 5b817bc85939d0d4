"""Launches are recorded in place of running, and what is patched for it is put back."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from capwise import compat


@triton.jit
def doubles(x_ptr, out_ptr, rows, BLOCK: tl.constexpr = 4):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < rows, other=0.0) * 2, mask=at < rows)


def test_launches_are_recorded_in_place_of_running():
    seen, out = [], torch.zeros(4)
    with compat.recording_launches(lambda kernel, grid, bound: seen.append((kernel, grid, bound))):
        doubles[(1,)](torch.ones(4), out, 4)
    ((kernel, grid, bound),) = seen
    assert kernel is doubles and grid[0] == 1 and bound["rows"] == 4 and bound["BLOCK"] == 4 and not out.any()


def test_what_is_patched_is_put_back_in_order():
    run, call = JITFunction.run, JITFunction.__call__
    with compat.interpreted():
        inner = JITFunction.run
        with compat.recording_launches(lambda *a: None):
            assert JITFunction.run is not inner
        assert JITFunction.run is inner is not run
    assert JITFunction.run is run and JITFunction.__call__ is call
