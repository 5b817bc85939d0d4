"""The pieces and seams of programs as a graph in the DOT language: one box a step, with an arrow for each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

_SHOWN = 6


class StepLike(Protocol):
    """What is shown of a step; a Program's steps have it."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mutated: frozenset[str]
    ops: tuple[str, ...]


class ArrivalLike(Protocol):
    kind: str
    name: str


class ProgramLike(Protocol):
    name: str
    steps: Sequence[StepLike]
    arrivals: Mapping[str, ArrivalLike]


def dot(programs: Sequence[ProgramLike]) -> str:
    """One digraph, a cluster a program: pieces are solid boxes, seams dashed grey ones, inputs and state ellipses. What
    a step writes in place points back to its box."""
    lines = ["digraph capwise {", "  rankdir=TB;", '  node [fontname="monospace", fontsize=10];']
    for number, program in enumerate(programs):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(program.name)};"]
        lines += [f"    {line}" for line in _body(f"p{number}", program)]
        lines.append("  }")
    return "\n".join([*lines, "}"])


def _body(prefix: str, program: ProgramLike) -> Iterator[str]:
    made: dict[str, str] = {}
    for i, step in enumerate(program.steps):
        box = f"{prefix}_{i}"
        yield f"{box} [shape=box, {_style(step)}, label={_quoted(_label(step))}];"
        for name in step.inputs:
            if name not in made:
                made[name] = f"{prefix}_in_{sum('_in_' in box for box in made.values())}"
                yield f"{made[name]} [shape=ellipse, label={_quoted(_origin(program, name))}];"
            both = ", dir=both" if name in step.mutated else ""
            yield f"{made[name]} -> {box} [label={_quoted(name)}{both}];"
        made |= dict.fromkeys(step.outputs, box)


def _style(step: StepLike) -> str:
    return "style=solid" if step.kind == "piece" else 'style=dashed, color="#888888"'


def _label(step: StepLike) -> str:
    shown = list(step.ops[:_SHOWN]) + ([f"and {len(step.ops) - _SHOWN} more"] if len(step.ops) > _SHOWN else [])
    return "\n".join([f"{step.kind} {step.name}", *shown])


def _origin(program: ProgramLike, name: str) -> str:
    arrival = program.arrivals.get(name)
    return f"{arrival.kind} {arrival.name}" if arrival is not None else name


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
