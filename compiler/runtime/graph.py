"""CUDA and HIP graphs, through torch.cuda (which is HIP's name on ROCm too)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class DevicePool:
    """One memory pool for all graphs of an arena."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()


def record(run: Callable[..., Any], args: Sequence[Any], pool: DevicePool) -> tuple[Any, torch.cuda.CUDAGraph]:
    """Warms `run(*args)` up on a side stream, then records it.

    Returns:
        what it returned (pool memory, valid until the next replay) and the graph.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, pool=pool.handle, capture_error_mode="thread_local"):
        out = run(*args)
    return out, graph
