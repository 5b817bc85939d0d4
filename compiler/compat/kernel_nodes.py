"""Nodes of Dynamo's graphs that launch Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from capwise.compat.interpreter import defaults


@dataclass(frozen=True)
class HopLaunch:
    """What a kernel's node of the graph says: the JITFunction, its grid, its arguments, what else was given."""

    kernel: Any
    grid: tuple[Any, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]


def is_kernel_node(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") in (
        "triton_kernel_wrapper_mutation",
        "triton_kernel_wrapper_functional",
    )


def hop_launch(node: fx.Node) -> HopLaunch | None:
    """Reads a kernel's node. None for what has no plain launch: tensor descriptors made on the host, hooks.

    Of an autotuned kernel the first configuration is taken.
    """
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    given: dict[str, Any] = dict(node.kwargs)
    kernel: Any = kernel_side_table.get_kernel(given["kernel_idx"])
    arguments = {**given["kwargs"], **kernel_side_table.get_constant_args(given["constant_args_idx"])}
    options: dict[str, Any] = {}
    if given.get("tma_descriptor_metadata"):
        return None
    while not hasattr(kernel, "params"):
        configs = getattr(kernel, "configs", None)
        if not configs or configs[0].pre_hook is not None or getattr(kernel, "reset_to_zero", None):
            return None
        arguments |= configs[0].kwargs
        options |= {k: v for k, v in configs[0].all_kwargs().items() if k not in configs[0].kwargs}
        kernel = kernel.fn
    grid = tuple(given["grid"][0])
    arguments = {**defaults(kernel), **arguments}
    named = {k: v for k, v in arguments.items() if k in kernel.arg_names}
    options |= {k: v for k, v in arguments.items() if k not in kernel.arg_names}
    return HopLaunch(kernel, grid, named, options)
