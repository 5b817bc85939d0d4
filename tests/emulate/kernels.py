"""Triton kernels, the data they run on, what numpy says about the result, and how to compile them without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WAVE = {"gfx942": 64, "gfx1201": 32}


@triton.jit
def gather(x, idx, y, n, stride, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    i = tl.load(idx + o, mask=m, other=0)
    v = tl.load(x + i * stride, mask=m & (i >= 0), other=-7.0)
    tl.store(y + o, v * 2 + 1, mask=m)


@triton.jit
def reduce(x, y, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM,), tl.float32)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    for c0 in range(0, N, BN):
        c = c0 + tl.arange(0, BN)
        m = (r[:, None] < M) & (c[None, :] < N)
        v = tl.load(x + r[:, None] * stride + c[None, :], mask=m, other=0.0)
        total += tl.sum(v, 1)
        largest = tl.maximum(largest, tl.max(tl.where(m, v, float("-inf")), 1))
    tl.store(y + r * 2, total, mask=r < M)
    tl.store(y + r * 2 + 1, largest, mask=r < M)


@triton.jit
def softmax(x, y, N, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r * N + c, mask=c < N, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + r * N + c, e / tl.sum(e, 0), mask=c < N)


@triton.jit
def dot(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        rk = k0 + tl.arange(0, BK)
        av = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        bv = tl.load(b + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(av, bv, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def sort_scan(x, ordered, sums, B: tl.constexpr):
    c = tl.arange(0, B)
    v = tl.load(x + c)
    tl.store(ordered + c, tl.sort(v))
    tl.store(sums + c, tl.cumsum(v, 0))


@triton.jit
def atomics(x, counts, largest, n, bins, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    v = tl.load(x + o, mask=m, other=0)
    tl.atomic_add(counts + v % bins, 1, mask=m)
    tl.atomic_max(largest + o % bins, v.to(tl.float32), mask=m)


@triton.jit
def divide(x, q, r, n, d, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    v = tl.load(x + o, mask=m, other=1)
    tl.store(q + o, v // d, mask=m)
    tl.store(r + o, v % d, mask=m)


@triton.jit
def shift_block(x, bias, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(x + o, tl.load(x + o + bias))


@triton.jit
def shift_rows(x, stride, bias, R: tl.constexpr, C: tl.constexpr):
    o = tl.arange(0, R)[:, None] * stride + tl.arange(0, C)[None, :]
    tl.store(x + o, tl.load(x + o + bias))


@triton.jit
def gather_rows_64(x, rows, y, stride, B: tl.constexpr):
    r = tl.load(rows + tl.program_id(0)).to(tl.int64)
    c = tl.arange(0, B)
    tl.store(y + tl.program_id(0) * B + c, tl.load(x + r * stride + c))


@triton.jit
def gather_rows_32(x, rows, y, stride, B: tl.constexpr):
    r = tl.load(rows + tl.program_id(0))
    c = tl.arange(0, B)
    tl.store(y + tl.program_id(0) * B + c, tl.load(x + r * stride + c))


def compile_kernel(
    kernel: Any, signature: dict[str, str], constexprs: dict[str, int], gfx: str, *, specialised: bool, **options: Any
) -> Any:
    """Compile for ``gfx`` with no GPU present. ``specialised`` is what the launcher assumes of tensors under 2 GiB."""
    names = list(kernel.arg_names)
    hints = [["tt.divisibility", 16], ["tt.pointer_range", 32]] if specialised else []
    source = ASTSource(
        fn=kernel,
        signature={n: "constexpr" if n in constexprs else signature[n] for n in names},
        constexprs={(names.index(n),): v for n, v in constexprs.items()},
        attrs={(i,): hints for i, n in enumerate(names) if hints and signature.get(n, "").startswith("*")},
    )
    return triton.compile(source, target=GPUTarget("hip", gfx, WAVE[gfx]), options=options)


@dataclass(frozen=True)
class Case:
    """A kernel, how to compile it, and ``data(rng)``: the arguments and the expected contents of some of them."""

    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, int]
    grid: tuple[int, ...]
    data: Callable[[np.random.Generator], tuple[dict[str, Any], dict[str, np.ndarray]]]
    tolerance: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def compile(self, gfx: str, *, specialised: bool = False) -> Any:
        return compile_kernel(
            self.kernel, self.signature, self.constexprs, gfx, specialised=specialised, **self.options
        )

    def mismatch(self, args: dict[str, Any], expected: dict[str, np.ndarray]) -> str:
        """What differs after a run, or an empty string."""
        for name, want in expected.items():
            error = np.abs(args[name].astype(np.float64) - want).max()
            if not error <= self.tolerance:
                return f"{name} is off by {error}"
        return ""


def _gather(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    n, stride = 300, 3
    idx, x = rng.integers(-1, 50, n).astype(np.int32), rng.standard_normal(148).astype(np.float32)
    y = np.full(n + 20, 99, np.float32)
    want = y.copy()
    want[:n] = np.where(idx >= 0, x[np.maximum(idx * stride, 0)], np.float32(-7)) * 2 + 1
    return {"x": x, "idx": idx, "y": y, "n": n, "stride": stride}, {"y": want}


def _reduce(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    M, N, stride = 19, 100, 112
    x, y = rng.standard_normal((M, stride)).astype(np.float32), np.full((M + 1, 2), 5, np.float32)
    want = np.full((M + 1, 2), 5.0)
    want[:M] = np.stack([x[:, :N].astype(np.float64).sum(1), x[:, :N].max(1)], 1)
    return {"x": x, "y": y, "M": M, "N": N, "stride": stride}, {"y": want}


def _softmax(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    N = 200
    x = rng.standard_normal((3, N)).astype(np.float32) * 3
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return {"x": x, "y": np.zeros_like(x), "N": N}, {"y": e / e.sum(1, keepdims=True)}


def _dot(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    M, N, K = 37, 33, 40
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((M, K), (K, N)))
    args = {"a": a, "b": b, "c": np.full((M, N), 7, np.float32), "M": M, "N": N, "K": K}
    return args, {"c": a.astype(np.float64) @ b.astype(np.float64)}


def _sort_scan(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    x = rng.integers(-1000, 1000, 256).astype(np.int32)
    args = {"x": x, "ordered": np.zeros_like(x), "sums": np.zeros_like(x)}
    return args, {"ordered": np.sort(x), "sums": np.cumsum(x)}


def _atomics(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    n, bins = 500, 13
    # Runs of equal bins in the first half: Triton combines neighbouring lanes that hit one address.
    x = np.concatenate([np.sort(rng.integers(0, bins, n // 2)), rng.integers(0, 1000, n // 2)]).astype(np.int32)
    largest = np.full(bins, -1.0)
    np.maximum.at(largest, np.arange(n) % bins, x)
    args = {"x": x, "counts": np.zeros(bins, np.int32), "largest": np.full(bins, -1, np.float32), "n": n, "bins": bins}
    return args, {"counts": np.bincount(x % bins, minlength=bins), "largest": largest}


def _divide(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    n, d = 200, 12345
    x = rng.integers(-(2**40), 2**40, n)
    q = np.array([abs(v) // d * (1 if v >= 0 else -1) for v in x.tolist()])
    return {"x": x, "q": np.zeros_like(x), "r": np.zeros_like(x), "n": n, "d": d}, {"q": q, "r": x - q * d}


F, I, L = "*fp32", "*i32", "*i64"
CASES = {
    "gather": Case(gather, {"x": F, "idx": I, "y": F, "n": "i32", "stride": "i32"}, {"B": 128}, (3,), _gather),
    "reduce": Case(
        reduce, {"x": F, "y": F, "M": "i32", "N": "i32", "stride": "i32"}, {"BM": 16, "BN": 64}, (2,), _reduce, 1e-4
    ),
    "softmax": Case(softmax, {"x": F, "y": F, "N": "i32"}, {"B": 256}, (3,), _softmax, 1e-6),
    "dot": Case(
        dot,
        {"a": "*fp16", "b": "*fp16", "c": F, "M": "i32", "N": "i32", "K": "i32"},
        {"BM": 32, "BN": 32, "BK": 32},
        (2, 2),
        _dot,
        1e-4,
    ),
    "sort_scan": Case(sort_scan, {"x": I, "ordered": I, "sums": I}, {"B": 256}, (1,), _sort_scan),
    "atomics": Case(
        atomics, {"x": I, "counts": I, "largest": F, "n": "i32", "bins": "i32"}, {"B": 256}, (2,), _atomics
    ),
    "divide": Case(divide, {"x": L, "q": L, "r": L, "n": "i32", "d": "i64"}, {"B": 128}, (2,), _divide),
}
