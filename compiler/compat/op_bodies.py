"""The Python bodies of custom ops."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def custom_op_body(op: torch._ops.OpOverload, device: str) -> Callable[..., Any] | None:
    """The Python body of a `torch.library.custom_op` on a device; None where the op has none that can be seen."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(op._schema.name)
    if definition is None:
        return None
    bodies = definition._backend_fns
    return bodies.get(device) or bodies.get(None) or definition._init_fn


def custom_ops() -> list[torch._ops.OpOverload]:
    """Every `torch.library.custom_op` of this process."""
    from torch._library.custom_ops import OPDEFS

    return [definition._opoverload for definition in list(OPDEFS.values())]


def custom_op_functions(op: torch._ops.OpOverload) -> list[Any]:
    """The functions that a `torch.library.custom_op` was made of, one a kind of device, as their author wrote them."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(op._schema.name)
    if definition is None:
        return []
    functions = [_written(f) for f in definition._backend_fns.values()] or [definition._init_fn]
    return list(dict.fromkeys(functions))


def written_op_body(op: torch._ops.OpOverload, device: str) -> Callable[..., Any] | None:
    """What `custom_op_body` runs, as its author wrote it."""
    body = custom_op_body(op, device)
    return None if body is None else _written(body)


def triton_op_body(target: Any) -> Callable[..., Any] | None:
    """The Python body of a `torch.library.triton_op`, which is made to be traced; None for any other op."""
    import torch._library.triton as library
    from torch._library.custom_ops import OPDEFS

    schema = getattr(target, "_schema", None)
    name = schema.name if schema is not None else getattr(target, "_qualified_op_name", "")
    if name not in getattr(library, "triton_ops_to_kernels", {}):
        return None
    definition = OPDEFS.get(name)
    return definition._abstract_fn if definition is not None else None


def _written(function: Any) -> Any:
    """What torch wrapped, to keep it from a compiler and to check what it returns."""
    while (function.__module__ or "").startswith("torch."):
        inside = inspect.getclosurevars(function).nonlocals
        following = next((inside[n] for n in ("fn", "f", "func") if callable(inside.get(n))), None)
        if following is None:
            break
        function = following
    return function
