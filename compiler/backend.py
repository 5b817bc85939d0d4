"""From a model to programs: the `torch.compile` entry, `capwise.compile`, and `capwise.check`."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from capwise import compat
from capwise.axes import Space
from capwise.case import Case
from capwise.compilation import Compilation
from capwise.labels import (
    InputError,
    Spec,
    bind_extents,
    check_names,
    extents_of,
    infer,
    normalise,
    parse_dim,
)
from capwise.options import Key, Options
from capwise.pipeline import pipeline, run
from capwise.program import Program
from capwise.report import Diagnostic, Report, SeamRow, Span
from capwise.runtime.arena import Arena
from capwise.runtime.dispatch import captured_extents, choose_key
from capwise.runtime.executor import Executor
from capwise.trace import Named, Traced, argument_names, mark, ordered, span_of, to_aten, unbacked_ints

DEFAULT_CAPACITY = {"T": 8192}
OTHER_CAPACITY = 64


class TraceError(RuntimeError):
    """The model cannot be traced as one graph: CW002 with the place and Dynamo's reason."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(f"{diagnostic.code}: {diagnostic.span}: {diagnostic.message}")
        self.diagnostic = diagnostic


class _Stop(Exception):
    """Leaves a trace when only the programs are wanted."""


def build(
    traced: Traced, options: Options, key: Key, capacity: Mapping[str, int], name: str, strided: frozenset[str]
) -> Program:
    """The compiler: one traced graph in, one Program out."""
    symbols = set(traced.symbols)
    outside = frozenset(s for s in symbols if parse_dim(s, s).symbol not in key)
    padded = {s for s in symbols if key and parse_dim(s, s).symbol == key[0]} | outside
    capacity = {**capacity, **extents_of(symbols, capacity)}
    space = Space(traced.names, padded, capacity)
    state = Compilation(traced, options, space, outside, dict(capacity), strided)
    run(state, pipeline())
    return _program(state, name)


def _program(state: Compilation, name: str) -> Program:
    report = state.report
    report.fills = state.fills + len(state.staged_fills)
    report.copies = state.copies
    report.pieces = sum(s.kind == "piece" for s in state.steps)
    for node, code in state.eager.items():
        if code and node.target is not operator.getitem:
            span = span_of(node)
            report.seams.append(SeamRow(str(node.target), code, span.file, span.line))
    arrivals = {node.name: arrival for node, arrival in state.traced.arrivals.items()}
    read = {n for step in state.steps for n in step.inputs}
    mutated = {
        arrivals[n].name for step in state.steps for n in step.mutated if n in arrivals and arrivals[n].kind == "input"
    }
    arrivals = {n: a for n, a in arrivals.items() if n in read or a.kind == "state" and _returned(state, n)}
    program = Program(
        name,
        state.options,
        state.space,
        state.traced.specs,
        arrivals,
        state.steps,
        state.outputs,
        state.values,
        state.staged_fills,
        state.capacity,
        state.outside,
        state.scratch,
        frozenset(mutated),
        report,
        state.texts,
        state.traced.graph,
    )
    report.programs.append(program.text())
    return program


def _returned(state: Compilation, name: str) -> bool:
    return any(o.kind == "state" and o.name == name for o in state.outputs)


def capture_mode(options: Options, program: Program) -> str:
    """ "graph" on a device, "off" on a CPU, where the options leave it open."""
    if options.capture != "auto":
        return options.capture
    device = next((v.device.type for v in program.values.values()), "cpu")
    return "graph" if device == "cuda" else "off"


def lowered(
    program: Program, options: Options, capture: str, extents: Mapping[str, int]
) -> dict[str, Callable[..., Any]]:
    """Pieces as they run. Under the tape they run unlowered: Inductor's CPU code is one opaque call."""
    if options.lower == "eager" or capture == "tape":
        return {s.name: s.module for s in program.pieces}
    from capwise.lower.pieces import lower_pieces

    return lower_pieces(program, extents)


@dataclass
class _Variant:
    """The programs of one Dynamo graph (one a key), and how its outputs become the model's result."""

    programs: list[Program]
    executors: list[Executor]
    state_args: dict[str, int]
    statics: list[tuple[str, tuple[Any, ...]]]
    guards: list[tuple[Any, Any]]
    leaves: list[tuple[str, Any]] | None = None
    tree: TreeSpec | None = None
    direct: bool = True


class CompiledModel:
    """A model compiled by capwise; called like the model.

    Attributes:
        report: what was found, over all programs so far. misses: steps that ran eagerly because a guard did not hold.
    """

    def __init__(self, model: Callable[..., Any], options: Options, mode: str = "run") -> None:
        self.model, self.options = model, options
        self.report = Report()
        self.misses = 0
        self.arena = Arena(keep_strides=options.repair == "none")
        self._names = argument_names(model)
        self._specs: dict[str, Spec] | None = None
        self._bounds: dict[str, tuple[int, int]] = {}
        self._capacity: dict[str, int] = {}
        self._variants: dict[tuple[Any, ...], _Variant] = {}
        self._compiled: dict[bool, Callable[..., Any]] = {}
        self._named: Named | None = None
        self._mode = mode
        self._batch: dict[str, Any] = {}
        self._marked: dict[str, Any] = {}
        self._extents: dict[str, int] = {}
        self._last: _Variant | None = None
        self._warned: set[str] = set()
        self._strided: set[str] = set()

    # ------------------------------------------------------------------------------------------------ calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch = self._bind(args, kwargs)
        extents = self._admit(batch)
        variant = self._variants.get(self._signature(batch))
        if variant is None or not variant.direct or not self._guards_hold(variant):
            return self._through_dynamo(batch, extents)
        moved = self._moved_static(variant, batch) if self._guarded else None
        if moved is not None:
            return self._miss(batch, moved)
        outs = self._run(variant, batch, extents)
        return self._rebuild(variant, outs, batch)

    def trace(self, batch: Mapping[str, Any]) -> None:
        """Compiles the programs for a batch without running it."""
        mode, self._mode = self._mode, "trace"
        try:
            self._through_dynamo(dict(batch), self._admit(dict(batch)))
        except _Stop:
            pass
        finally:
            self._mode = mode

    @property
    def programs(self) -> list[Program]:
        return [p for v in self._variants.values() for p in v.programs]

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not args:
            return {k: v for k, v in kwargs.items() if v is not None}
        target = self.model.forward if isinstance(self.model, torch.nn.Module) else self.model
        bound = inspect.signature(target).bind(*args, **kwargs).arguments
        return {k: v for k, v in bound.items() if v is not None}

    def _admit(self, batch: dict[str, Any]) -> dict[str, int]:
        """Checks a batch before anything runs.

        Raises:
            InputError: an argument that contradicts the description, or an extent over its capacity.
        """
        if self._specs is None:
            self._describe(batch)
        assert self._specs is not None
        extents = bind_extents(self._specs, batch)
        for symbol, extent in extents.items():
            low, high = self._bounds.get(symbol, (0, extent))
            if not low <= extent <= high:
                raise InputError(f"{symbol}: expected an extent from {low} to capacity {high}; got {extent}")
        check_values(self._specs, batch)
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and name in self._specs and not value.is_contiguous():
                self._strided.add(name)
        return extents

    def _describe(self, batch: Mapping[str, Any]) -> None:
        inputs = self.options.inputs
        if inputs is None:
            inputs, said = infer(batch)
            self.report.assumptions.extend(said)
        specs = ordered(normalise(inputs))
        if self._names is not None:
            check_names(specs, self._names)
        extents = bind_extents(specs, batch)
        symbols = {s for spec in specs.values() for s in spec.symbols}
        for symbol in sorted(symbols):
            default = DEFAULT_CAPACITY.get(symbol, OTHER_CAPACITY)
            if symbol not in self.options.capacity and extents.get(symbol, 0) > default:
                default = 1 << (extents[symbol] - 1).bit_length()
                self.report.assumptions.append(f"capacity of {symbol} was raised to {default}")
            self._capacity[symbol] = self.options.capacity.get(symbol, default)
            is_int = any(s.kind == "int" and symbol in s.symbols for s in specs.values())
            self._bounds[symbol] = (0 if is_int else 1, self._capacity[symbol])
        self._specs = specs
        self._keys = self._usable_keys(symbols)

    def _usable_keys(self, symbols: set[str]) -> list[Key]:
        """Keys with the symbols that some input carries; a dropped one is noted."""
        keys: list[Key] = []
        for key in self.options.key:
            kept = tuple(s for s in key if s in symbols)
            for symbol in set(key) - set(kept):
                self.report.assumptions.append(f"key symbol {symbol} is carried by no input: dropped")
            if kept not in keys:
                keys.append(kept)
        return keys

    def _signature(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        assert self._specs is not None
        parts: list[Any] = []
        for name, value in batch.items():
            spec = self._specs.get(name)
            if isinstance(value, torch.Tensor):
                fixed = () if spec is not None else (tuple(value.shape), value.stride())
                parts.append((name, value.dtype, value.device, value.dim(), fixed))
            else:
                parts.append((name, None if spec is not None and spec.kind in ("int", "live") else value))
        return tuple(parts)

    # ------------------------------------------------------------------------------------------------ compiling
    def _through_dynamo(self, batch: dict[str, Any], extents: dict[str, int]) -> Any:
        """Dynamo traces a new signature, or takes a branch it has seen; the program runs on the caller's batch."""
        assert self._specs is not None
        self._batch, self._extents, self._last = batch, extents, None
        unbacked = self._compiled.get(False) is None
        result = self._call(batch, unbacked)
        variant = self._last
        if variant is not None:
            self._learn_outputs(variant, result, batch)
            self._variants.setdefault(self._signature(batch), variant)
            # Dynamo saw marked copies of inputs: an input that is returned as it is must be the caller's own.
            mine = {id(v): batch[n] for n, v in self._marked.items() if isinstance(v, torch.Tensor)}
            result = tree_map(lambda leaf: mine.get(id(leaf), leaf), result)
        return result

    def _call(self, batch: dict[str, Any], unbacked: bool) -> Any:
        assert self._specs is not None
        if self._named is None:
            self._named = Named(self.model, self._specs, self._bounds)
        if unbacked not in self._compiled:
            self._compiled[unbacked] = torch.compile(self._named, backend=self._backend, fullgraph=True)
        try:
            with torch.no_grad(), compat.dynamo_settings(unbacked_ints(self._specs), unbacked):
                self._marked = mark(batch, self._specs, unbacked)
                return self._compiled[unbacked](self._marked)
        except compat.branch_errors() as error:
            if not unbacked:
                raise TraceError(_cannot_trace(error)) from error
            self._branches(error)
            return self._call(batch, False)
        except compat.graph_break_errors() as error:
            raise TraceError(_cannot_trace(error)) from error

    def _branches(self, error: BaseException) -> None:
        """A host branch on a named size: one program a side, Dynamo's guards choose."""
        self.report.add(
            Diagnostic(
                "CW102",
                "refuted",
                "branch",
                "the host branches on a size",
                label="a recording holds one side of the branch",
                span=compat.user_span(error) or Span(),
                repair="key",
                notes=(str(error).strip().splitlines()[0][:200],),
            )
        )

    def _backend(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        assert self._specs is not None
        unbacked = False not in self._compiled
        programs = []
        strided = frozenset(self._strided)
        for i, key in enumerate(self._keys):
            traced = to_aten(gm, self._specs, strict=unbacked)
            name = f"{type(self.model).__name__}.{len(self._variants)}.{i}"
            programs.append(build(traced, self.options, key, self._capacity, name, strided))
        for program in programs:
            self.report.merge(program.report)
        variant = self._variant(programs, gm)
        variant.direct = unbacked

        def runner(*args: Any) -> Any:
            self._last = variant
            if self._mode == "trace":
                raise _Stop
            self._bind_state(variant, args)
            self._outs = self._run(variant, self._batch, self._extents)
            return self._outs

        if self._mode == "trace":
            self._variants.setdefault(("trace", len(self._variants)), variant)
        return runner

    def _variant(self, programs: list[Program], gm: fx.GraphModule) -> _Variant:
        capture = capture_mode(self.options, programs[0])
        executors = []
        for program in programs:
            executor = Executor(program, self.arena, capture, self._lower(program, capture))
            executor.largest = self._largest()
            executors.append(executor)
        sources = [compat.source_of(n) for n in gm.graph.find_nodes(op="placeholder")]
        by_source = {source: i for i, source in enumerate(sources)}
        state_args = {a.source: by_source[a.source] for p in programs for a in p.arrivals.values() if a.kind == "state"}
        guards = compat.python_guards(self._named, sources)
        return _Variant(programs, executors, state_args, self._statics(programs), guards)

    def _statics(self, programs: list[Program]) -> list[tuple[str, tuple[Any, ...]]]:
        """Inputs that are handed over as they are: their address and layout are part of every recording."""
        names = {a.name for p in programs for a in p.arrivals.values() if a.kind == "input"}
        assert self._specs is not None
        found = []
        for name in sorted(names):
            spec = self._specs.get(name)
            value = self._batch.get(name)
            if (spec is None or spec.kind == "buffer") and isinstance(value, torch.Tensor):
                found.append((name, _layout(value, spec)))
        return found

    def _largest(self) -> dict[str, int]:
        sizes = self.options.capture_sizes
        key = self._keys[0]
        largest = dict(self._capacity)
        if key:
            within = [s for s in sizes if s <= self._capacity[key[0]]] or [self._capacity[key[0]]]
            largest[key[0]] = within[-1]
        return largest

    def _lower(self, program: Program, capture: str) -> dict[str, Callable[..., Any]]:
        if self._mode == "trace":
            return {s.name: s.module for s in program.pieces}
        return lowered(program, self.options, capture, self._largest())

    def _bind_state(self, variant: _Variant, args: Sequence[Any]) -> None:
        for program, executor in zip(variant.programs, variant.executors):
            if executor.state:
                continue
            for name, arrival in program.arrivals.items():
                if arrival.kind == "state":
                    executor.state[name] = args[variant.state_args[arrival.source]]

    # ------------------------------------------------------------------------------------------------ running
    def _run(self, variant: _Variant, batch: Mapping[str, Any], extents: dict[str, int]) -> list[Any]:
        at = choose_key(self._keys, extents)
        program, executor = variant.programs[at], variant.executors[at]
        known = extents_of(program.space.sympy, extents)
        key = self._keys[at]
        sizes = [s for s in self.options.capture_sizes if s <= self._capacity[key[0]]] if key else []
        captured = captured_extents(key, extents, sizes, self._capacity)
        return executor.step(batch, known, None if captured is None else extents_of(program.space.sympy, captured))

    def _learn_outputs(self, variant: _Variant, result: Any, batch: Mapping[str, Any]) -> None:
        """Which leaf of the model's result is which graph output; a graph output that is none is a side effect, which
        only Dynamo's own code performs."""
        leaves, tree = tree_flatten(result)
        outputs = self._outs
        found: list[tuple[str, Any]] = []
        used: set[int] = set()
        for leaf in leaves:
            at = next((i for i, o in enumerate(outputs) if o is leaf and isinstance(leaf, torch.Tensor)), None)
            if at is not None:
                found.append(("out", at))
                used.add(at)
            elif isinstance(leaf, torch.Tensor):
                name = next((n for n in batch if leaf is batch[n] or leaf is self._marked[n]), None)
                found.append(("input", name) if name is not None else ("state", leaf))
            else:
                found.append(("constant", leaf))
        hosts = any(not isinstance(o, torch.Tensor) for o in outputs)
        variant.leaves, variant.tree = found, tree
        variant.direct = variant.direct and not hosts and used == set(range(len(outputs)))

    def _rebuild(self, variant: _Variant, outs: Sequence[Any], batch: Mapping[str, Any]) -> Any:
        assert variant.leaves is not None and variant.tree is not None
        pick = {"out": lambda v: outs[v], "input": lambda v: batch[v], "state": lambda v: v, "constant": lambda v: v}
        return tree_unflatten([pick[kind](value) for kind, value in variant.leaves], variant.tree)

    def _guards_hold(self, variant: _Variant) -> bool:
        return all(get() == value for get, value in variant.guards)

    @property
    def _guarded(self) -> bool:
        """A naive engine (repair="none") has no guards: that is the damage to show."""
        return self.options.guards and self.options.repair != "none"

    def _moved_static(self, variant: _Variant, batch: Mapping[str, Any]) -> str | None:
        """What changed about an input that is handed over as it is; None if nothing did."""
        assert self._specs is not None
        for name, layout in variant.statics:
            value = batch.get(name)
            now = _layout(value, self._specs.get(name)) if isinstance(value, torch.Tensor) else None
            if now != layout:
                same_place = now is not None and now[0] == layout[0]
                what = "CW402: the strides" if same_place else "CW301: the address"
                return f"{what} of {name!r} changed, which is not staged"
        return None

    def _miss(self, batch: Mapping[str, Any], why: str) -> Any:
        self.misses += 1
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(f"{why}; this step ran eagerly", RuntimeWarning, stacklevel=3)
        with torch.no_grad():
            return self.model(**batch)


def _layout(value: torch.Tensor, spec: Spec | None) -> tuple[Any, ...]:
    if spec is not None:
        return (value.data_ptr(), value.stride())
    return (value.data_ptr(), tuple(value.shape), value.stride())


def check_values(specs: Mapping[str, Spec], batch: Mapping[str, Any]) -> None:
    """Values that can be checked without a sync: boundaries on the host must not decrease.

    Raises:
        InputError: boundaries that decrease.
    """
    for name, spec in specs.items():
        value = batch.get(name)
        boundaries = len(spec.dims) == 1 and spec.dims[0].symbol is not None and spec.dims[0].offset == 1
        if not boundaries or not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            continue
        if not value.dtype.is_floating_point and bool((value[1:] < value[:-1]).any()):
            raise InputError(f"{name}: expected boundaries that do not decrease; got a decrease")


def _cannot_trace(error: BaseException) -> Diagnostic:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return Diagnostic(
        "CW002",
        "refuted",
        "trace",
        "the model cannot be traced as one graph",
        label="eager Python runs here",
        span=compat.user_span(error) or Span(),
        notes=tuple(lines[:3]),
    )


# ---------------------------------------------------------------------------------------------------------- public
def compile(model: Callable[..., Any], **options: Any) -> CompiledModel:
    """Compiles a model for graph capture.

    Args:
        model: an nn.Module or a function of tensors and ints.
        options: see `Options`: inputs, key, capacity, capture_sizes, capture, repair, lower, outputs, guards, strict.

    Returns:
        a callable with the model's own call.

    Raises:
        OptionError: an unknown option, or a value that it cannot have.
    """
    return CompiledModel(model, Options.make(options))


def check(model: Callable[..., Any], batch: Mapping[str, Any], **options: Any) -> Report:
    """Finds what would go wrong under capture, without running the model.

    Raises:
        InputError: the batch contradicts `inputs`.
    """
    return check_case(Case(model, [batch], inputs=options.pop("inputs", None)), **options)


def check_case(case: Case, **options: Any) -> Report:
    """`check` over every batch of a case: each signature is a program of its own."""
    compiled = trace_case(case, **options)
    report = compiled.report
    report.case = case.name
    return report


def trace_case(case: Case, **options: Any) -> CompiledModel:
    """Compiles every program that a case needs, without running a step."""
    made = case_options(case, **options)
    compiled = CompiledModel(case.model, made, mode="trace")
    seen: set[tuple[Any, ...]] = set()
    for batch in case.batches:
        given = {k: v for k, v in batch.items() if v is not None}
        compiled._admit(given)
    _moving_inputs(compiled, case)
    for batch in case.batches:
        given = {k: v for k, v in batch.items() if v is not None}
        signature = compiled._signature(given)
        if signature in seen:
            continue
        seen.add(signature)
        try:
            compiled.trace(given)
        except TraceError as error:
            compiled.report.add(error.diagnostic)
            compiled.report.seams.append(
                SeamRow("eager Python", error.diagnostic.code, error.diagnostic.file, error.diagnostic.line)
            )
    return compiled


def _moving_inputs(compiled: CompiledModel, case: Case) -> None:
    """An input that nobody named, at another address in every batch: a recording would read the first one."""
    addresses: dict[str, set[int]] = {}
    for batch in case.batches:
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and name not in (compiled._specs or {}):
                addresses.setdefault(name, set()).add(value.data_ptr())
    for name, seen in addresses.items():
        if len(seen) > 1:
            compiled.report.add(
                Diagnostic(
                    "CW301",
                    "refuted",
                    name,
                    f"the address of input {name!r} is not stable",
                    label="a captured piece reads it at the address of capture",
                    span=_definition(compiled.model),
                    repair="guard" if compiled.options.repair != "none" else None,
                    notes=(
                        f"{len(seen)} addresses in {len(case.batches)} batches; a guard miss runs the step eagerly",
                    ),
                    help=(f"name it in inputs={{{name!r}: ...}}, so that it is staged",),
                )
            )


def _definition(model: Callable[..., Any]) -> Span:
    """Where the model's call is defined."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    code = getattr(inspect.unwrap(target), "__code__", None)
    return Span(code.co_filename, code.co_firstlineno, 1) if code is not None else Span()


def programs_of(case: Case, **options: Any) -> list[Program]:
    return trace_case(case, **options).programs


def case_options(case: Case, **options: Any) -> Options:
    """A case's options, with capacities that hold every one of its batches."""
    made = case.make_options(**options)
    if made.inputs is None:
        return made
    specs = normalise(made.inputs)
    capacity = dict(made.capacity)
    for batch in case.batches:
        for symbol, extent in bind_extents(specs, batch).items():
            usual = DEFAULT_CAPACITY.get(symbol, OTHER_CAPACITY)
            if symbol not in made.capacity and extent > capacity.get(symbol, usual):
                capacity[symbol] = extent
    return replace(made, capacity=capacity)


def capwise_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **extra: Any
) -> Callable[..., Any]:
    """`torch.compile(model, backend="capwise")`."""
    from capwise.entry import backend

    return backend(gm, example_inputs, {**(options or {}), **extra})
