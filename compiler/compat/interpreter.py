"""Triton kernels run on CPU tensors, without a GPU or a compiler, in Triton's own interpreter."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from capwise.compat.patching import restored

_INTERPRETING: ContextVar[bool] = ContextVar("capwise_interpreting", default=False)


def interpreting() -> bool:
    """True inside `interpreted()`: a Triton kernel launched now runs on CPU tensors."""
    return _INTERPRETING.get()


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Every launch `kernel[grid](...)` inside runs in Triton's interpreter, on CPU tensors and with no compiler.

    Patched here and put back on leaving: `JITFunction.run` (launches), `JITFunction.__call__` (kernels that call
    kernels) and what the interpreter itself replaces in `triton.language` (it does not put all of it back).
    Arithmetic on bfloat16 is silently wrong in the interpreter: kernels must work in float32.

    Raises:
        ImportError: triton is not installed.
    """
    if interpreting():
        yield
        return
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    with restored(*language_parts(), JITFunction, interpreter):
        token = _INTERPRETING.set(True)
        try:
            JITFunction.run = launch_interpreted
            JITFunction.__call__ = _call
            interpreter._patch_lang_tensor = functools.partial(_patch_tensor, interpreter._patch_lang_tensor)
            yield
        finally:
            _INTERPRETING.reset(token)


def run_interpreted(kernel: Any, grid: Any, **bound: Any) -> None:
    """One launch of a `@triton.jit` kernel in the interpreter: every program in turn, on CPU tensors.

    Args:
        kernel: the JITFunction.
        grid: a tuple of up to three ints, or a callable that makes one from the bound arguments.
        bound: the kernel's arguments by name, constexprs included; launch options such as num_warps are ignored.
    """
    import numpy
    from torch.utils._python_dispatch import _disable_current_modes
    from triton.runtime.interpreter import GridExecutor

    with interpreted(), _disable_current_modes(), numpy.errstate(all="ignore"):
        body = _interpreter_of(kernel.fn)
        arguments = {**defaults(kernel), **{k: v for k, v in bound.items() if k in kernel.arg_names}}
        for parameter in kernel.params:  # the interpreter knows no bool that is not a constexpr
            if isinstance(arguments[parameter.name], bool) and not parameter.is_constexpr:
                arguments[parameter.name] = int(arguments[parameter.name])
            if getattr(parameter, "annotation_type", "") == "i64" and isinstance(arguments[parameter.name], int):
                arguments[parameter.name] = _wide(arguments[parameter.name])
        executor = GridExecutor(body.rewrite(), body.arg_names, tuple(grid(arguments) if callable(grid) else grid))
        # The tensors are on the CPU already: no copy of whole storages there and back at each launch.
        executor._init_args_hst = lambda args, kwargs: (args, kwargs)
        executor._restore_args_dev = lambda *_: None
        executor(**arguments)


def launch_interpreted(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """What stands in for `JITFunction.run`."""
    if not warmup:
        run_interpreted(kernel, grid, **dict(zip(kernel.arg_names, args)), **kwargs)


def defaults(kernel: Any) -> dict[str, Any]:
    """The values that a kernel's signature gives to arguments left out, by name."""
    parameters = kernel.signature.parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@functools.cache
def widened(kernel: Any, names: tuple[str, ...]) -> Any:
    """The same `@triton.jit` kernel with some of its integer arguments of 64 bits, whatever their value."""
    fn = kernel.fn
    twin = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    twin.__kwdefaults__, twin.__module__, twin.__qualname__ = fn.__kwdefaults__, fn.__module__, fn.__qualname__
    twin.__annotations__ = {**fn.__annotations__, **dict.fromkeys(names, "i64")}
    return type(kernel)(twin, do_not_specialize=kernel.do_not_specialize)


def _wide(value: int) -> Any:
    """An integer of 64 bits, where the interpreter would choose the width by the value."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(numpy.array([value], dtype=numpy.int64), tl.int64), tl.int64)


def _call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    return _interpreter_of(kernel.fn).rewrite()(*args, **kwargs)


def _patch_tensor(original: Callable[..., None], tensor: Any, *scope: Any) -> None:
    """Triton 3.6 turns a loop bound into an int in a way that numpy 2.4 refuses."""
    original(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.squeeze())


@functools.cache
def _interpreter_of(fn: Any) -> Any:
    """The interpreter's form of a kernel's function, made over a copy of its globals, as rewriting adds names to them.

    The copy also holds `triton.language` and its core under two names of ours: what a launch patches is found there,
    and a kernel may call helpers that know only one of the two.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    names = {**fn.__globals__, **inspect.getclosurevars(fn).nonlocals, "_capwise_tl": tl, "_capwise_core": tl.core}
    copy = types.FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__annotations__ = dict(fn.__annotations__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return InterpretedFunction(copy)


def language_parts() -> list[Any]:
    """The modules and classes of `triton.language` that the interpreter patches."""
    import triton.language as tl

    classes = [getattr(tl.core, name, None) for name in ("tensor", "dtype", "tensor_descriptor_base")]
    return [tl, tl.core, tl.math, *(c for c in classes if c is not None)]
