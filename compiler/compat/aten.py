"""Graphs are traced over fake values to aten operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx


@contextlib.contextmanager
def fake_tracing(mode: Any) -> Iterator[None]:
    """Runs under the fake mode of Dynamo's example values. The tracing context holds another one: mixing them fails."""
    with mode if mode is not None else contextlib.nullcontext():
        yield


def make_aten(run: Callable[..., Any], fakes: Sequence[Any]) -> fx.GraphModule:
    """Traces `run` over fake values to an aten graph that keeps in-place ops. Composite ops go through their Python
    forms, as they did in Dynamo: the C++ ones ask for sizes as numbers."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    with enable_python_dispatcher():
        return make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True, record_module_stack=False)(*fakes)
