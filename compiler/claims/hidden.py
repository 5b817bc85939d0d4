"""Hidden inputs: what an op's body can reach beside its arguments is changed, and the call repeated."""

from __future__ import annotations

import contextvars
import inspect
import types
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from typing import Any

import torch

from capwise import compat

# Places tried an op, and how far objects are followed.
MOST = 48
DEPTH = 3
_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch._ops.OpOverload)


def influences(op: torch._ops.OpOverload, differs: Callable[[], str]) -> Iterator[str]:
    """Places outside the arguments that the op's result depends on: module-level containers and objects, context
    variables, tensors that a closure holds. `differs` repeats the call and says what changed.

    Everything is put back. Module-level numbers and strings are constants: nothing changes them.
    """
    for tried, (name, change) in enumerate(_places(op)):
        if tried >= MOST:
            return
        undo = change()
        try:
            seen = differs()
        finally:
            undo()
        if seen:
            yield f"{name}: {seen}"


Change = Callable[[], Callable[[], None]]


def _places(op: torch._ops.OpOverload) -> Iterator[tuple[str, Change]]:
    body = compat.custom_op_body(op, "cpu")
    if body is None:
        return
    for name, value in _reachable(body, set(), DEPTH):
        yield from _leaves(name, value, DEPTH, set())


def _reachable(function: Any, seen: set[Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Names outside of a function that it and the functions it calls use."""
    function = inspect.unwrap(function)
    if function in seen or depth < 0 or not isinstance(function, types.FunctionType):
        return
    seen.add(function)
    outside = inspect.getclosurevars(function)
    for name, value in {**outside.globals, **outside.nonlocals}.items():
        if isinstance(value, types.FunctionType):
            yield from _reachable(value, seen, depth - 1)
        elif not isinstance(value, _CODE) and not _is_foreign(value):
            yield name, value
        elif isinstance(value, types.ModuleType) and not _is_library(value.__name__):
            yield from ((f"{name}.{n}", v) for n, v in _attributes(function, value))


def _attributes(function: types.FunctionType, module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """What a function takes from a module of its user's."""
    for name in function.__code__.co_names:
        value = vars(module).get(name)
        if value is not None and not isinstance(value, _CODE) and not _is_foreign(value):
            yield name, value


def _is_library(module: str) -> bool:
    return module.split(".")[0] in ("torch", "triton", "numpy", "math", "builtins", "capwise", "functools", "operator")


def _is_foreign(value: Any) -> bool:
    """Objects of libraries: kernels, ops, dtypes. A tensor or a module that holds some is the user's own."""
    own = (torch.Tensor, torch.nn.Module, MutableMapping, MutableSequence, contextvars.ContextVar)
    return not isinstance(value, own) and _is_library(type(value).__module__)


def _leaves(name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Change]]:
    """Numbers and tensors inside of a mutable value, each with what changes it."""
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield name, lambda: _other_content(value)
        return
    if isinstance(value, contextvars.ContextVar):
        yield from _leaves(f"{name}.get()", value.get(None), depth, seen)
        held = value.get(None)
        if isinstance(held, (bool, int, float)):
            yield name, lambda: _other_context(value, held)
        return
    for label, key, holder in _items(name, value):
        inner = holder[key]
        if isinstance(inner, (bool, int, float)):
            yield label, lambda holder=holder, key=key: _other_item(holder, key)  # type: ignore[misc]
        else:
            yield from _leaves(label, inner, depth - 1, seen)


def _items(name: str, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """(what the user would write, key, what holds it)."""
    if isinstance(value, MutableMapping):
        yield from ((f"{name}[{key!r}]", key, value) for key in list(value))
    elif isinstance(value, MutableSequence):
        yield from ((f"{name}[{i}]", i, value) for i in range(len(value)))
    elif not isinstance(value, _CODE) and isinstance(getattr(value, "__dict__", None), dict):
        held = [value.__dict__]
        if isinstance(value, torch.nn.Module):
            held += [value._buffers, value._parameters, value._modules]
        own = [(key, one) for one in held for key in one if not key.startswith("_")]
        yield from ((f"{name}.{key}", key, one) for key, one in own)


def _other_item(holder: Any, key: Any) -> Callable[[], None]:
    before = holder[key]
    holder[key] = (not before) if isinstance(before, bool) else before + 1

    def undo() -> None:
        holder[key] = before

    return undo


def _other_content(tensor: torch.Tensor) -> Callable[[], None]:
    before = tensor.detach().clone()
    with torch.no_grad():
        tensor.logical_not_() if tensor.dtype == torch.bool else tensor.add_(1)

    def undo() -> None:
        with torch.no_grad():
            tensor.copy_(before)

    return undo


def _other_context(variable: contextvars.ContextVar[Any], before: Any) -> Callable[[], None]:
    token = variable.set((not before) if isinstance(before, bool) else before + 1)
    return lambda: variable.reset(token)
