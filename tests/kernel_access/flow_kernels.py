"""Kernels with all kinds of control flow, indexing, and what cannot be followed."""

import triton
import triton.language as tl


@triton.jit
def early_returns(a_ptr, b_ptr, out_ptr, n):
    r = tl.program_id(0)
    if r >= n:
        return
    a = tl.load(a_ptr + r)
    if a > 2:
        if tl.load(b_ptr + a) == 0:
            return
    tl.store(out_ptr + r * 2 + 1, a)


@triton.jit
def nested(x_ptr, len_ptr, out_ptr, n, stride, B: tl.constexpr):
    r = tl.program_id(0)
    length = tl.load(len_ptr + r)
    p = x_ptr + r * stride
    total = 0.0
    for i in range(0, length):
        q = p + i
        for j in range(2, n, 3):
            total += tl.sum(tl.load(q + j * B + tl.arange(0, B)))
            q += 5
        p += n
    tl.store(out_ptr + r, total)


@triton.jit
def walk(x_ptr, out_ptr, n, stride, B: tl.constexpr):
    i = tl.program_id(0)
    p = x_ptr + i * stride + tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    while i < n:
        total += tl.load(p)
        p += B
        i += 2
    tl.store(out_ptr + tl.program_id(0) * B + tl.arange(0, B), total)


@triton.jit
def persistent(x_ptr, out_ptr, rows, stride, B: tl.constexpr):
    o = tl.arange(0, B)
    for r in range(tl.program_id(0), rows, tl.num_programs(0)):
        tl.store(out_ptr + r * stride + o, tl.load(x_ptr + r * stride + o))


@triton.jit
def block_pointers(x_ptr, out_ptr, rows, cols, stride, B: tl.constexpr):
    r = tl.program_id(0)
    p = tl.make_block_ptr(x_ptr, (rows, cols), (stride, 1), (r * B, 0), (B, B), (1, 0))
    q = tl.make_block_ptr(out_ptr, (cols, rows), (1, stride), (0, r * B), (B, B), (0, 1))
    for _ in range(0, cols, B):
        tl.store(q, tl.trans(tl.load(p, boundary_check=(0, 1))), boundary_check=(0, 1))
        p = tl.advance(p, (0, B))
        q = tl.advance(q, (B, 0))


@triton.jit
def shapes(x_ptr, out_ptr, n):
    flat = tl.arange(0, 32)
    grid = tl.reshape(flat, (4, 8))
    turned = tl.trans(grid)
    x = tl.load(x_ptr + turned * n + tl.program_id(1))
    pair = tl.join(tl.arange(0, 8) + 100, tl.arange(0, 8) * 3)
    tl.store(out_ptr + pair, tl.load(x_ptr + pair))
    tl.store(out_ptr + 1000 + turned, x)


@triton.jit
def divided(x_ptr, out_ptr, heads, stride, G: tl.constexpr):
    i = tl.program_id(0)
    a = tl.load(x_ptr + (i // heads) * stride + i % heads)
    b = tl.load(x_ptr + (i // G) * G + i % G + tl.minimum(i, 3) + tl.maximum(i - 2, 0))
    tl.store(out_ptr + (i & 3) + (i >> 1) * 4, a + b)


@triton.jit
def pages(q_ptr, cache_ptr, table_ptr, len_ptr, stride_table, stride_page, P: tl.constexpr, H: tl.constexpr):
    r = tl.program_id(0)
    length = tl.load(len_ptr + r)
    o = tl.arange(0, H)
    total = tl.zeros([H], tl.float32)
    for i in range(0, tl.cdiv(length, P)):
        page = tl.load(table_ptr + r * stride_table + i).to(tl.int64)
        at = i * P + tl.arange(0, P)
        p = cache_ptr + page * stride_page + tl.arange(0, P)[:, None] * H + o[None, :]
        total += tl.sum(tl.load(p, mask=(at < length)[:, None], other=0.0), 0)
    tl.store(q_ptr + r * H + o, total)


@triton.jit
def counted(x_ptr, count_ptr, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    bucket = tl.load(x_ptr + o, mask=o < n, other=0)
    tl.atomic_add(count_ptr + bucket, 1, mask=o < n)


@triton.jit(noinline=True)
def _clamped(ptr, i, n):
    if i >= n:
        return 0
    return tl.load(ptr + i)


@triton.jit
def called(x_ptr, out_ptr, n):
    r = tl.program_id(0)
    for i in range(3):
        tl.store(out_ptr + r * 3 + i, _clamped(x_ptr, r + i, n))


@triton.jit
def either_base(a_ptr, b_ptr, flag_ptr, out_ptr):
    r = tl.program_id(0)
    p = a_ptr
    q = r * 2
    if tl.load(flag_ptr + r) > 0:
        p = b_ptr
        q = r + 7
    tl.store(out_ptr + r, tl.load(p + q))


@triton.jit
def descriptor(x_ptr, out_ptr, rows, B: tl.constexpr):
    d = tl.make_tensor_descriptor(x_ptr, [rows, B], [B, 1], [B, B])
    o = tl.arange(0, B)
    tl.store(out_ptr + o[:, None] * B + o[None, :], d.load([tl.program_id(0) * B, 0]))


@triton.jit
def pointer_table(table_ptr, out_ptr):
    r = tl.program_id(0)
    p = tl.load(table_ptr + r).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + r, tl.load(p))


@triton.jit
def assembly(x_ptr, out_ptr):
    r = tl.program_id(0)
    i = tl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,r", [r], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr + r, tl.load(x_ptr + i))


@triton.jit
def unbounded_floor(x_ptr, idx_ptr, out_ptr, n):
    r = tl.program_id(0)
    i = tl.load(idx_ptr + r) - n
    tl.store(out_ptr + r, tl.load(x_ptr + i // n + i % n))


@triton.jit
def own_memory(table_ptr, out_ptr):
    r = tl.program_id(0)
    tl.store(table_ptr + r, r)
    tl.store(out_ptr + tl.load(table_ptr + 1), r)


@triton.jit
def float_index(x_ptr, w_ptr, out_ptr):
    r = tl.program_id(0)
    tl.store(out_ptr + r, tl.load(x_ptr + tl.load(w_ptr + r).to(tl.int32)))


@triton.jit
def float_mask(x_ptr, w_ptr, out_ptr, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    w = tl.load(w_ptr + o)
    tl.store(out_ptr + o, tl.load(x_ptr + o), mask=w > 0.5)


@triton.jit
def helper_value(x):
    return x * 2


@triton.jit
def until_length(x_ptr, len_ptr, out_ptr):
    i = 0
    n = tl.load(len_ptr + tl.program_id(0))
    while i < n:
        tl.store(out_ptr + i, tl.load(x_ptr + i))
        i += 1


@triton.jit
def search_runaway(qsl_ptr, out_ptr, num_reqs):
    t = tl.program_id(0)
    lo = 0
    while tl.load(qsl_ptr + lo) < t:
        lo += tl.load(qsl_ptr + lo + num_reqs)
    tl.store(out_ptr + t, lo)


@triton.jit
def assumed_bound(x_ptr, out_ptr, n):
    r = tl.program_id(0)
    tl.assume(r < n)
    tl.store(out_ptr + r, tl.load(x_ptr + r))


@triton.jit
def plain_names(a, b, c, n, eps, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a += n
    i = tl.load(b + o)
    tl.store(c + o, tl.load(a + i) + eps)


@triton.jit
def annotated(a, n: tl.int64, scale: float):
    tl.store(a + n, scale)


@triton.jit
def never_compiles(a_ptr):
    tl.store(a_ptr, tl.arange(0, 3))


@triton.jit
def carried_lanes(x_ptr, out_ptr, n, B: tl.constexpr):
    o = tl.arange(0, B)
    same = o
    grown = o * 2
    odd = o
    for i in range(n):
        x = tl.load(x_ptr + same[None, :] * 64 + grown[:, None] + odd[:, None])
        tl.store(out_ptr + i + o, tl.sum(x, 0))
        same = o
        grown += 3
        odd = 15 - odd


@triton.jit
def unrolled_search(qsl_ptr, out_ptr, num_reqs):
    t = tl.program_id(0)
    lo = 0
    hi = num_reqs
    for _ in tl.static_range(24):
        mid = (lo + hi) // 2
        right = tl.load(qsl_ptr + mid) <= t
        lo = tl.where(right, mid, lo)
        hi = tl.where(right, hi, mid)
    tl.store(out_ptr + t, lo)


@triton.jit
def unrolled_choices(qsl_ptr, out_ptr, num_reqs):
    t = tl.program_id(0)
    lo = 0
    hi = num_reqs
    for _ in tl.static_range(24):
        mid = (lo + hi) // 2
        right = tl.load(qsl_ptr + mid) <= t
        lo = tl.where(right, mid - 1, lo)
        hi = tl.where(right, hi, mid)
    tl.store(out_ptr + t, lo)


@triton.jit
def beside_unknown(x_ptr, w_ptr, out_ptr, n):
    a = tl.program_id(0)
    lost = 0
    for _ in range(n):
        tl.store(out_ptr + a, lost)
        lost = tl.load(w_ptr + a).to(tl.int32) + lost * 2
        a = tl.load(x_ptr + a) + 3


@triton.jit
def unrolled_rows(x_ptr, out_ptr, N: tl.constexpr):
    r = tl.program_id(0)
    for i in tl.static_range(N):
        tl.store(out_ptr + r * N + i, tl.load(x_ptr + i))
