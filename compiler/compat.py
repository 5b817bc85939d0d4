"""Every difference between versions of torch and Triton, and the only place that patches anything.

Whatever tracing or interpreting must patch is patched in a context manager here, and put back also when it raises.
Nothing runs at import.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

TORCH_ROOT = str(Path(torch.__file__).parent)


def source_name(source: Any) -> str:
    """A Dynamo source as a Python expression over L and G (a property on 2.11 to 2.14, a method before)."""
    name = source.name
    return name() if callable(name) else name


def source_of(node: fx.Node) -> str:
    """Where Dynamo took a graph input from; empty where it does not say."""
    grapharg = node.meta.get("grapharg")
    return source_name(grapharg.source) if grapharg is not None else ""


def source_line(file: str, line: int) -> str:
    return linecache.getline(file, line).rstrip("\n")


@contextlib.contextmanager
def fake_tracing(mode: Any) -> Iterator[None]:
    """Runs under the fake mode of Dynamo's example values. The tracing context holds another one: mixing them fails."""
    with mode if mode is not None else contextlib.nullcontext():
        yield


def make_aten(run: Callable[..., Any], fakes: Sequence[Any]) -> fx.GraphModule:
    """Traces `run` over fake values to an aten graph that keeps in-place ops. Composite ops go through their Python
    forms, as they did in Dynamo: the C++ ones ask for sizes as numbers."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    with enable_python_dispatcher():
        return make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True, record_module_stack=False)(*fakes)


def _patched(config: Any, **values: Any) -> contextlib.AbstractContextManager[Any]:
    """A torch config module with other values, until the context is left."""
    return config.patch(**values)


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
    with contextlib.ExitStack() as stack:
        stack.enter_context(_patched(torch._dynamo.config, **dynamo))
        if unbacked_sources:
            stack.enter_context(_patched(torch.compiler.config, unbacked_sources=unbacked_sources))
        if not unbacked:
            stack.enter_context(_patched(torch.fx.experimental._config, use_duck_shape=False))
        yield


# ---------------------------------------------------------------------------------------------------------------------
# Triton kernels on a machine without a GPU, through Triton's own interpreter.

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

    parts = [(part, dict(vars(part))) for part in (*_language_parts(), JITFunction, interpreter)]
    token = _INTERPRETING.set(True)
    try:
        JITFunction.run = _launch
        JITFunction.__call__ = _call
        interpreter._patch_lang_tensor = functools.partial(_patch_tensor, interpreter._patch_lang_tensor)
        yield
    finally:
        _INTERPRETING.reset(token)
        for part, before in parts:
            _put_back(part, before)


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
        arguments = {**_defaults(kernel), **{k: v for k, v in bound.items() if k in kernel.arg_names}}
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


class UsesAtomics(Exception):  # noqa: N818 - no error: another order of programs would round differently
    """A launch whose programs are ordered by atomic operations, or whose sums depend on the order."""


@contextlib.contextmanager
def programs_in_order(order: Callable[[list[tuple[int, int, int]]], Sequence[tuple[int, int, int]]]) -> Iterator[None]:
    """Inside, the programs of each interpreted launch run in another order.

    Args:
        order: the grid's indices as the interpreter goes through them -> the same in the order wanted.

    Raises:
        UsesAtomics: from the launch, before its first atomic operation.
    """
    from triton.runtime import interpreter

    builder, module = interpreter.interpreter_builder, interpreter._interpreter
    indices: Any = iter(())

    def set_grid_dim(nx: int, ny: int, nz: int) -> None:
        nonlocal indices
        indices = iter(order([(x, y, z) for x in range(nx) for y in range(ny) for z in range(nz)]))
        type(builder).set_grid_dim(builder, nx, ny, nz)

    builder.set_grid_dim = set_grid_dim
    builder.set_grid_idx = lambda *_: type(builder).set_grid_idx(builder, *next(indices))
    interpreter._interpreter = _NoAtomics(module)
    try:
        yield
    finally:
        interpreter._interpreter = module
        del builder.set_grid_dim, builder.set_grid_idx


@contextlib.contextmanager
def stores_deferred() -> Iterator[None]:
    """Inside, every program of an interpreted launch has done its loads before any program's stores are seen by
    another: stores wait for the launch's end, or for an atomic operation of their own program."""
    from triton.runtime import interpreter

    builder, module = interpreter.interpreter_builder, interpreter._interpreter
    memory = _Deferred(module)

    def set_grid_idx(x: int, y: int, z: int) -> None:
        memory.next_program()
        type(builder).set_grid_idx(builder, x, y, z)

    builder.set_grid_idx = set_grid_idx
    interpreter._interpreter = memory
    try:
        yield
        memory.finish()
    finally:
        interpreter._interpreter = module
        del builder.set_grid_idx


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
    parts = [(part, dict(vars(part))) for part in (*_language_parts(), JITFunction, builder)]
    try:
        JITFunction.__call__ = lambda kernel, *args, **kwargs: run(kernel.fn, *args, **kwargs)
        for name, operation in memory.items():
            setattr(builder, name, operation)
        yield run
    finally:
        for part, was in parts:
            _put_back(part, was)


def _tensor_range(*bounds: Any) -> Iterator[Any]:
    """`range` whose items are tensors, as compiled kernels have them."""
    from triton.runtime.interpreter import _implicit_cvt

    plain = (b.handle.data if hasattr(b, "handle") else getattr(b, "value", b) for b in bounds)
    yield from (_implicit_cvt(i) for i in range(*(int(n.item() if hasattr(n, "item") else n) for n in plain)))


class _NoAtomics:
    """The interpreter's memory operations, but atomic ones."""

    def __init__(self, module: Any) -> None:
        self.load, self.store = module.load, module.store

    def __getattr__(self, name: str) -> Any:
        raise UsesAtomics(name)


class _Deferred:
    """The interpreter's memory operations; a program sees its own stores, others see them later."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._mine: list[tuple[Any, Any, Any]] = []
        self._earlier: list[tuple[Any, Any, Any]] = []

    def store(self, ptr: Any, value: Any, mask: Any) -> None:
        self._mine.append((ptr.copy(), value.copy(), mask.copy()))

    def load(self, ptr: Any, mask: Any, other: Any, dtype: Any) -> Any:
        if not self._mine:
            return self._module.load(ptr, mask, other, dtype)
        import numpy

        before = []
        for at, value, where in self._mine:
            old = self._module.load(at, where, numpy.zeros(value.shape, value.dtype), value.dtype)
            before.append((at, old, where))
            self._module.store(at, value, where)
        found = self._module.load(ptr, mask, other, dtype)
        for one in reversed(before):
            self._module.store(*one)
        return found

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._module, name)

        def after_own_stores(*args: Any) -> Any:
            for one in self._mine:
                self._module.store(*one)
            self._mine.clear()
            return operation(*args)

        return after_own_stores if callable(operation) and name.startswith("atomic") else operation

    def next_program(self) -> None:
        self._earlier += self._mine
        self._mine = []

    def finish(self) -> None:
        self.next_program()
        for one in self._earlier:
            self._module.store(*one)


def _wide(value: int) -> Any:
    """An integer of 64 bits, where the interpreter would choose the width by the value."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(numpy.array([value], dtype=numpy.int64), tl.int64), tl.int64)


@functools.cache
def widened(kernel: Any, names: tuple[str, ...]) -> Any:
    """The same `@triton.jit` kernel with some of its integer arguments of 64 bits, whatever their value."""
    fn = kernel.fn
    twin = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    twin.__kwdefaults__, twin.__module__, twin.__qualname__ = fn.__kwdefaults__, fn.__module__, fn.__qualname__
    twin.__annotations__ = {**fn.__annotations__, **dict.fromkeys(names, "i64")}
    return type(kernel)(twin, do_not_specialize=kernel.do_not_specialize)


def _launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    if not warmup:
        run_interpreted(kernel, grid, **dict(zip(kernel.arg_names, args)), **kwargs)


def _call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    return _interpreter_of(kernel.fn).rewrite()(*args, **kwargs)


def _patch_tensor(original: Callable[..., None], tensor: Any, *scope: Any) -> None:
    """Triton 3.6 turns a loop bound into an int in a way that numpy 2.4 refuses."""
    original(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.squeeze())


def _defaults(kernel: Any) -> dict[str, Any]:
    parameters = kernel.signature.parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


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


def _language_parts() -> list[Any]:
    import triton.language as tl

    classes = [getattr(tl.core, name, None) for name in ("tensor", "dtype", "tensor_descriptor_base")]
    return [tl, tl.core, tl.math, *(c for c in classes if c is not None)]


def _put_back(part: Any, before: dict[str, Any]) -> None:
    now = dict(vars(part))
    for name in now.keys() - before.keys():
        delattr(part, name)
    for name, value in before.items():
        if now.get(name) is not value:
            setattr(part, name, value)


@contextlib.contextmanager
def recording_launches(record: Callable[[Any, Any, dict[str, Any]], None]) -> Iterator[None]:
    """Inside, every Triton launch goes to `record(kernel, grid, bound arguments)` in place of running."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:  # no Triton: nothing can launch
        yield
        return
    with interpreted():
        before = JITFunction.run

        def launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
            if not warmup:
                record(kernel, grid, {**_defaults(kernel), **dict(zip(kernel.arg_names, args)), **kwargs})

        JITFunction.run = launch
        try:
            with _first_config():
                yield
        finally:
            JITFunction.run = before


@contextlib.contextmanager
def watching_launches(watch: Callable[[Any, dict[str, Any]], None]) -> Iterator[None]:
    """Inside, every Triton launch on CPU tensors calls `watch(kernel, bound arguments)`, then runs interpreted."""
    from triton.runtime.jit import JITFunction

    with interpreted(), _first_config():
        before = JITFunction.run

        def launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
            watch(kernel, {**_defaults(kernel), **dict(zip(kernel.arg_names, args)), **kwargs})
            before(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        JITFunction.run = launch
        try:
            yield
        finally:
            JITFunction.run = before


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


def _written(function: Any) -> Any:
    """What torch wrapped, to keep it from a compiler and to check what it returns."""
    while (function.__module__ or "").startswith("torch."):
        inside = inspect.getclosurevars(function).nonlocals
        following = next((inside[n] for n in ("fn", "f", "func") if callable(inside.get(n))), None)
        if following is None:
            break
        function = following
    return function


def written_op_body(op: torch._ops.OpOverload, device: str) -> Callable[..., Any] | None:
    """What `custom_op_body` runs, as its author wrote it."""
    body = custom_op_body(op, device)
    return None if body is None else _written(body)


def branch_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises where the host branches on an unbacked size."""
    from torch._dynamo.exc import UserError
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (UserError, GuardOnDataDependentSymNode)


def graph_break_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises where it would have to break the graph."""
    from torch._dynamo.exc import TorchRuntimeError, Unsupported

    return (Unsupported, TorchRuntimeError)


def user_span(error: BaseException) -> Any:
    """The user's line that Dynamo was tracing when it raised."""
    from capwise.report import Span

    stack = getattr(error, "real_stack", None)
    frames = [f for f in stack or [] if TORCH_ROOT not in f.filename]
    return Span(frames[-1].filename, frames[-1].lineno or 0) if frames else None


# Kinds of Dynamo's guards -> the expression over their source whose value a trace took as given.
_VALUE_GUARDS = dict.fromkeys(("EQUALS_MATCH", "CONSTANT_MATCH", "BOOL_MATCH", "NONE_MATCH"), "{}")
_OTHER_GUARDS = {
    **dict.fromkeys(("ID_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "CLASS_MATCH"), "{}"),
    "CLOSURE_MATCH": "{}.__code__",
    "TYPE_MATCH": "type({})",
    **dict.fromkeys(("SEQUENCE_LENGTH", "LIST_LENGTH"), "len({})"),
    **dict.fromkeys(("DICT_KEYS_MATCH", "DICT_KEYS", "DICT_CONST_KEYS"), "(*{},)"),
    "NOT_PRESENT_IN_GENERIC_DICT": "{attr!r} in {}.__dict__",
}


def python_scope(named: Any) -> dict[str, Any]:
    """What Dynamo's source expressions of a trace of `named` are evaluated in: other modules' globals are reached by
    names that Dynamo puts among those of the outermost frame."""
    return {"L": {"self": named}, "G": getattr(type(named).forward, "__globals__", {})}


def guarded_values() -> set[str]:
    """Sources of the Python values on the model and in globals that the trace in progress took as constants."""
    return _guarded(_VALUE_GUARDS)


def guarded_expressions() -> set[str]:
    """What the trace in progress took as given of the model and of globals: values, and what their objects are: types,
    functions, lengths, keys, methods that no attribute hides."""
    return _guarded(_VALUE_GUARDS | _OTHER_GUARDS)


def _guarded(kinds: Mapping[str, str]) -> set[str]:
    context = torch._guards.TracingContext.try_get()
    found: set[str] = set()
    for guard in context.guards_context.dynamo_guards if context is not None else ():
        name = guard.name if isinstance(guard.name, str) else guard.name()
        if guard.create_fn_name() in kinds and name.startswith(("L['self']", "G[")):
            found.add(kinds[guard.create_fn_name()].format(name, **getattr(guard.create_fn, "keywords", {})))
    return found


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


def resumed_place(gm: fx.GraphModule) -> Any:
    """A diagnostic where this graph goes on after a graph break: eager Python runs before it. Dynamo names the code
    that it makes for the rest of a frame after the line of the break."""
    from capwise.report import Diagnostic, Span

    translator = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
    code = translator.f_code
    if not code.co_name.startswith("torch_dynamo_resume_in_"):
        return None
    line = code.co_name.rpartition("_at_")[2]
    span = Span(code.co_filename, int(line) if line.isdigit() else code.co_firstlineno)
    return Diagnostic("CW002", "refuted", "graph", "the graph breaks here", "eager Python runs here", span, "seam")


# ---------------------------------------------------------------------------------------------------------------------
# Models that launch Triton kernels, traced and run on a machine without a GPU.


class TargetOnly:
    """A Triton driver that knows a target and has no device."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


def has_device() -> bool:
    """Whether Triton can launch here by itself: a CUDA or ROCm device is there."""
    return torch.cuda.is_available()


@contextlib.contextmanager
def tracing_kernels() -> Iterator[None]:
    """Inside, Dynamo takes `kernel[grid](...)` into the graph also where no device is. With a device, or without
    Triton, nothing is patched.

    Patched and put back: `torch.utils._triton.has_triton`, and Triton's active driver.
    """
    try:
        from triton.runtime import driver
    except ImportError:
        yield
        return
    if has_device():
        yield
        return
    utils = torch.utils._triton
    before, active = utils.has_triton, driver._active
    try:
        utils.has_triton = lambda: True  # type: ignore[assignment]
        driver.set_active(TargetOnly())
        yield
    finally:
        utils.has_triton = before
        driver._active = active


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Inside, eager code may launch Triton kernels where no device is: each runs in the interpreter, while an op that
    has a torch body for CPU tensors still takes that. With a device nothing is patched."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    if has_device() or interpreting():
        yield
        return
    before = JITFunction.run
    with _first_config():
        try:
            JITFunction.run = _launch
            yield
        finally:
            JITFunction.run = before


@contextlib.contextmanager
def _first_config() -> Iterator[None]:
    """An autotuned kernel takes its first configuration: there is nothing to time."""
    from triton.runtime.autotuner import Autotuner

    before = Autotuner.run

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return tuner.fn.run(*args, **{**kwargs, **tuner.configs[0].all_kwargs()})

    try:
        Autotuner.run = run
        yield
    finally:
        Autotuner.run = before


@dataclass(frozen=True)
class HopLaunch:
    """What a kernel's node of the graph says: the JITFunction, its grid, its arguments, what else was given."""

    kernel: Any
    grid: tuple[Any, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]


def is_kernel_node(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") in (
        "triton_kernel_wrapper_mutation",
        "triton_kernel_wrapper_functional",
    )


def hop_launch(node: fx.Node) -> HopLaunch | None:
    """Reads a kernel's node. None for what has no plain launch: tensor descriptors made on the host, hooks.

    Of an autotuned kernel the first configuration is taken.
    """
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    given: dict[str, Any] = dict(node.kwargs)
    kernel: Any = kernel_side_table.get_kernel(given["kernel_idx"])
    arguments = {**given["kwargs"], **kernel_side_table.get_constant_args(given["constant_args_idx"])}
    options: dict[str, Any] = {}
    if given.get("tma_descriptor_metadata"):
        return None
    while not hasattr(kernel, "params"):
        configs = getattr(kernel, "configs", None)
        if not configs or configs[0].pre_hook is not None or getattr(kernel, "reset_to_zero", None):
            return None
        arguments |= configs[0].kwargs
        options |= {k: v for k, v in configs[0].all_kwargs().items() if k not in configs[0].kwargs}
        kernel = kernel.fn
    grid = tuple(given["grid"][0])
    arguments = {**_defaults(kernel), **arguments}
    named = {k: v for k, v in arguments.items() if k in kernel.arg_names}
    options |= {k: v for k, v in arguments.items() if k not in kernel.arg_names}
    return HopLaunch(kernel, grid, named, options)


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


@contextlib.contextmanager
def random_as_eager(draws: bool) -> Iterator[None]:
    """Inside, what Inductor compiles draws random numbers by ATen's kernels, from the same generator as eager does, not
    by its own."""
    if not draws:
        yield
        return
    from torch._inductor import config

    with _patched(config, fallback_random=True):
        yield


# ---------------------------------------------------------------------------------------------------------------------
# What the traced Python changes, and which memory is in use.


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


def addresses_hold(tensors: list[torch.Tensor], addresses: list[int], indices: list[int]) -> bool:
    """Whether every tensor still lives where it did. One call where torch has it (builds for devices), which takes
    lists only; `indices` are those of all tensors."""
    if compare := getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None):
        return bool(compare(tensors, addresses, indices))
    return list(map(torch.Tensor.data_ptr, tensors)) == addresses
