"""Triton kernel to TTIR text, for any target, with no driver and no GPU.

`build` is the only place that calls Triton's compiler; what differs between triton 3.6 and 3.9 is in `_call`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

DEFAULT_TARGET = ("cuda", 90, 32)


class BuildError(ValueError):
    """The kernel does not compile to TTIR with this signature; the message is Triton's first line."""


def unwrap(kernel: Any) -> Any:
    """The `JITFunction` under autotune and heuristics wrappers.

    Raises: TypeError when there is none (an interpreted or plain Python function)."""
    seen = kernel
    while not hasattr(seen, "arg_names") or not hasattr(seen, "params"):
        seen = getattr(seen, "fn", None)
        if seen is None or inspect.isfunction(seen):
            raise TypeError(f"{kernel!r} is not a triton.jit kernel")
    if "Gluon" in type(seen).__name__:
        raise TypeError(f"{kernel!r} is a Gluon kernel: its layouts are not TTIR")
    return seen


def _call(function: Callable[..., Any], **offered: Any) -> Any:
    """Call with those arguments that this Triton version names: 3.6 and later differ in arity only."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in offered.items() if name in names})


def _run(manager: Any, module: Any) -> None:
    """Pass managers take a reproducer tag from 3.6 on."""
    try:
        manager.run(module, "capwise")
    except TypeError:
        manager.run(module)


def build(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    target: tuple[str, Any, int] = DEFAULT_TARGET,
    clean: bool = True,
) -> str:
    """TTIR text with locations; where `clean`, after inlining, canonicalisation and common subexpressions.

    `signature` maps run-time argument names to Triton types ("*fp32", "i32"); names absent from it are constexpr and
    need a value in `constexprs`. `attrs` maps a name to Triton's attribute list ([["tt.divisibility", 16]]).
    Raises: BuildError with Triton's reason."""
    try:
        return _build(unwrap(kernel), signature, constexprs, attrs or {}, target, clean)
    except TypeError:
        raise
    except Exception as error:
        raise BuildError(_reason(error)) from error


def _build(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    attrs: Mapping[str, Any],
    target: tuple[str, Any, int],
    clean: bool,
) -> str:
    from triton._C.libtriton import ir, passes
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    gpu = GPUTarget(*target)
    backend = make_backend(gpu)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constexprs.items()},
        attrs={(names.index(name),): value for name, value in attrs.items()},
    )
    options = backend.parse_options({})
    codegen = _call(backend.get_codegen_implementation, options=options)
    module = _call(
        source.make_ir,
        target=gpu,
        options=options,
        codegen_fns=codegen,
        module_map=backend.get_module_map(),
        context=context,
    )
    if not clean:
        return str(module)
    manager = ir.pass_manager(context)
    passes.common.add_inliner(manager)
    passes.common.add_canonicalizer(manager)
    passes.common.add_cse(manager)
    passes.common.add_symbol_dce(manager)
    _run(manager, module)
    return str(module)


def _reason(error: BaseException) -> str:
    """The innermost message, one line: Triton wraps the cause in the source excerpt of every caller."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
