"""The compiler: one traced graph in, one Program out; and how its pieces run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capwise.axes import Space
from capwise.compilation import Compilation
from capwise.labels import extents_of, parse_dim
from capwise.options import Key, Options
from capwise.pipeline import pipeline, run
from capwise.program import Program, main_device
from capwise.report import SeamRow
from capwise.trace import Traced, drop_dead_calls, span_of


def build(
    traced: Traced,
    options: Options,
    key: Key,
    capacity: Mapping[str, int],
    name: str,
    strided: frozenset[str],
    keep_texts: bool = False,
    earlier: Sequence[Program] = (),
) -> Program:
    """The compiler: one traced graph in, one Program out; with the graph's text after every pass where asked for.
    `earlier` are programs of the same model: they share its state."""
    if options.repair == "none":
        drop_dead_calls(traced)
    symbols = set(traced.symbols)
    outside = frozenset(s for s in symbols if parse_dim(s, s).symbol not in key)
    padded = {s for s in symbols if key and parse_dim(s, s).symbol == key[0]} | outside
    capacity = {**capacity, **extents_of(symbols, capacity)}
    space = Space(traced.names, padded, capacity)
    state = Compilation(traced, options, space, outside, dict(capacity), strided)
    state.whole = {owner: node for program in earlier for owner, node in program.whole.items()}
    state.taken = frozenset(owner for program in earlier for owner, _, _ in program.scratch)
    run(state, pipeline(), keep_texts or options.dump is not None)
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
        state.whole,
        state.caps,
    )
    report.programs.append(program.text())
    return program


def _returned(state: Compilation, name: str) -> bool:
    return any(o.kind == "state" and o.name == name for o in state.outputs)


def dump(program: Program, folder: str) -> None:
    """Writes the program and its graph after every pass: shapes, strides and names, never values."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for number, (name, text) in enumerate([*program.texts.items(), ("program", program.text())]):
        (place / f"{program.name}.{number:02d}.{name}.txt").write_text(text + "\n")


def capture_mode(options: Options, program: Program) -> str:
    """ "graph" on a device, "off" on a CPU, where the options leave it open."""
    if options.capture != "auto":
        return options.capture
    device = main_device(v.device for v in program.values.values())
    return "graph" if device.type == "cuda" else "off"


def lowered(
    program: Program, options: Options, capture: str, extents: Mapping[str, int]
) -> dict[str, Callable[..., Any]]:
    """Pieces as they run. Under the tape they run unlowered: Inductor's CPU code is one opaque call."""
    if options.lower == "eager" or capture == "tape":
        return {s.name: s.module for s in program.pieces}
    from capwise.lower.pieces import lower_pieces

    return lower_pieces(program, extents)
