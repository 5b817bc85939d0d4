"""Models that launch Triton kernels, traced and run on a machine without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from capwise.compat.interpreter import interpreting, launch_interpreted
from capwise.compat.launches import first_config
from capwise.compat.patching import replaced


class TargetOnly:
    """A Triton driver that knows a target and has no device."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


def has_device() -> bool:
    """Whether Triton can launch here by itself: a CUDA or ROCm device is there."""
    return torch.cuda.is_available()


@contextlib.contextmanager
def tracing_kernels() -> Iterator[None]:
    """Inside, Dynamo takes `kernel[grid](...)` into the graph also where no device is. With a device, or without
    Triton, nothing is patched.

    Patched and put back: `torch.utils._triton.has_triton`, and Triton's active driver.
    """
    try:
        from triton.runtime import driver
    except ImportError:
        yield
        return
    if has_device():
        yield
        return
    with replaced(torch.utils._triton, "has_triton", lambda: True), replaced(driver, "_active", TargetOnly()):
        yield


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Inside, eager code may launch Triton kernels where no device is: each runs in the interpreter, while an op that
    has a torch body for CPU tensors still takes that. With a device nothing is patched."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    if has_device() or interpreting():
        yield
        return
    with first_config(), replaced(JITFunction, "run", launch_interpreted):
        yield
