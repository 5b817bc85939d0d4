"""One program of a kernel runs by itself in Triton's interpreter, over memory that is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from capwise.compat.interpreter import language_parts
from capwise.compat.patching import restored


@contextlib.contextmanager
def interpreted_programs(memory: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
    """Inside, the function that is given runs one program of a kernel's Python function at a time, in the interpreter.

    Two known faults of the interpreter are worked around: nested jit functions are called through it, and a loop
    variable is a tensor, not a Python int.

    Args:
        memory: operations of the interpreter's builder that stand in for its own, by name.
    """
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        scope, names = interpreter._patch_lang(function), function.__globals__
        before = {k: names[k] for k in ("range",) if k in names}
        names["range"] = _tensor_range
        try:
            return interpreter.InterpretedFunction(function).rewrite()(*args, **kwargs)
        finally:
            del names["range"]
            names.update(before)
            if scope is not None:
                scope.restore()

    builder = interpreter.interpreter_builder
    with restored(*language_parts(), JITFunction, builder):
        JITFunction.__call__ = lambda kernel, *args, **kwargs: run(kernel.fn, *args, **kwargs)
        for name, operation in memory.items():
            setattr(builder, name, operation)
        yield run


def _tensor_range(*bounds: Any) -> Iterator[Any]:
    """`range` whose items are tensors, as compiled kernels have them."""
    from triton.runtime.interpreter import _implicit_cvt

    plain = (b.handle.data if hasattr(b, "handle") else getattr(b, "value", b) for b in bounds)
    yield from (_implicit_cvt(i) for i in range(*(int(n.item() if hasattr(n, "item") else n) for n in plain)))
