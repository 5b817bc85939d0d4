"""Finding kernels in a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from capwise.kernel_access.ttir import unwrap


def load_kernels(target: str | ModuleType) -> list[Any]:
    """The jit functions that a module or a Python file defines, in order of their lines.

    target: a module, its dotted name, or the path of a file. Autotune and heuristics wrappers are kept around; what is
    only imported into the module is left out. A file is run once, under a name of its own, and stays in no table.
    Raises: FileNotFoundError, ImportError, and what the module itself raises."""
    module = target if isinstance(target, ModuleType) else _module(target)
    found: dict[int, Any] = {}
    for value in vars(module).values():
        try:
            inner = unwrap(value)
        except TypeError:
            continue
        if getattr(inner, "fn", None) is not None and inner.fn.__module__ == module.__name__:
            found[inner.fn.__code__.co_firstlineno] = value
    return [found[line] for line in sorted(found)]


def _module(target: str) -> ModuleType:
    if not target.endswith(".py"):
        return importlib.import_module(target)
    path = Path(target)
    if not path.is_file():
        raise FileNotFoundError(target)
    name = f"_capwise_kernels_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
    return module


def is_kernel(value: Any) -> bool:
    """A launchable function returns nothing: helpers that give a value are called from kernels."""
    import ast

    tree = unwrap(value).parse()
    return not any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(tree))
