"""How an op chooses between its two bodies: the Triton kernel, or the torch reference.

A CUDA or HIP tensor takes the kernel. A CPU tensor takes the reference, except inside `capwise.compat.interpreted()`,
where the kernel is launched and runs in Triton's interpreter. Without Triton every op has its reference only.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from capwise import compat

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU machine without Triton
    triton = tl = None

__all__ = ["block", "device_tiles", "jit", "on_triton", "power_of_two", "tl", "triton"]

_DEVICE_TILES: ContextVar[bool] = ContextVar("capwise_device_tiles", default=False)


def jit(fn: Callable[..., Any]) -> Any:
    """`triton.jit`, or the plain function where Triton is not installed.

    Counts of rows, and what is annotated as a number of 64 bits, stay run-time arguments even at 1 or at multiples of
    16: a kernel is compiled once, not once a kind of batch.
    """
    if triton is None:
        return fn
    parameters = inspect.signature(fn).parameters.items()
    plain = [name for name, p in parameters if name in ("tokens", "requests") or p.annotation == "tl.int64"]
    return triton.jit(fn, do_not_specialize=plain)


def on_triton(tensor: torch.Tensor) -> bool:
    """True where an op over `tensor` launches its Triton kernel."""
    if triton is None:
        return False
    return tensor.device.type == "cuda" or (tensor.device.type == "cpu" and compat.interpreting())


@contextlib.contextmanager
def device_tiles() -> Iterator[None]:
    """Inside, launches over CPU tensors have a device's tile sizes: they are compiled for one, not interpreted."""
    token = _DEVICE_TILES.set(True)
    try:
        yield
    finally:
        _DEVICE_TILES.reset(token)


def block(extent: int, tensor: torch.Tensor, gpu: int, cpu: int) -> int:
    """A tile edge: a power of two, no more than `extent` needs and than `gpu` (or `cpu`, in the interpreter, whose cost
    is a program's) allows."""
    most = cpu if tensor.device.type == "cpu" and not _DEVICE_TILES.get() else gpu
    return min(most, power_of_two(extent))


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
