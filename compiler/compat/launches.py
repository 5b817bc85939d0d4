"""Launches of Triton kernels are recorded in place of running, or watched while they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from capwise.compat.interpreter import defaults, interpreted
from capwise.compat.patching import replaced


@contextlib.contextmanager
def recording_launches(record: Callable[[Any, Any, dict[str, Any]], None]) -> Iterator[None]:
    """Inside, every Triton launch goes to `record(kernel, grid, bound arguments)` in place of running."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:  # no Triton: nothing can launch
        yield
        return

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        if not warmup:
            record(kernel, grid, {**defaults(kernel), **dict(zip(kernel.arg_names, args)), **kwargs})

    with interpreted(), first_config(), replaced(JITFunction, "run", launch):
        yield


@contextlib.contextmanager
def watching_launches(watch: Callable[[Any, dict[str, Any]], None]) -> Iterator[None]:
    """Inside, every Triton launch on CPU tensors calls `watch(kernel, bound arguments)`, then runs interpreted."""
    from triton.runtime.jit import JITFunction

    with interpreted(), first_config():
        before = JITFunction.run

        def launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
            watch(kernel, {**defaults(kernel), **dict(zip(kernel.arg_names, args)), **kwargs})
            before(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        with replaced(JITFunction, "run", launch):
            yield


@contextlib.contextmanager
def first_config() -> Iterator[None]:
    """An autotuned kernel takes its first configuration: there is nothing to time."""
    from triton.runtime.autotuner import Autotuner

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return tuner.fn.run(*args, **{**kwargs, **tuner.configs[0].all_kwargs()})

    with replaced(Autotuner, "run", run):
        yield
