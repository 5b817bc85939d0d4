"""What the traced Python changes that outlives it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from capwise.compat.sources import source_name


@dataclass(frozen=True)
class PythonWrite:
    """A store that the traced Python makes to an object that outlives it: `owner` is the object's source; `item`
    where it is an entry of a container, "" for one that only grows or shrinks; tensor: a value of the graph, and node:
    which one."""

    owner: str
    name: str
    item: bool
    tensor: bool
    node: str = ""


def python_writes() -> list[PythonWrite]:
    """Stores to attributes, globals and containers that Dynamo found in the trace in progress; it makes them itself
    once the graph has run."""
    try:
        effects = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output.side_effects
    except AttributeError:
        return []
    found: list[PythonWrite] = []
    for variable in list(effects.id_to_variable.values()):
        source = getattr(variable, "source", None)
        if not effects.is_modified(variable) or _is_tensor_variable(variable):
            continue
        stores = effects.store_attr_mutations.get(variable, {})
        if source is None:
            is_global = type(variable).__name__ == "NewGlobalVariable"
            found += [_python_write("G", n, True, v) for n, v in stores.items() if is_global]
            continue
        owner = source_name(source)
        found += [_python_write(owner, n, False, v) for n, v in stores.items()]
        if not stores:
            found += _container_writes(variable, owner)
    return found


def _is_tensor_variable(variable: Any) -> bool:
    from torch._dynamo.variables import TensorVariable

    return isinstance(variable, TensorVariable)


def _container_writes(variable: Any, owner: str) -> list[PythonWrite]:
    """Entries of a changed dict or list that are values of the graph; else that it changed."""
    items = getattr(variable, "items", None)
    pairs = items.items() if isinstance(items, dict) else enumerate(items if isinstance(items, list) else ())
    new = [(k, v) for k, v in pairs if _is_tensor_variable(v) and getattr(v, "source", None) is None]
    return [_python_write(owner, _key(k), True, v) for k, v in new] or [PythonWrite(owner, "", True, False)]


def _python_write(owner: str, name: str, item: bool, value: Any) -> PythonWrite:
    tensor = _is_tensor_variable(value)
    return PythonWrite(owner, name, item, tensor, value.as_proxy().node.name if tensor else "")


def _key(key: Any) -> str:
    variable = getattr(key, "vt", key)
    with contextlib.suppress(Exception):
        return str(variable.as_python_constant())
    return str(key)
