"""Dynamo as capwise wants it: its settings, the axes that it is told to name, and its marks taken off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from capwise.compat.sources import source_of


@contextlib.contextmanager
def dynamo_settings(unbacked_sources: str, unbacked: bool) -> Iterator[None]:
    """Dynamo as capwise wants it, for one call: scalars and data-dependent sizes captured, nothing made dynamic by
    itself, as many programs as a model has branches."""
    dynamo = {
        "capture_scalar_outputs": True,
        "capture_dynamic_output_shape_ops": True,
        "automatic_dynamic_shapes": False,
        "assume_static_by_default": True,
        "recompile_limit": 256,
        "fail_on_recompile_limit_hit": True,
    }
    wanted: list[tuple[Any, dict[str, Any]]] = [(torch._dynamo.config, dynamo)]
    if unbacked_sources:
        wanted.append((torch.compiler.config, {"unbacked_sources": unbacked_sources}))
    if not unbacked:
        wanted.append((torch.fx.experimental._config, {"use_duck_shape": False}))
    with contextlib.ExitStack() as stack:
        for config, values in wanted:
            stack.enter_context(config.patch(values))
        yield


def restart_with_names(gm: fx.GraphModule, specs: Any) -> None:
    """Marks the real inputs of a graph whose named axes Dynamo took literally, and has it trace again.

    The only way for a bare backend to name axes; the exception that restarts is private to Dynamo.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    hit = False
    for node in gm.graph.find_nodes(op="placeholder"):
        value, source = node.meta["example_value"], source_of(node)
        spec = specs.get(source[3:-2]) if source.startswith("L['") else None
        if spec is None or not isinstance(value, torch.Tensor) or spec.kind == "int":
            continue
        real = node.meta["grapharg"].example
        for dim, label in enumerate(spec.dims):
            if label.symbol is not None and dim < value.dim() and isinstance(value.shape[dim], int):
                if dim in getattr(real, "_dynamo_unbacked_indices", set()):
                    continue
                torch._dynamo.decorators.mark_unbacked(real, dim, shape_id=str(label))
                hit = True
    if hit:
        # With symbols the trace takes other steps than the log of the first try expects.
        translator = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
        translator.speculation_log.clear()
        raise TensorifyScalarRestartAnalysis("capwise names the axes")


def unmark(values: Sequence[Any]) -> None:
    """Takes Dynamo's marks off tensors, once the graph that they were for is compiled and guarded."""
    for value in values:
        if isinstance(value, torch.Tensor):
            for name in [n for n in vars(value) if n.startswith(("_dynamo_", "_has_dynamo_"))]:
                delattr(value, name)
