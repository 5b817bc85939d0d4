"""Kernels in a traced graph: each higher-order node becomes a call of the kernel's own op."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from capwise import compat
from capwise.kernel_access import BuildError
from capwise.lower.launches import triton_type
from capwise.runtime.kernel_call import KernelCall, kernel_call


class Opening(fx.Interpreter):
    """Runs a Dynamo graph with `triton_op`s opened: what stands in their place are the ops and kernels of their
    bodies. Other custom ops stay closed."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        body = compat.triton_op_body(target)
        return body(*args, **kwargs) if body is not None else super().call_function(target, args, kwargs)


def open_kernels(graph: fx.GraphModule) -> None:
    """Replaces every launch in the graph by a call of its op. A launch that has no plain form, or that does not
    compile, stays as it is: an op that nobody speaks for."""
    changed = False
    for node in list(graph.graph.nodes):
        if compat.is_kernel_node(node):
            changed = _open(graph.graph, node) or changed
    if changed:
        graph.graph.lint()
        graph.recompile()


def _open(graph: fx.Graph, node: fx.Node) -> bool:
    launch = compat.hop_launch(node)
    if launch is None or "functional" in str(node.target):
        return False
    try:
        call = _call(launch)
    except (BuildError, ValueError, TypeError):
        return False
    grid = (*launch.grid, 1, 1)[:3]
    with graph.inserting_before(node):
        made = graph.call_function(call.op, (*(launch.arguments[n] for n in call.signature), *grid))
    made.meta = {**node.meta, "val": None}
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return True


def _call(launch: compat.HopLaunch) -> KernelCall:
    signature: dict[str, str] = {}
    fixed: dict[str, Any] = {}
    for parameter in launch.kernel.params:
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            fixed[parameter.name] = value
        else:
            signature[parameter.name] = _type(parameter, value)
    return kernel_call(launch.kernel, signature, fixed, launch.options)


def _type(parameter: Any, value: Any) -> str:
    known = value.meta["val"] if isinstance(value, fx.Node) else value
    said = getattr(parameter, "annotation_type", None)
    if said and not isinstance(known, torch.Tensor):
        return str(said)
    if isinstance(known, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        return {torch.SymInt: "i32", torch.SymBool: "i1", torch.SymFloat: "fp32"}[type(known)]
    return triton_type(parameter.name, known)
