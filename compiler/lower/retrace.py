"""A piece traced again with backed symbols, which is what Inductor lowers.

The analysis graph has unbacked symbols, on which Inductor stops at many ops (bmm, convolution, a mutated slice of a
buffer). Traced again in a ShapeEnv of its own, without duck shaping, every assumption that torch makes on the way is a
guard there; the caller evaluates the guards at each bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.traceback import preserve_node_meta
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from capwise.lower.binding import Binding, Extents, Region, expression
from capwise.lower.errors import LoweringError
from capwise.lower.versions import standalone_compile


@dataclass
class Traced:
    """A retraced piece: what Inductor is given, and the assumptions collected so far.

    Attributes:
        fixed: the extents it was traced at without symbols, or None.
        symbols: the expression of each of the binding's names in `env`.
    """

    gm: GraphModule
    inputs: list[Any]
    mode: FakeTensorMode
    env: ShapeEnv
    symbols: list[sympy.Expr]
    fixed: Extents | None

    def broken(self, extents: Extents) -> list[str]:
        """The assumptions that do not hold at these extents. Inductor adds more while it compiles."""
        if self.fixed is not None:
            return [] if self.fixed == extents else [f"extents == {self.fixed}"]
        here = {s: sympy.Integer(n) for s, n in zip(self.symbols, extents)}
        return [str(g.expr) for g in self.env.guards if g.expr.xreplace(here) != sympy.true]


def retrace(binding: Binding, hint: Extents, dynamic: bool) -> Traced:
    """Traces the piece at `hint`, with a backed symbol a name, or with plain ints.

    Raises:
        LoweringError: with the node at which tracing stopped.
    """
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    ints = [_symint(env, n, h) if dynamic else h for n, h in zip(binding.names, hint)]
    made = [expression(i) for i in ints]  # read now: once a guard says s == 1, the SymInt answers 1
    to_env = {binding.symbols[n]: e for n, e in zip(binding.names, made)}
    runner = _Runner(binding)
    with quiet_state(), enable_python_dispatcher(), mode:
        inputs = [*ints, *_fakes(binding, env, mode, to_env, dict(zip(binding.names, hint)))]
        try:
            gm = make_fx(runner, tracing_mode="real", _allow_non_fake_inputs=True)(*inputs)
        except Exception as error:
            raise LoweringError(_line(error), runner.at) from error
    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["example_value"] = node.meta["val"]
    return Traced(gm, inputs, mode, env, made, None if dynamic else hint)


def compile_traced(traced: Traced) -> Callable[..., Sequence[Any]]:
    """Lowers a retraced piece by Inductor. Guards found on the way are in `traced` afterwards.

    Raises:
        LoweringError: with the node that Inductor names, where it names one.
    """
    targets = {str(n.target): n for n in reversed(traced.gm.graph.nodes) if n.op == "call_function"}
    with quiet_state(), tracing(TracingContext(traced.mode)):
        try:
            return standalone_compile(traced.gm, list(traced.inputs))
        except Exception as error:
            raise LoweringError(_line(error), _named(error, targets)) from error


@contextmanager
def quiet_state() -> Iterator[None]:
    """No gradients, no autocast, and the random state put back: compiling shows nowhere in the process."""
    started = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if started else []
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
        yield


def _symint(env: ShapeEnv, name: str, hint: int) -> Any:
    from torch._dynamo.source import ConstantSource

    source = ConstantSource(f"__capwise_{name}")
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC, do_not_specialize_zero_one=True)
    return env.create_symintnode(symbol, hint=hint, source=source)


def _fakes(
    binding: Binding, env: ShapeEnv, mode: FakeTensorMode, to_env: dict[Any, Any], hints: dict[str, int]
) -> list[torch.Tensor]:
    hint = tuple(hints[n] for n in binding.names)

    def number(expr: sympy.Expr) -> Any:
        here = expr.xreplace(to_env)
        return int(here) if here.is_Integer else env.create_symintnode(here, hint=binding.evaluate(expr, hint))

    made = []
    for item in binding.inputs:
        region = item.region if item.flat is None else Region((item.flat,), (sympy.Integer(1),), sympy.Integer(0))
        size, stride = [number(e) for e in region.size], [number(e) for e in region.stride]
        made.append(torch.empty_strided(size, stride, dtype=item.val.dtype, device=item.val.device))
    return made + [mode.from_tensor(c.detach(), static_shapes=True) for c in binding.constants.values()]


class _Runner:
    """The function traced: builds the piece's arguments from the inputs, runs its graph, returns `binding.returned`."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.at: str | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        binding, count = self.binding, len(self.binding.names)
        ints = {binding.symbols[n]: i for n, i in zip(binding.names, inputs[:count])}
        tensors, constants = inputs[count:][: len(binding.inputs)], inputs[count + len(binding.inputs) :]
        values = []
        for argument in binding.arguments:
            if argument.source is None:
                values.append(
                    _number(argument.value, ints) if isinstance(argument.value, sympy.Expr) else argument.value
                )
            else:
                values.append(_seen(tensors[argument.source], argument.view, ints))
        with preserve_node_meta():
            return _Tracing(self, dict(zip(binding.constants, constants))).results(values)


class _Tracing(Interpreter):
    """Runs the piece's graph, remembering the node it is at."""

    def __init__(self, runner: _Runner, constants: dict[str, torch.Tensor]) -> None:
        super().__init__(runner.binding.gm, garbage_collect_values=False)
        self.runner = runner
        self.constants = constants

    def run_node(self, n: Node) -> Any:
        self.runner.at = n.name
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.constants[target] if target in self.constants else super().get_attr(target, args, kwargs)

    def results(self, values: Sequence[Any]) -> tuple[Any, ...]:
        self.run(*values)
        return tuple(self.env[n] for n in self.runner.binding.returned)


def _seen(tensor: Any, view: Region | None, ints: dict[Any, Any]) -> Any:
    if view is None:
        return tensor
    size, stride = ([_number(e, ints) for e in es] for es in (view.size, view.stride))
    return torch.as_strided(tensor, size, stride, _number(view.offset, ints))


def _number(expr: sympy.Expr, ints: dict[Any, Any]) -> Any:
    return int(expr) if expr.is_Integer else sympy_interp(PythonReferenceAnalysis, ints, expr)


def _line(error: Exception) -> str:
    """The first line of an error that says something, with its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def _named(error: Exception, targets: dict[str, Node]) -> str | None:
    for line in str(error).splitlines():
        words = line.split()
        if words[:1] == ["target:"] and words[-1] in targets:
            return targets[words[-1]].name
    return None
