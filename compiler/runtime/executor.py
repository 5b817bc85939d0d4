"""Runs a Program: binds it once a bucket, then replays a flat list of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from capwise import compat
from capwise.axes import Axis
from capwise.labels import Spec
from capwise.program import Output, Program, Step, main_device
from capwise.runtime import graph, self_test, tape
from capwise.runtime.arena import Arena, TailFill, live_part, most_shape, whole_buffer
from capwise.runtime.live import LiveSlice, Size, write_live
from capwise.runtime.pool import Pool
from capwise.runtime.staging import Staging

Batch = Mapping[str, Any]
Extents = Mapping[str, int]


# The recording that fills tails, where it is not part of the first piece.
FILL = Step("piece", "fill", torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()), (), ())


@dataclass
class Bound:
    """A program at one bucket: values at captured extents, and the calls of a step."""

    captured: dict[str, int]
    values: dict[str, Any]
    calls: list[Callable[[], None]] = field(default_factory=list)
    recordings: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    batch: Batch = field(default_factory=dict)
    scalars: dict[str, torch.Tensor] = field(default_factory=dict)
    staged: list[tuple[str, torch.Tensor, tuple[int, ...]]] = field(default_factory=list)
    fills: list[TailFill] = field(default_factory=list)
    replaced: list[tuple[str, torch.Tensor]] = field(default_factory=list)


@dataclass
class Layout:
    """Everything about a batch but its values, and what was prepared for it.

    live, captured: extents; captured is None where a step runs uncaptured. key: the recording's.
    """

    live: dict[str, int]
    captured: dict[str, int] | None
    key: tuple[int, ...] = ()
    prepared: Prepared | None = None


@dataclass
class Results:
    """What a step does once its calls have run: what gives the live part of a buffer, with the argument that it goes
    back to, and what gives the graph outputs from the batch."""

    copied_back: list[tuple[Callable[[], torch.Tensor], str]]
    outputs: list[Callable[[Batch], Any]]


@dataclass
class Prepared:
    """What a step of one layout does around the calls of its bucket."""

    bound: Bound
    staging: Staging
    results: Results


class Executor:
    """Runs one Program over one Arena.

    capture: "tape", "graph" or "off". Where it is off, or a batch is larger than every bucket, pieces run as they are
    at live extents.
    """

    def __init__(
        self,
        program: Program,
        arena: Arena,
        capture: str,
        pieces: Mapping[str, Callable[..., Any]],
        largest: Mapping[str, int],
    ) -> None:
        self.program, self.arena, self.capture = program, arena, capture
        self.pieces = dict(pieces)
        self.state: dict[str, Any] = {}
        self.moving: frozenset[str] = frozenset()
        self._addresses: tuple[list[torch.Tensor], list[int], list[int]] = ([], [], [])
        self.bound: dict[tuple[int, ...], Bound] = {}
        self.largest = dict(largest)
        self._symbols = sorted(program.space.sympy)
        self._rewritten = {name for step in program.pieces for name in step.mutated}
        self._read_by_pieces = {name for step in program.pieces for name in step.inputs}
        self._slices = {name: LiveSlice(value.axes, program.space) for name, value in program.values.items()}
        self._sizes: dict[Any, Size] = {}
        self._copied_back = [
            (name, arrival.name)
            for name, arrival in program.arrivals.items()
            if arrival.kind == "input" and arrival.name in program.mutated_inputs
        ]

    def holds(self, state: Mapping[str, Any]) -> bool:
        """Whether these are the tensors that recordings were made for, each where it was."""
        if not all(self.state.get(n) is t for n, t in state.items()):
            return False
        return compat.addresses_hold(*self._addresses)

    def rebind(self, state: Mapping[str, Any], moving: frozenset[str] = frozenset()) -> None:
        """Other tensors in place of the model's earlier ones. What was recorded read the earlier ones, and is dropped;
        but for `moving`, which the model replaces at every step: those are staged where no piece writes them."""
        moving = frozenset(n for n in moving - self._rewritten if isinstance(state[n], torch.Tensor))
        before = {n: t for n, t in self.state.items() if n not in self.moving}
        kinds = {n: _kind(t) for n, t in self.state.items() if n in self.moving}
        self.state = dict(state)
        tensors = [t for t in state.values() if isinstance(t, torch.Tensor)]
        self._addresses = (tensors, [t.data_ptr() for t in tensors], list(range(len(tensors))))
        stays = moving == self.moving and all(kinds.get(n) == _kind(state[n]) for n in moving)
        stays = stays and all(state[n] is t for n, t in before.items())
        if not stays or not moving:
            self.bound.clear()
        self.moving = moving

    # ------------------------------------------------------------------------------------------------ a step
    def layout(self, live: Extents, captured: Extents | None) -> Layout:
        """What `step` takes beside a batch; for all batches of the same shapes, strides, types and devices."""
        if captured is None or self.capture == "off":
            return Layout(dict(live), None)
        return Layout(dict(live), dict(captured), tuple(captured[s] for s in self._symbols if s in captured))

    def step(self, batch: Batch, layout: Layout) -> list[Any]:
        """One step; returns the graph outputs at live extents, valid until the next step."""
        if layout.captured is None:
            return self.uncaptured(batch, layout.live)
        bound = self.bound.get(layout.key)
        if bound is None:
            return self._first(batch, layout)
        bound.live, bound.batch = layout.live, batch
        prepared = layout.prepared
        if prepared is None or prepared.bound is not bound:
            prepared = layout.prepared = Prepared(bound, self._staging(bound, batch), self._results(bound))
        prepared.staging(self._staged_values(bound, batch))
        for call in bound.calls:
            call()
        return self._finish(prepared.results, batch)

    def _first(self, batch: Batch, layout: Layout) -> list[Any]:
        """Binds a bucket while running its first step. A tape records as it runs. A device graph records without
        running, so the step runs once as it is, and is recorded afterwards: state moves on exactly once."""
        assert layout.captured is not None
        bound = Bound(layout.captured, dict(self.state), live=layout.live, batch=batch)
        self._bind_inputs(bound, batch)
        self._staging(bound, batch)(self._staged_values(bound, batch))
        if bound.fills:
            self._run_first(bound, FILL)
        for one in self.program.steps:
            self._run_first(bound, one)
        outputs = self._finish(self._results(bound), batch)
        if self.capture == "graph":
            outputs = [
                o.clone() if isinstance(o, torch.Tensor) and kind.kind == "value" else o
                for o, kind in zip(outputs, self.program.outputs)
            ]
            self._record_graphs(bound)
        self.bound[layout.key] = bound
        return outputs

    def _run_first(self, bound: Bound, one: Step) -> None:
        if one.kind == "seam":
            call = self._seam_call(bound, one)
            call()
            bound.calls.append(call)
            return
        run, args = self._code(bound, one), self._arguments(bound, one)
        if self.capture == "tape":
            if self.arena.pool is None:
                self.arena.pool = Pool()
            outs, recording = tape.record(run, args, self.arena.pool)
            bound.recordings[one.name] = recording
            bound.calls.append(recording.replay)
        else:
            outs = run(*args)
        bound.values.update(zip(one.outputs, outs or ()))

    def _code(self, bound: Bound, one: Step) -> Callable[..., Any]:
        """What a piece runs. Tails are filled by a recording of their own, or with the piece that comes first."""
        if one is FILL:
            return lambda: self._fill_tails(bound)
        return one.module if self.capture == "tape" else self.pieces[one.name]

    def _record_graphs(self, bound: Bound) -> None:
        """Records every piece without running it. Tail fills go into the graph of the first piece where one comes
        first."""
        torch.cuda.synchronize()
        self_test.refuse_bad_runtime()
        if self.arena.pool is None:
            self.arena.pool = graph.DevicePool()
        calls: list[Callable[[], None]] = []
        seams = iter(bound.calls)
        steps = list(self.program.steps)
        fill = bool(bound.fills)
        if fill and steps and steps[0].kind == "seam":
            calls.append(self._record(bound, FILL, False))
            fill = False
        for one in steps:
            calls.append(next(seams) if one.kind == "seam" else self._record(bound, one, fill))
            fill = False
        bound.calls = calls

    def _record(self, bound: Bound, one: Step, fill: bool) -> Callable[[], None]:
        code, args = self._code(bound, one), self._arguments(bound, one)

        def run() -> Any:
            if fill:
                self._fill_tails(bound)
            return code(*args)

        outs, recording = graph.record(run, (), self.arena.pool)
        bound.recordings[one.name] = recording
        bound.values.update(zip(one.outputs, outs or ()))
        return recording.replay

    # ------------------------------------------------------------------------------------------------ inputs
    def _bind_inputs(self, bound: Bound, batch: Batch) -> None:
        for name, arrival in self.program.arrivals.items():
            if arrival.kind == "symbol":
                bound.values[name] = self._size(arrival.expr, bound.captured)
            elif arrival.kind == "live":
                bound.values[name] = self._live(bound, arrival.name)
            elif arrival.kind == "host":
                bound.values[name] = self._host(arrival.source, batch)
            elif arrival.kind == "input":
                self._bind_input(bound, name, arrival.name, batch)
            elif name in self.moving:
                value = self.state[name]
                place = f"{self.program.name} {name}"
                bound.values[name] = self.arena.view(place, value, value.shape, value.shape)
                bound.replaced.append((name, bound.values[name]))

    def _live(self, bound: Bound, symbol: str) -> torch.Tensor:
        """The device scalar that holds the live extent of a symbol; written at every step."""
        if symbol not in bound.scalars:
            bound.scalars[symbol] = self.arena.view(f"live {symbol}", self._int64(), (), ())
        return bound.scalars[symbol]

    def _int64(self) -> torch.Tensor:
        device = main_device(v.device for v in self.program.values.values())
        return torch.empty((), dtype=torch.int64, device=device)

    def _bind_input(self, bound: Bound, name: str, argument: str, batch: Batch) -> None:
        value = batch[argument]
        spec = self.program.specs.get(argument)
        if spec is None:
            bound.values[name] = value
            return
        axes = self.program.values[name].axes
        shape = [self.program.space.extent(a, bound.captured) for a in axes]
        padded = [d for d, a in enumerate(axes) if self.program.space.is_padded(a)]
        if spec.kind == "buffer":
            place = whole_buffer(argument, value, shape)
        else:
            # Host inputs that the step copies to the device stand there.
            like = torch.empty_like(value, device=self.program.values[name].device)
            place = self._place(argument, spec, value if like.device == value.device else like, shape)
            bound.staged.append((argument, place, tuple(padded)))
        bound.values[name] = place
        fill = self.program.staged_fills.get(argument)
        if fill is not None:
            bound.fills += [self._fill(bound, place, d, axes[d], fill) for d in padded]

    def _fill(self, bound: Bound, place: torch.Tensor, dim: int, axis: Axis, value: Any) -> TailFill:
        (symbol,) = self.program.space.symbols(axis)
        expr = self.program.space.size(axis)
        scale = int(expr.coeff(self.program.space.sympy[symbol]))
        offset = int(expr.subs({self.program.space.sympy[symbol]: 0}))
        return TailFill(place, dim, self._live(bound, symbol), (scale, offset), value)

    def _staging(self, bound: Bound, batch: Batch) -> Staging:
        """Live rows into the buffers, live extents into their scalars. Tails are filled by the recording itself."""
        places = [live_part(place, batch[argument].shape, padded) for argument, place, padded in bound.staged]
        places += [place for _, place in bound.replaced]
        extents = [(scalar, bound.live[symbol]) for symbol, scalar in bound.scalars.items()]
        return Staging(places, self._staged_values(bound, batch), extents, lambda: self.arena.ring)

    def _staged_values(self, bound: Bound, batch: Batch) -> list[torch.Tensor]:
        return [batch[argument] for argument, _, _ in bound.staged] + [self.state[name] for name, _ in bound.replaced]

    def _fill_tails(self, bound: Bound) -> None:
        for fill in bound.fills:
            fill()

    def _place(self, argument: str, spec: Spec, value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        most = most_shape(spec.dims, shape, self.largest) if spec.dims else shape
        return self.arena.view(argument, value, shape, most)

    def _host(self, source: str, batch: Batch) -> Any:
        """A host number that Dynamo lifted: a stride, or the size of an axis that nobody named."""
        return eval(source, {"L": {"batch": batch, **batch}})  # noqa: S307 - Dynamo's own source expression

    # ------------------------------------------------------------------------------------------------ pieces, seams
    def _arguments(self, bound: Bound, one: Step) -> list[Any]:
        return [bound.values[n] for n in one.inputs]

    def _seam_call(self, bound: Bound, one: Step) -> Callable[[], None]:
        module = one.module
        own = one.name == "views"

        def call() -> None:
            args = [self._caller_argument(bound, n) if own else self._live_argument(bound, n) for n in one.inputs]
            with torch.no_grad():
                outs = module(*args)
            for name, argument in zip(one.inputs, args):
                if name in one.mutated:
                    self._write_back(bound, name, argument)
            for name, out in zip(one.outputs, outs):
                self._keep(bound, name, out)

        return call

    def _caller_argument(self, bound: Bound, name: str) -> Any:
        """What a returned view looks at: the caller's own tensor, not its copy in the arena."""
        arrival = self.program.arrivals.get(name)
        if arrival is not None and arrival.kind == "input":
            return bound.batch[arrival.name]
        if name in self.moving:
            return self.state[name]
        return self._live_argument(bound, name)

    def _live_argument(self, bound: Bound, name: str) -> Any:
        if name in bound.raw:
            return bound.raw[name]
        arrival = self.program.arrivals.get(name)
        if arrival is not None and arrival.kind == "symbol":
            return self._size(arrival.expr, bound.live)
        value = bound.values[name]
        known = self.program.values.get(name)
        if known is None or not isinstance(value, torch.Tensor):
            return value
        live = self._live_part(bound, name)
        # A stride that a captured extent went into is not the stride that eager would see.
        return live if live is value or _same_strides(live, value) else live.contiguous()

    def _write_back(self, bound: Bound, name: str, argument: Any) -> None:
        known = self.program.values.get(name)
        if known is None or not isinstance(argument, torch.Tensor):
            return
        if name in bound.raw and not self._is_read_by_piece(name):
            return
        place = bound.values[name]
        if place.untyped_storage()._cdata != argument.untyped_storage()._cdata:
            write_live(place, argument, known.axes, self.program.space, bound.live, bound.captured)

    def _keep(self, bound: Bound, name: str, out: Any) -> None:
        """A seam's result: as it is for later seams and outputs, and at its captured extent for pieces. What a piece
        writes later is read from where the piece writes it."""
        if name not in self._rewritten:
            bound.raw[name] = out
        known = self.program.values.get(name)
        if known is None or not isinstance(out, torch.Tensor) or not self._is_read_by_piece(name):
            return
        place = bound.values.get(name)
        if place is None:
            shape = [self.program.space.extent(a, bound.captured) for a in known.axes]
            place = bound.values[name] = self.arena.view(f"seam {name}", out, shape, shape)
        write_live(place, out, known.axes, self.program.space, bound.live, bound.captured)

    def _is_read_by_piece(self, name: str) -> bool:
        return name in self._read_by_pieces

    def _size(self, expr: Any, extents: Extents) -> int:
        if expr not in self._sizes:
            self._sizes[expr] = Size(expr, self.program.space)
        return self._sizes[expr](extents)

    def _live_part(self, bound: Bound, name: str) -> torch.Tensor:
        if bound.live == bound.captured:
            # No tail; and past what may be recorded a slice may end with its buffer, before its extent.
            return bound.values[name]
        return self._slices[name](bound.values[name], bound.live, bound.captured)

    # ------------------------------------------------------------------------------------------------ outputs
    def _results(self, bound: Bound) -> Results:
        """Of a bucket that has run, at the extents that are live."""
        copied_back = [(self._reader(bound, name), argument) for name, argument in self._copied_back]
        return Results(copied_back, [self._output(bound, output) for output in self.program.outputs])

    def _finish(self, results: Results, batch: Batch) -> list[Any]:
        for read, argument in results.copied_back:
            live = read()
            if live.data_ptr() != batch[argument].data_ptr():
                batch[argument].copy_(live)
        return [output(batch) for output in results.outputs]

    def _output(self, bound: Bound, output: Output) -> Callable[[Batch], Any]:
        """What gives one output of a step once its calls have run."""
        name, raw = output.name, bound.raw
        if output.kind == "input":
            return lambda batch: batch[name]
        if output.kind == "state":
            return lambda batch: self.state[name]
        if output.kind == "host":
            size = self._size(output.expr, bound.live)
            return lambda batch: size
        if output.kind == "constant":
            return lambda batch: output.expr
        if name in raw:
            return lambda batch: raw[name]
        read = self._reader(bound, name)
        if self.program.options.outputs == "copy":
            return lambda batch: read().clone()
        if _same_strides(read(), bound.values[name]):
            # A tensor of its own: what the caller does to its shape is the caller's.
            return lambda batch: (live := read()).view_as(live)
        return lambda batch: read().contiguous()

    def _reader(self, bound: Bound, name: str) -> Callable[[], torch.Tensor]:
        """What gives the live part of a value: one view for all steps, or a copy made anew where no view is it."""
        live = self._live_part(bound, name)
        if live.untyped_storage()._cdata == bound.values[name].untyped_storage()._cdata:
            return lambda: live
        return lambda: self._live_part(bound, name)

    # ------------------------------------------------------------------------------------------------ uncaptured
    def uncaptured(self, batch: Batch, extents: Extents) -> list[Any]:
        """The same pieces, at live extents, recorded nowhere."""
        bound = Bound(dict(extents), dict(self.state), live=dict(extents))
        for name, arrival in self.program.arrivals.items():
            if arrival.kind == "symbol":
                bound.values[name] = self._size(arrival.expr, extents)
            elif arrival.kind == "live":
                bound.values[name] = self._int64().fill_(extents[arrival.name])
            elif arrival.kind == "host":
                bound.values[name] = self._host(arrival.source, batch)
            elif arrival.kind == "input":
                value = batch[arrival.name]
                if arrival.name in self.program.specs and isinstance(value, torch.Tensor):
                    known = self.program.values.get(name)
                    value = value.to(known.device if known is not None else value.device).contiguous()
                bound.values[name] = value
        for one in self.program.steps:
            run = self.pieces[one.name] if one.kind == "piece" else one.module
            args = [bound.raw.get(n, bound.values.get(n)) for n in one.inputs]
            with torch.no_grad():
                outs = run(*args)
            bound.values.update(zip(one.outputs, outs))
        return self._finish(self._results(bound), batch)


def _same_strides(live: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a live slice has the strides that a tensor of its own size would have."""
    if live is whole or not whole.is_contiguous():
        return live.is_contiguous() or live.stride() == whole.stride() and not whole.is_contiguous()
    return live.is_contiguous()


def _kind(value: Any) -> Any:
    """What of a tensor is part of a recording, its address apart."""
    return (value.shape, value.dtype, value.device) if isinstance(value, torch.Tensor) else value
