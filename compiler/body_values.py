"""What the names and values in an op's body are: code and constants, tensors, or something hidden."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import random
import sys
import textwrap
import types
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet, Set
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal

import torch

from capwise.ops import aten


class _Unknown:
    """Stands for an object that reading alone does not give."""


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Val:
    """What is known of a value: a tensor (or what holds one), something that is no argument, code, or fresh."""

    kind: Literal["tensor", "hidden", "code", "fresh"]
    name: str = ""
    object: Any = UNKNOWN
    changed: bool = False


FRESH, TENSOR = Val("fresh"), Val("tensor")
_RANK = {"fresh": 0, "code": 1, "tensor": 2, "hidden": 3}
# What a tensor tells without its values; everything else of a tensor is one again.
TELLS = frozenset(
    "shape size stride dim ndim numel nelement dtype device layout is_contiguous storage_offset element_size data_ptr "
    "is_cuda is_cpu requires_grad names __len__ itemsize nbytes untyped_storage".split()
)
HOST = frozenset("item tolist numpy cpu __bool__ __int__ __float__ __index__".split())
CONSTANTS = (int, float, complex, str, bytes, bool, type(None), frozenset, enum.Enum, types.MappingProxyType, range,
              torch.dtype, torch.device, torch.layout, torch.memory_format)  # fmt: skip
CONTAINERS = (MutableMapping, MutableSequence, MutableSet)
MUTATORS = frozenset(
    name
    for kind, base in ((MutableMapping, Mapping), (MutableSequence, tuple), (MutableSet, Set))
    for name in dir(kind)
    if callable(getattr(kind, name)) and not hasattr(base, name)
) | {"sort", "add", "move_to_end", "appendleft", "popleft", "__setitem__", "__delitem__"}  # fmt: skip
TRUSTED = {"torch", "triton", "numpy", "capwise", "builtins"} | set(sys.stdlib_module_names)


def classify(name: str, value: Any, function: Any) -> Val:
    """What a global or a closed-over name is: code and constants are part of the op, everything else is hidden."""
    changed = name in _changed_names(function.__module__)
    if isinstance(value, (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return Val("code", name, value, changed)
    if _is_code(value):
        return Val("code", name, value, changed)
    if isinstance(value, CONSTANTS) or isinstance(value, tuple) and all(isinstance(v, CONSTANTS) for v in value):
        return Val("hidden", name, value, True) if changed else Val("fresh", object=value)
    if isinstance(value, CONTAINERS) and not changed and type(value).__module__ in ("builtins", "collections"):
        return Val("fresh", object=value)
    return FRESH if is_frozen(value) else Val("hidden", name, value, changed)


def _is_code(value: Any) -> bool:
    """Ops, kernels and what wraps functions."""
    kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch._ops._Ops,
             torch.library.Library, functools.partial)  # fmt: skip
    return isinstance(value, kinds) or callable(value) and top(type(value)) in TRUSTED and not _is_object(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, (torch.nn.Module, torch.Tensor, torch.Generator, ContextVar))


def is_frozen(value: Any) -> bool:
    params = getattr(type(value), "__dataclass_params__", None)
    return is_dataclass(value) and params is not None and params.frozen


def member(owner: Any, name: str) -> Any:
    """An attribute, without running a property."""
    if owner is UNKNOWN:
        return UNKNOWN
    if isinstance(owner, (types.ModuleType, torch._ops._OpNamespace, torch._ops._Ops)):
        return getattr(owner, name, UNKNOWN)
    found = inspect.getattr_static(owner, name, UNKNOWN)
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    return UNKNOWN if isinstance(found, (property, types.MemberDescriptorType, types.GetSetDescriptorType)) else found


def worst(one: Val, other: Val) -> Val:
    return one if _RANK[one.kind] >= _RANK[other.kind] else other


def element(value: Val) -> Val:
    return Val("hidden", f"{value.name}[...]", changed=value.changed) if value.kind == "hidden" else value


def root(name: str) -> str:
    return name.split(".")[0].split("[")[0]


def describe(owner: Any) -> str:
    return f"a {type(owner).__name__}"


def top(function: Any) -> str:
    """The package that a function is of. Models that come with capwise are programs like the user's own."""
    module = str(getattr(function, "__module__", None) or "")
    return "capwise.models" if module.startswith("capwise.models.") else module.split(".")[0]


def makes_tensor(function: Any) -> bool:
    """Ops, and functions of torch that are one by name and return a tensor."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    packet = getattr(torch.ops.aten, str(getattr(function, "__name__", "")), None) if top(function) == "torch" else None
    packet = packet or _of_torch(function)
    schemas = [getattr(packet, o)._schema for o in packet.overloads()] if packet is not None else []
    return any("Tensor" in str(r.type) for s in schemas for r in s.returns)


def _of_torch(function: Any) -> Any:
    """The ATen op behind a builtin such as `torch.rand`, which does not say that it is torch's."""
    name = getattr(function, "__name__", "")
    if not isinstance(function, types.BuiltinFunctionType) or getattr(torch, name, None) is not function:
        return None
    return getattr(torch.ops.aten, name, None)


def is_random(function: Any) -> bool:
    """Functions that use random state: torch's own, those of ATen by their tag, and methods of other generators."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random"):
        return True
    if getattr(function, "__module__", None) in ("torch.random", "torch.cuda.random"):
        return True
    packet = _of_torch(function)
    return packet is not None and any(aten.is_random(getattr(packet, o)) for o in packet.overloads())


def definition(function: Any) -> ast.FunctionDef | ast.Lambda | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda))), None)


@functools.cache
def _changed_names(module: str) -> frozenset[str]:
    """Names of a module's level that some function of it assigns, stores into, or calls a mutator of."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return frozenset()
    found: set[str] = set()
    for function in (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))):
        for node in ast.walk(function):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                found |= set(node.names)
            elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
                found.add(_base(node))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                mutates = node.func.attr in MUTATORS or node.func.attr in ("set", "copy_", "fill_", "zero_")
                found |= {_base(node.func)} if mutates else set()
    return frozenset(found - {"", "self"})


def _base(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def loaded(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment, as it is read first."""
    copied: Any = ast.parse(ast.unparse(target), mode="eval").body
    return ast.copy_location(copied, target)


def bound(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(a.asname or a.name).split(".")[0] for a in node.names]
    return []
