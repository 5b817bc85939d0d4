"""`torch.compile(model, backend="capwise")`: each Dynamo graph becomes a program; all share one arena.

Dynamo calls a backend after tracing, with literal sizes. Where inputs are named, the backend marks the real inputs and
has Dynamo trace once more, so that one program serves every batch. Relations between axes (R+1), Triton kernels on a
machine without a GPU, and calls that skip Dynamo's own prologue need `capwise.compile`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from capwise import compat
from capwise.admission import DEFAULT_CAPACITY, OTHER_CAPACITY
from capwise.axes import as_expr
from capwise.build import build, capture_mode, lowered
from capwise.effects import diagnose, own_memory, writes_of
from capwise.labels import Dim, InputError, Spec, normalise
from capwise.options import Key, Options
from capwise.program import Program
from capwise.report import Report
from capwise.runtime.arena import Arena
from capwise.runtime.dispatch import MAX_LAYOUTS, captured_extents, choose_key, layout_of
from capwise.runtime.executor import Executor, Layout
from capwise.trace import argument_of, to_aten

log = logging.getLogger(__name__)
_arenas: dict[bool, Arena] = {}


def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """One Dynamo graph in, something to call with its inputs out.

    Raises:
        OptionError: an unknown option.
    """
    options = Options.make(values)
    specs = normalise(options.inputs) if options.inputs is not None else _literal_specs(gm)
    compat.restart_with_names(gm, specs)
    runner = _Runner(gm, options, specs)
    for diagnostic in runner.report:
        if diagnostic.severity != "note":
            log.warning("%s %s: %s", diagnostic.code, diagnostic.span, diagnostic.message)
    return runner


class _Runner:
    """The programs of one graph, one a key."""

    def __init__(self, gm: fx.GraphModule, options: Options, specs: dict[str, Spec]) -> None:
        self.options = options
        self.report = Report()
        place = compat.resumed_place(gm)
        if place is not None:
            self.report.add(place)
        traced = [to_aten(gm, specs, strict=False) for _ in options.key]
        self.sizes = _symbol_places(gm, traced[0].symbols)
        self.capacity = _capacity(options, traced[0].symbols)
        self.keys: list[Key] = [tuple(s for s in key if s in traced[0].symbols) for key in options.key]
        arena = _arenas.setdefault(options.repair == "none", Arena(options.repair == "none"))
        self.executors: list[Executor] = []
        for i, (one, key) in enumerate(zip(traced, self.keys)):
            program = build(one, options, key, self.capacity, f"graph.{i}", frozenset())
            self.report.merge(program.report)
            self.executors.append(self._executor(program, arena))
        self.keeps = self._keeps(gm)
        self.misses = 0
        self.places: dict[str, tuple[Any, ...]] = {}
        self.statics = [n for n, s in _inputs(self.executors[0].program).items() if s is None or s.kind == "buffer"]
        self.unnamed = _has_unnamed_sizes(gm, traced[0].symbols)
        self.layouts: dict[tuple[Any, ...], tuple[Executor, Layout]] = {}
        self.names = [argument_of(p) for p in gm.graph.find_nodes(op="placeholder")]
        by_source = {compat.source_of(p): i for i, p in enumerate(gm.graph.find_nodes(op="placeholder"))}
        arrivals = [executor.program.arrivals.items() for executor in self.executors]
        self.state_args = [[(n, by_source[a.source]) for n, a in found if a.kind == "state"] for found in arrivals]
        # What is no tensor may be an extent.
        numbers = [not isinstance(p.meta["example_value"], torch.Tensor) for p in gm.graph.find_nodes(op="placeholder")]
        self.inputs = [i for i, name in enumerate(self.names) if name is not None or numbers[i]]

    def _keeps(self, gm: fx.GraphModule) -> bool:
        """Whether Dynamo stores what the graph gives where it must outlive the next replay."""
        program, naive = self.executors[0].program, self.options.repair == "none"
        writes = writes_of({}, gm, program)
        read = {a.source for a in program.arrivals.values() if a.kind == "state"}
        for diagnostic in diagnose(writes, compat.guarded_values(), read, naive):
            self.report.add(diagnostic)
        return not naive and any(write.tensor for write in writes)

    def _executor(self, program: Program, arena: Arena) -> Executor:
        capture = capture_mode(self.options, program)
        largest = dict(self.capacity)
        key = self.keys[0]
        if key:
            largest[key[0]] = max((s for s in self.options.capture_sizes if s <= largest[key[0]]), default=1)
        return Executor(program, arena, capture, lowered(program, self.options, capture, largest), largest)

    def __call__(self, *args: Any) -> Any:
        batch = {name: arg for name, arg in zip(self.names, args) if name is not None}
        known = layout_of((i, args[i]) for i in self.inputs)
        found = self.layouts.get(known)
        if found is None:
            if len(self.layouts) >= MAX_LAYOUTS:
                self.layouts.clear()
            found = self.layouts[known] = self._layout(args)
        executor, layout = found
        if self.options.inputs is not None and not executor.state and not executor.bound:
            compat.unmark(args)
        self._bind_state(executor, args)
        outs = executor.step(batch, layout if self._may_replay(batch) else Layout(layout.live, None))
        return own_memory(outs, args) if self.keeps else outs

    def _layout(self, args: Sequence[Any]) -> tuple[Executor, Layout]:
        """What runs a batch layout that is new.

        Raises:
            InputError: an extent over its capacity.
        """
        extents = {s: _extent(args[i], d) for s, (i, d) in self.sizes.items()}
        for symbol, extent in extents.items():
            if extent > self.capacity[symbol]:
                raise InputError(f"{symbol}: expected at most its capacity {self.capacity[symbol]}; got {extent}")
        at = choose_key(self.keys, extents)
        executor, key = self.executors[at], self.keys[at]
        captured = captured_extents(
            key, extents, self.options.capture_sizes, self.capacity, executor.program.caps
        )
        return executor, executor.layout(extents, captured)

    def _may_replay(self, batch: Mapping[str, Any]) -> bool:
        """Whether a recording serves this batch: every size has a name, and what is handed over as it is has not
        moved."""
        if self.unnamed:
            return False
        for name in self.statics:
            now = (batch[name].data_ptr(), batch[name].stride())
            if self.places.setdefault(name, now) != now:
                if not self.misses:
                    log.warning("CW301: input %r moved, which is not staged: name it in inputs={...}", name)
                self.misses += 1
                return False
        return True

    def _bind_state(self, executor: Executor, args: Sequence[Any]) -> None:
        state = {name: args[i] for name, i in self.state_args[self.executors.index(executor)]}
        if not executor.holds(state):
            executor.rebind(state)
            self.layouts.clear()


def _literal_specs(gm: fx.GraphModule) -> dict[str, Spec]:
    """Nobody named an axis: inputs are staged at the sizes of this graph, which Dynamo guards."""
    specs = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        name = argument_of(node)
        if name is not None:
            specs[name] = Spec(name, "staged", (Dim(None, offset=None),) * node.meta["example_value"].dim())
    return specs


def _inputs(program: Program) -> dict[str, Spec | None]:
    """The arguments that a program reads, with their descriptions."""
    return {a.name: program.specs.get(a.name) for a in program.arrivals.values() if a.kind == "input"}


def _has_unnamed_sizes(gm: fx.GraphModule, symbols: Mapping[str, Any]) -> bool:
    """Whether some input has a size that Dynamo made dynamic by itself: no bucket is known for it."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta["example_value"]
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        free = set().union(*[as_expr(s).free_symbols for s in sizes if not isinstance(s, (int, float))])
        if free - set(symbols.values()):
            return True
    return False


def _extent(value: Any, dim: int | None) -> int:
    return int(value) if dim is None else int(value.shape[dim])


def _symbol_places(gm: fx.GraphModule, symbols: Mapping[str, Any]) -> dict[str, tuple[int, int | None]]:
    """Where each symbol's extent can be read: (argument, dimension), or (argument, None) for an int."""
    places: dict[str, tuple[int, int | None]] = {}
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta["example_value"]
        sizes = list(enumerate(value.shape)) if isinstance(value, torch.Tensor) else [(None, value)]
        for dim, size in sizes:
            for name, symbol in symbols.items():
                if not isinstance(size, int) and as_expr(size) == symbol:
                    places.setdefault(name, (i, dim))
    return places


def _capacity(options: Options, symbols: Mapping[str, Any]) -> dict[str, int]:
    capacity = {}
    for symbol in symbols:
        base, plus, offset = symbol.partition("+")
        default = DEFAULT_CAPACITY.get(base, OTHER_CAPACITY)
        capacity[symbol] = options.capacity.get(base, default) + (int(offset) if plus else 0)
    return capacity
