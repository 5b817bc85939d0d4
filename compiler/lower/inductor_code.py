"""What Inductor generates, without running or loading it, on a machine without a GPU too.

What this patches (Inductor's settings, `GraphLowering.codegen`, Triton's active driver) is put back on leaving, also
when the context raises.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from capwise.compat import TargetOnly


class _Generated(Exception):  # noqa: N818 - no error: the code is there, the rest of the compile is not wanted
    pass


@contextlib.contextmanager
def inductor_code(found: list[str]) -> Iterator[None]:
    """Inside, what Inductor compiles ends once its code is generated: the code is appended to `found`, and an exception
    ends the compile, which the caller expects.

    Without a GPU, tensors on the CPU get Triton code too (`cpu_backend`), scheduled as for a CPU.
    """
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.codegen

    def codegen(graph: Any) -> Any:
        with config.patch({"triton.autotune_at_compile_time": False}):  # standalone_compile sets it
            code = original(graph)[0]
        found.append(code.value)
        raise _Generated

    functorch = torch._functorch.config
    with (
        config.patch(cpu_backend="triton", fx_graph_cache=False),
        functorch.patch(enable_autograd_cache=False),
        a_driver(),
    ):
        GraphLowering.codegen = codegen  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            GraphLowering.codegen = original  # type: ignore[method-assign]


@contextlib.contextmanager
def a_driver() -> Iterator[None]:
    """Inside, Triton has a driver to ask for its target, a device or not; that nothing will run is no warning."""
    from triton.runtime import driver

    active = driver._active
    try:
        if not torch.cuda.is_available():
            driver.set_active(TargetOnly())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Could not find an active CPU backend", UserWarning)
            yield
    finally:
        driver._active = active
