"""What the model's Python changes at a step beside the graph: attributes, globals and containers.

A recording holds the graph and none of this: a replay skips it. Dynamo's own code performs it, so such a step goes
through Dynamo; what the graph computed and an attribute keeps must be a copy, since the next replay writes over it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from capwise import compat
from capwise.program import Program
from capwise.report import Diagnostic, Span
from capwise.transfer.seams import returned

_WORDS = ("_modules", "_parameters", "_buffers", "__dict__")


@dataclass(frozen=True)
class Write:
    """One place that the step changes. source: its expression as Dynamo writes it; path: as the user would."""

    source: str
    path: str
    tensor: bool
    span: Span


def writes_of(scope: Mapping[str, Any], gm: fx.GraphModule, program: Program) -> list[Write]:
    """What the trace in progress changes. A tensor that is put back where it came from (`self.count += 1`) is no
    change.

    Args:
        scope: what source expressions are evaluated in, to find lines; empty where nobody knows.
    """
    names = [getattr(node, "name", "") for node in returned(gm.graph)]
    found = []
    for one in compat.python_writes():
        write = _write(one, scope)
        output = program.outputs[names.index(one.node)] if one.node in names else None
        arrival = program.arrivals.get(output.name) if output is not None and output.kind == "state" else None
        if arrival is None or path_of(arrival.source) != write.path:
            found.append(write)
    return found


def _write(one: compat.PythonWrite, scope: Mapping[str, Any]) -> Write:
    if not one.name:
        source = one.owner
    elif one.item:
        source = f"{one.owner}['{one.name}']" if not one.name.isdigit() else f"{one.owner}[{one.name}]"
    else:
        source = f"{one.owner}.{one.name}"
    return Write(source, path_of(source), one.tensor, _span(source, scope))


def path_of(source: str) -> str:
    """A source expression as the user would write it in the model's own methods."""
    words = list(_words(ast.parse(source, mode="eval").body))
    kept = [w for w in words if w.strip("'") not in _WORDS]
    if kept[:1] == ["L"]:
        kept = kept[3:] if kept[2:3] == ["'model'"] else kept[2:]
        kept = ["self", *kept]
    elif kept[:1] == ["G"]:
        kept = [w.strip("'") for w in kept[1:] if not w.startswith("'__import_")] or ["globals"]
    text = kept[0]
    for word in kept[1:]:
        plain = word.strip("'")
        text += f".{plain}" if plain.isidentifier() else f"[{word}]"
    return text


def _words(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield from _words(node.value)
        yield node.attr
    elif isinstance(node, ast.Subscript):
        yield from _words(node.value)
        yield ast.unparse(node.slice)
    else:
        yield ast.unparse(node)


def _span(source: str, scope: Mapping[str, Any]) -> Span:
    """The line that makes the store, in the class of the object that holds what is stored."""
    words = [w.strip("'") for w in _words(ast.parse(source, mode="eval").body)]
    name = next((w for w in reversed(words) if w.isidentifier() and w not in _WORDS), "")
    holder: ast.expr = ast.parse(source, mode="eval").body
    while isinstance(holder, (ast.Attribute, ast.Subscript)):
        holder = holder.value
        try:
            found = eval(compile(ast.Expression(holder), "<source>", "eval"), dict(scope))  # noqa: S307
        except Exception:  # noqa: BLE001 - an expression of Dynamo's that is no Python has no line
            continue
        if not isinstance(found, (dict, list)) and (span := _line(type(found), name)).file:
            return span
    return Span()


def _line(owner: type, name: str) -> Span:
    for kind in owner.__mro__:
        try:
            lines, start = inspect.getsourcelines(kind)
            file = inspect.getsourcefile(kind) or ""
        except (OSError, TypeError):
            continue
        for function in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
            if not isinstance(function, ast.FunctionDef) or function.name == "__init__":
                continue
            for node in ast.walk(function):
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete, ast.Expr)) and _stores(node, name):
                    indent = len(lines[0]) - len(lines[0].lstrip())
                    return Span(file, start + node.lineno - 1, indent + node.col_offset + 1)
    return Span()


def _stores(node: ast.stmt, name: str) -> bool:
    """Whether a statement assigns to, deletes, or calls a method of an attribute of that name."""
    if isinstance(node, ast.Expr):
        call = node.value
        method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        places: Sequence[ast.AST] = [call.func.value] if method else []  # type: ignore[attr-defined]
    else:
        places = [node.target] if isinstance(node, ast.AugAssign) else node.targets  # type: ignore[attr-defined]
    return any(isinstance(n, ast.Attribute) and n.attr == name for p in places for n in ast.walk(p))


# kind -> what is said, the label at the store, the repair, what would help.
_SAID: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "latched": (
        "the step changes {}, which decides what the step does",
        "latched at capture: a replay neither reads nor changes it",
        "guard",
        ("keep it in a buffer and change it on the device", "pass it as an argument"),
    ),
    "skipped": (
        "the step stores to {} in Python",
        "skipped by a replay",
        "refresh before replay",
        ("keep it in a buffer and change it on the device",),
    ),
    "kept": (
        "{} keeps a value of the graph after the step",
        "memory of the graph, which the next replay writes over",
        "persistent copy",
        ("copy it into a buffer: self.buffer.copy_(value)",),
    ),
    "moving": (
        "{} is another tensor at every step",
        "a captured piece reads it at the address of capture",
        "stage into a static buffer",
        ("write into a buffer in place: self.buffer.copy_(value)",),
    ),
}
_CODES = {"latched": "CW103", "skipped": "CW103", "kept": "CW303", "moving": "CW301"}


def diagnose(
    writes: Sequence[Write], constants: Collection[str], read: Collection[str], naive: bool
) -> list[Diagnostic]:
    """What a recording would do to the things that a step changes.

    Args:
        constants: sources that the trace took as constants. read: sources of tensors that the graph reads.
        naive: nothing is repaired.
    """
    found: list[Diagnostic] = []
    for write in writes:
        kinds = {
            "latched": write.source in constants,
            "skipped": not write.tensor and write.source not in constants,
            "kept": write.tensor,
            "moving": write.tensor and write.source in read,
        }
        found += [_diagnostic(kind, write, naive) for kind, holds in kinds.items() if holds]
    return found


def _diagnostic(kind: str, write: Write, naive: bool) -> Diagnostic:
    message, label, repair, help = _SAID[kind]
    return Diagnostic(
        _CODES[kind], "refuted", write.path, message.format(write.path), label, write.span, None if naive else repair,
        help=help, candidates=((repair, 0.1), ("seam", 2.0)), evidence=(("source", write.source),),
    )  # fmt: skip


def own_memory(outs: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
    """What an attribute keeps must outlive the next replay, and be nobody else's memory; what looks at tensors of the
    model or the caller stays that."""
    storages = {t.untyped_storage()._cdata for t in kept if isinstance(t, torch.Tensor)}
    return [
        o.clone() if isinstance(o, torch.Tensor) and o.untyped_storage()._cdata not in storages else o for o in outs
    ]
