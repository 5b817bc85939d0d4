"""The Triton kernels that Inductor generates for a Program's pieces, as specs to compile for any target.

Without a GPU they are what Inductor emits for tensors on a CPU when told to write Triton: its scheduling for a CPU,
not what a GPU run would emit. Their names say so. A kernel's tile sizes are the first choice that Inductor would time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sympy
import torch

from capwise.lower.binding import bind
from capwise.lower.errors import LoweringError
from capwise.lower.inductor_code import a_driver, inductor_code
from capwise.lower.retrace import Traced, compile_traced, retrace
from capwise.lower.triton_aot import KernelSpec
from capwise.program import Program, Step

_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''\n(.*?)''', device_str=", re.DOTALL)
_NUMEL_AXES = {"Grid1D": "x", "Grid2D": "xy", "Grid3D": "xyz"}


def origin() -> str:
    """Whose scheduling these kernels show."""
    return "Inductor" if torch.cuda.is_available() else "Inductor, CPU scheduling"


def piece_kernels(program: Program, step: Step, extents: Mapping[str, int], folder: Path) -> list[KernelSpec]:
    """The kernels of one piece; their modules are written into `folder`, where a compiler process finds them.

    Args:
        extents: the bucket that sizes are tuned for.

    Raises:
        LoweringError: Inductor does not lower the piece.
    """
    binding = bind(step.module, program.space.sympy)
    traced = retrace(binding, binding.pick(extents), dynamic=True)
    symbols = {str(e): name for name, e in zip(binding.names, traced.symbols)}
    code = _generate(traced)
    return [
        _spec(f"{step.name}: {name}", name, source, code, symbols, folder) for name, source in _KERNEL.findall(code)
    ]


def _generate(traced: Traced) -> str:
    found: list[str] = []
    with inductor_code(found):
        try:
            compile_traced(traced)
        except LoweringError:
            if not found:
                raise
    return "\n".join(found)


def _spec(label: str, name: str, source: str, code: str, symbols: Mapping[str, str], folder: Path) -> KernelSpec:
    file = folder / f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:8]}.py"
    file.write_text(source)
    tuner = _execute(file, name)
    meta, choice = tuner.triton_meta, tuner.configs[0]
    names = tuner.fn.arg_names
    constants = {**meta["constants"], **choice.kwargs}
    marked = meta["configs"][0]
    attrs = {names[place[0]]: [tuple(pair) for pair in pairs] for place, pairs in dict(marked).items()}
    return KernelSpec(
        f"{file}:{name}",
        {n: t for n, t in meta["signature"].items() if t != "constexpr" and n not in constants},
        constants,
        attrs,
        num_warps=choice.num_warps,
        num_stages=choice.num_stages,
        grid=_grid(name, tuner.inductor_meta.get("grid_type", ""), meta["signature"], code, symbols),
        label=f"{label} ({origin()})",
    )


def _execute(file: Path, name: str) -> Any:
    """Inductor's own object for the kernel: it holds the signature, what is known of arguments, and the tile sizes."""
    spec = importlib.util.spec_from_file_location(f"capwise_generated_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with a_driver():
            spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return getattr(module, name)


def _grid(name: str, kind: str, signature: Mapping[str, str], code: str, symbols: Mapping[str, str]) -> tuple[str, ...]:
    """Expressions in the program's symbols; empty where Inductor's grid is of another kind, or its sizes are no simple
    expressions."""
    call = re.search(rf"\b{name}\.run\((.*), stream=", code)
    if kind not in _NUMEL_AXES or call is None:
        return ()
    passed = [n for n, t in signature.items() if t != "constexpr"]
    values = dict(zip(passed, call[1].split(", ")))
    sizes = [_size(values.get(f"{axis}numel", ""), code, symbols) for axis in _NUMEL_AXES[kind]]
    if not all(sizes):
        return ()
    return tuple(f"cdiv({size}, {axis.upper()}BLOCK)" for size, axis in zip(sizes, _NUMEL_AXES[kind]))


def _size(value: str, code: str, symbols: Mapping[str, str]) -> str:
    """A size of the wrapper's, in the program's symbols; empty if it is none."""
    defined = re.search(rf"^\s*{re.escape(value)} = (.+)$", code, re.MULTILINE) if value else None
    text = defined[1] if defined and value not in symbols else value
    try:
        expr = sympy.sympify(text, locals={s: sympy.Symbol(s, integer=True) for s in symbols})
    except (sympy.SympifyError, SyntaxError, TypeError):
        return ""
    free = {str(s) for s in getattr(expr, "free_symbols", ())}
    if not isinstance(expr, sympy.Expr) or not free <= symbols.keys() or not expr.is_polynomial():
        return ""
    return str(expr.xreplace({s: sympy.Symbol(symbols[str(s)], integer=True) for s in expr.free_symbols}))
