"""Branches that a program takes where any of its rows needs them."""

import triton
import triton.language as tl


@triton.jit
def adds_masked(x_ptr, w_ptr, flag_ptr, out_ptr, n, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    mine = (tl.load(flag_ptr + t, mask=t < n, other=0) > 0) & (t < n)
    total = tl.zeros((B, H), tl.float32)
    if tl.max(mine.to(tl.int32), 0) > 0:
        w = tl.load(w_ptr + h)
        total += tl.load(x_ptr + at, mask=mine[:, None], other=0.0) * w[None, :]
    tl.store(out_ptr + at, total, mask=(t < n)[:, None])


@triton.jit
def adds_to_all(x_ptr, w_ptr, flag_ptr, out_ptr, n, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    mine = (tl.load(flag_ptr + t, mask=t < n, other=0) > 0) & (t < n)
    total = tl.zeros((B, H), tl.float32)
    if tl.max(mine.to(tl.int32), 0) > 0:
        w = tl.load(w_ptr + h)
        total += tl.load(x_ptr + at, mask=mine[:, None], other=0.0) * w[None, :] + w[None, :]
    tl.store(out_ptr + at, total, mask=(t < n)[:, None])


@triton.jit
def other_default(x_ptr, w_ptr, flag_ptr, out_ptr, n, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    mine = (tl.load(flag_ptr + t, mask=t < n, other=0) > 0) & (t < n)
    total = tl.zeros((B, H), tl.float32)
    if tl.max(mine.to(tl.int32), 0) > 0:
        w = tl.load(w_ptr + h)
        total += tl.load(x_ptr + at, mask=mine[:, None], other=1.0) * w[None, :]
    tl.store(out_ptr + at, total, mask=(t < n)[:, None])


@triton.jit
def wider_mask(x_ptr, w_ptr, flag_ptr, out_ptr, n, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    mine = (tl.load(flag_ptr + t, mask=t < n, other=0) > 0) & (t < n)
    total = tl.zeros((B, H), tl.float32)
    if tl.max(mine.to(tl.int32), 0) > 0:
        w = tl.load(w_ptr + h)
        total += tl.load(x_ptr + at, mask=(t < n)[:, None], other=0.0) * w[None, :]
    tl.store(out_ptr + at, total, mask=(t < n)[:, None])


@triton.jit
def used_again(x_ptr, w_ptr, flag_ptr, out_ptr, n, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    mine = (tl.load(flag_ptr + t, mask=t < n, other=0) > 0) & (t < n)
    total = tl.zeros((B, H), tl.float32)
    some = tl.max(mine.to(tl.int32), 0)
    if some > 0:
        w = tl.load(w_ptr + h)
        total += tl.load(x_ptr + at, mask=mine[:, None], other=0.0) * w[None, :]
    tl.store(out_ptr + at, total + some, mask=(t < n)[:, None])


@triton.jit
def stores_masked(x_ptr, w_ptr, flag_ptr, out_ptr, n, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    at = t[:, None] * H + tl.arange(0, H)[None, :]
    mine = (tl.load(flag_ptr + t, mask=t < n, other=0) > 0) & (t < n)
    if tl.max(mine.to(tl.int32), 0) > 0:
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mine[:, None], other=0.0), mask=mine[:, None])


@triton.jit
def stores_all(x_ptr, w_ptr, flag_ptr, out_ptr, n, B: tl.constexpr, H: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    at = t[:, None] * H + tl.arange(0, H)[None, :]
    mine = (tl.load(flag_ptr + t, mask=t < n, other=0) > 0) & (t < n)
    if tl.max(mine.to(tl.int32), 0) > 0:
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mine[:, None], other=0.0), mask=(t < n)[:, None])
