"""A compiled model: traces what it has not seen, then runs programs without going through Dynamo."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from capwise import compat
from capwise.admission import Admission
from capwise.build import build, capture_mode, dump, lowered
from capwise.effects import Write, diagnose, own_memory, writes_of
from capwise.labels import Spec, extents_of
from capwise.options import Options
from capwise.program import Program
from capwise.report import Diagnostic, Report, Span
from capwise.runtime.arena import Arena
from capwise.runtime.dispatch import MAX_LAYOUTS, captured_extents, choose_key, layout_of
from capwise.runtime.executor import Executor, Layout
from capwise.runtime.guards import Guards, constants_of
from capwise.trace import Named, mark, to_aten, unbacked_ints

# Programs of one signature that differ in a Python value only: a value that is new at every step would never stop.
MAX_VALUES = 8


class TraceError(RuntimeError):
    """The model cannot be traced as one graph: CW002 with the place and Dynamo's reason."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(f"{diagnostic.code}: {diagnostic.span}: {diagnostic.message}")
        self.diagnostic = diagnostic


class Traced(Exception):  # noqa: N818 - no error: it leaves a trace when only the programs are wanted
    """The programs are made; the model is not run."""


@dataclass
class Variant:
    """The programs of one Dynamo graph (one a key), and how its outputs become the model's result.

    direct: calls need not go through Dynamo. statics: inputs that are handed over as they are, with their address and
    layout. guards: whether the model still holds the tensors and Python values that the programs were made for.
    writes: what the model's Python changes at this step beside the graph, which only Dynamo's own code does.
    """

    programs: list[Program]
    executors: list[Executor]
    state_args: dict[str, int]
    statics: list[tuple[str, tuple[Any, ...]]]
    guards: Guards
    writes: list[Write] = field(default_factory=list)
    leaves: list[tuple[str, Any]] = field(default_factory=list)
    tree: TreeSpec | None = None
    direct: bool = True
    signature: tuple[Any, ...] = ()


@dataclass
class Ticket:
    """A batch layout that was admitted before: which program runs it, and what is prepared for it."""

    variant: Variant
    executor: Executor
    layout: Layout


class CompiledModel:
    """A model compiled by capwise; called like the model.

    Attributes:
        report: what was found, over all programs so far. misses: steps that ran eagerly because a guard did not hold.
    """

    def __init__(self, model: Callable[..., Any], options: Options, keep_texts: bool = False) -> None:
        self.model, self.options, self.keep_texts = model, options, keep_texts
        self.report = Report()
        self.misses = 0
        self.arena = Arena(keep_strides=options.repair == "none")
        self.admission = Admission(model, options)
        self.report.assumptions = self.admission.assumptions
        self.variants: dict[tuple[Any, ...], Variant] = {}
        self._all: list[Variant] = []
        self._tickets: dict[tuple[Any, ...], Ticket] = {}
        self._compiled: dict[bool, Callable[..., Any]] = {}
        self._named: Named | None = None
        self._only_trace = False
        self._batch: dict[str, Any] = {}
        self._marked: dict[str, Any] = {}
        self._extents: dict[str, int] = {}
        self._last: Variant | None = None
        self._outs: list[Any] = []
        # What Dynamo needs patched while it traces; undone before anything runs.
        self._tracing = ExitStack()
        self._warned: set[str] = set()
        # Sources of tensors that the model's Python puts others in the place of, step by step.
        self._moving: set[str] = set()
        # Sources of tensors that some program reads, and of Python values that some trace took as constants.
        self._read: set[str] = set()
        self._constants: set[str] = set()
        # What served the last step; None where it ran eagerly.
        self.ticket: Ticket | None = None

    # ------------------------------------------------------------------------------------------------ calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.ticket = None
        batch = self.admission.bind(args, kwargs)
        layout = layout_of(batch.items())
        try:
            ticket = self._tickets.get(layout)
        except TypeError:  # an argument that is no tensor and cannot be looked up: admission says what is wrong
            ticket = None
        if ticket is None:
            return self._first(batch, layout)
        self.admission.check_values(batch)
        if not ticket.variant.guards.hold():
            self._tickets.clear()
            return self._through_dynamo(batch, self.admission.admit(batch))
        moved = self._moved_static(ticket.variant, batch)
        if moved is not None:
            return self._miss(batch, moved)
        self.ticket = ticket
        outs = ticket.executor.step(batch, ticket.layout)
        return self._rebuild(ticket.variant, outs, batch)

    def _first(self, batch: dict[str, Any], layout: tuple[Any, ...]) -> Any:
        """A layout that is new: admitted, and given a ticket once its program is known."""
        extents = self.admission.admit(batch)
        variant = self.variants.get(self.admission.signature(batch))
        if variant is None or not variant.direct or not variant.guards.hold():
            return self._through_dynamo(batch, extents)
        if len(self._tickets) >= MAX_LAYOUTS:
            self._tickets.clear()
        self._tickets[layout] = self._ticket(variant, extents)
        return self(**batch)

    def trace(self, batch: Mapping[str, Any]) -> None:
        """Compiles the programs for a batch without running it."""
        self._only_trace = True
        try:
            self._through_dynamo(dict(batch), self.admission.admit(batch))
        except Traced:
            pass
        finally:
            self._only_trace = False

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Inside, every program runs as if it had never run: new buffers, nothing recorded. What was recorded before
        is there again afterwards."""
        arena, executors = self.arena, [e for v in self._all for e in v.executors]
        bound = [e.bound for e in executors]
        self.forget()
        try:
            yield
        finally:
            self.arena = arena
            self._tickets.clear()
            for executor, kept in zip(executors, bound):
                executor.arena, executor.bound = arena, kept

    def forget(self) -> None:
        """Throws away buffers and recordings; programs stay."""
        self.arena = Arena(keep_strides=self.options.repair == "none")
        self._tickets.clear()
        for executor in (e for v in self._all for e in v.executors):
            executor.arena, executor.bound = self.arena, {}

    @property
    def recordings(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Everything recorded: (executor, bucket) -> step -> recording."""
        return {(e, key): b.recordings for v in self._all for e in v.executors for key, b in e.bound.items()}

    @property
    def programs(self) -> list[Program]:
        return [p for v in self._all for p in v.programs]

    def _ticket(self, variant: Variant, extents: dict[str, int]) -> Ticket:
        at = choose_key(self.admission.keys, extents)
        key, program = self.admission.keys[at], variant.programs[at]
        captured = captured_extents(
            key, extents, self.admission.sizes(key), self.admission.capacity, program.caps
        )
        names, executor = program.space.sympy, variant.executors[at]
        known = None if captured is None else extents_of(names, captured)
        return Ticket(variant, executor, executor.layout(extents_of(names, extents), known))

    # ------------------------------------------------------------------------------------------------ compiling
    def _through_dynamo(self, batch: dict[str, Any], extents: dict[str, int]) -> Any:
        """Dynamo traces a new signature, or takes a branch it has seen; the program runs on the caller's batch."""
        if not self._only_trace and self._is_one_value_too_many(batch):
            return self._miss(batch, "CW103: a Python value that the model reads has been another at every step")
        self._batch, self._extents, self._last = batch, extents, None
        result = self._call(batch, unbacked=False not in self._compiled)
        if self._last is not None:
            self._learn_outputs(self._last, result, batch)
            self.variants[self.admission.signature(batch)] = self._last
            # Dynamo saw marked copies of inputs: an input that is returned as it is must be the caller's own.
            mine = {id(v): batch[n] for n, v in self._marked.items() if isinstance(v, torch.Tensor)}
            result = tree_map(lambda leaf: mine.get(id(leaf), leaf), result)
        return result

    def _is_one_value_too_many(self, batch: Mapping[str, Any]) -> bool:
        signature = self.admission.signature(batch)
        known = [v for v in self._all if v.signature == signature and v.writes]
        return len(known) >= MAX_VALUES and not any(v.guards.constants_hold() for v in known)

    def _call(self, batch: dict[str, Any], unbacked: bool) -> Any:
        specs = self.admission.specs
        if self._named is None:
            self._named = Named(self.model, specs, self.admission.bounds)
        if unbacked not in self._compiled:
            self._compiled[unbacked] = torch.compile(self._named, backend=self._backend, fullgraph=True)
        try:
            with torch.no_grad(), compat.dynamo_settings(unbacked_ints(specs), unbacked), self._tracing:
                self._tracing.enter_context(compat.tracing_kernels())
                self._marked = mark(batch, specs, unbacked)
                return self._compiled[unbacked](self._marked)
        except compat.branch_errors() as error:
            if not unbacked:
                raise TraceError(_cannot_trace(error)) from error
            self.report.add(_branch(error))
            return self._call(batch, False)
        except compat.graph_break_errors() as error:
            raise TraceError(_cannot_trace(error)) from error

    def _backend(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        unbacked = False not in self._compiled
        admission = self.admission
        strided = frozenset(admission.strided)
        programs: list[Program] = []
        for i, key in enumerate(admission.keys):
            traced = to_aten(gm, admission.specs, strict=unbacked)
            name = f"{type(self.model).__name__}.{len(self._all)}.{i}"
            earlier = [*self.programs, *programs]
            texts, capacity = self.keep_texts, admission.capacity
            programs.append(build(traced, self.options, key, capacity, name, strided, texts, earlier))
        for program in programs:
            self.report.merge(program.report)
            if self.options.dump is not None:
                dump(program, self.options.dump)
        self._tracing.close()
        variant = self._variant(programs, gm)
        naive = self.options.repair == "none"
        self._report_writes(variant, naive)
        # A naive engine replays whatever the model's Python would have done.
        variant.direct = unbacked and (naive or not variant.writes)
        variant.signature = self.admission.signature(self._batch)
        self._all.append(variant)

        def runner(*args: Any) -> Any:
            self._tracing.close()
            self._last = variant
            if self._only_trace:
                raise Traced
            self._bind_state(variant, args)
            self.ticket = ticket = self._ticket(variant, self._extents)
            self._outs = ticket.executor.step(self._batch, ticket.layout)
            if not naive and any(write.tensor for write in variant.writes):
                self._outs = own_memory(self._outs, (*ticket.executor.state.values(), *self._batch.values()))
            return self._outs

        return runner

    def _report_writes(self, variant: Variant, naive: bool) -> None:
        """What the model's Python changes at a step, and what recordings would make of it: those of this program and
        of all others that read the same."""
        self._moving |= {write.source for write in variant.writes}
        self._read |= {a.source for p in variant.programs for a in p.arrivals.values() if a.kind == "state"}
        self._constants |= compat.guarded_values()
        writes = [w for v in (*self._all, variant) for w in v.writes]
        for diagnostic in diagnose(writes, self._constants, self._read, naive):
            if all((d.code, d.node) != (diagnostic.code, diagnostic.node) for d in self.report.diagnostics):
                self.report.add(diagnostic)

    def _variant(self, programs: list[Program], gm: fx.GraphModule) -> Variant:
        capture = capture_mode(self.options, programs[0])
        largest = self.admission.largest()
        executors = []
        for program in programs:
            unlowered = {s.name: s.module for s in program.pieces}
            pieces = unlowered if self._only_trace else lowered(program, self.options, capture, largest)
            executors.append(Executor(program, self.arena, capture, pieces, largest))
        sources = [compat.source_of(n) for n in gm.graph.find_nodes(op="placeholder")]
        by_source = {source: i for i, source in enumerate(sources)}
        state_args = {a.source: by_source[a.source] for p in programs for a in p.arrivals.values() if a.kind == "state"}
        writes = writes_of(compat.python_scope(self._named), gm, programs[0])
        # A naive engine never looks at what its own steps would change.
        blind = {w.source for w in writes} if self.options.repair == "none" else set()
        guards = Guards(self._named, constants_of(self._named, blind), {})
        return Variant(programs, executors, state_args, self._statics(programs), guards, writes=writes)

    def _statics(self, programs: list[Program]) -> list[tuple[str, tuple[Any, ...]]]:
        """Inputs that are handed over as they are: their address and layout are part of every recording."""
        names = {a.name for p in programs for a in p.arrivals.values() if a.kind == "input"}
        found = []
        for name in sorted(names):
            spec, value = self.admission.specs.get(name), self._batch.get(name)
            if (spec is None or spec.kind == "buffer") and isinstance(value, torch.Tensor):
                found.append((name, _static_layout(value, spec)))
        return found

    def _bind_state(self, variant: Variant, args: Sequence[Any]) -> None:
        """The model's own tensors, as Dynamo fetched them. Others than before make recordings worthless, except for
        those that the model replaces at every step: these are staged. A naive engine keeps the first ones."""
        naive = self.options.repair == "none"
        for program, executor in zip(variant.programs, variant.executors):
            state = {
                name: args[variant.state_args[arrival.source]]
                for name, arrival in program.arrivals.items()
                if arrival.kind == "state"
            }
            moving = {n for n, a in program.arrivals.items() if a.kind == "state" and a.source in self._moving}
            if not executor.holds(state) and not (naive and executor.state):
                executor.rebind(state, frozenset() if naive else frozenset(moving))
        if self.options.guards and not naive:
            bound = {a.source: e.state[n] for p, e in zip(variant.programs, variant.executors)
                     for n, a in p.arrivals.items() if a.kind == "state"}  # fmt: skip
            variant.guards = Guards(self._named, variant.guards.constants, bound)

    # ------------------------------------------------------------------------------------------------ results
    def _learn_outputs(self, variant: Variant, result: Any, batch: Mapping[str, Any]) -> None:
        """Which leaf of the model's result is which graph output; a graph output that is none is a side effect, which
        only Dynamo's own code performs."""
        leaves, variant.tree = tree_flatten(result)
        variant.leaves = [self._leaf(leaf, batch) for leaf in leaves]
        used = {at for kind, at in variant.leaves if kind == "out"}
        tensors = all(isinstance(o, torch.Tensor) for o in self._outs)
        if self.options.repair != "none":
            variant.direct = variant.direct and tensors and used == set(range(len(self._outs)))

    def _leaf(self, leaf: Any, batch: Mapping[str, Any]) -> tuple[str, Any]:
        if not isinstance(leaf, torch.Tensor):
            return ("constant", leaf)
        at = next((i for i, o in enumerate(self._outs) if o is leaf), None)
        if at is not None:
            return ("out", at)
        name = next((n for n in batch if leaf is batch[n] or leaf is self._marked[n]), None)
        return ("input", name) if name is not None else ("constant", leaf)

    def _rebuild(self, variant: Variant, outs: Sequence[Any], batch: Mapping[str, Any]) -> Any:
        leaves = [
            outs[value] if kind == "out" else batch[value] if kind == "input" else value
            for kind, value in variant.leaves
        ]
        assert variant.tree is not None
        return tree_unflatten(leaves, variant.tree)

    # ------------------------------------------------------------------------------------------------ guards
    def _moved_static(self, variant: Variant, batch: Mapping[str, Any]) -> str | None:
        """What changed about an input that is handed over as it is; None if nothing did. A naive engine
        (repair="none") has no guards: that is the damage to show."""
        if not self.options.guards or self.options.repair == "none":
            return None
        for name, layout in variant.statics:
            value = batch.get(name)
            known = self.admission.specs.get(name)
            now = _static_layout(value, known) if isinstance(value, torch.Tensor) else None
            if now != layout:
                same_place = now is not None and now[0] == layout[0]
                what = "CW402: the strides" if same_place else "CW301: the address"
                return f"{what} of {name!r} changed, which is not staged"
        return None

    def _miss(self, batch: Mapping[str, Any], why: str) -> Any:
        """The step runs eagerly; it is counted, and said once."""
        self.misses += 1
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(f"{why}; this step ran eagerly", RuntimeWarning, stacklevel=3)
        with torch.no_grad(), compat.eager_kernels():
            return self.model(**batch)


def _static_layout(value: torch.Tensor, spec: Spec | None) -> tuple[Any, ...]:
    if spec is not None:
        return (value.data_ptr(), value.stride())
    return (value.data_ptr(), tuple(value.shape), value.stride())


def _branch(error: BaseException) -> Diagnostic:
    """A host branch on a named size: one program a side, Dynamo's guards choose."""
    return Diagnostic(
        "CW102",
        "refuted",
        "branch",
        "the host branches on a size",
        label="a recording holds one side of the branch",
        span=compat.user_span(error) or Span(),
        repair="key",
        notes=(str(error).strip().splitlines()[0][:200],),
    )


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
