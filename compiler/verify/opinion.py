"""A second opinion on captured ATen nodes: the same values through torch-mlir (linalg, run on this CPU) and eager.

Nodes that can be lowered are taken in runs, from one that writes memory, is no ATen op or draws random numbers to the
next. A run that torch-mlir refuses is halved until single nodes are left; those are listed as not lowered, with the
reason, and count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from capwise.backend import CompiledModel, case_options
from capwise.case import Case
from capwise.labels import normalise
from capwise.lower.mlir import MlirError, execute, linalg, require
from capwise.program import extract, is_free, is_part
from capwise.verify.blame import place_of
from capwise.verify.compare import difference
from capwise.verify.inputs import Inputs, copied
from capwise.verify.result import Mismatch, Place


@dataclass(frozen=True)
class Row:
    """One captured node. verdict: "agrees", "differs" or "not lowered", then with the reason."""

    piece: str
    place: Place
    verdict: str
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"piece": self.piece, **self.place.to_dict(), "verdict": self.verdict, "reason": self.reason}


@dataclass
class Opinion:
    """What torch-mlir says of the nodes of every captured piece. worst: the largest absolute difference of a float."""

    rows: list[Row] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    worst: float = 0.0

    def count(self, verdict: str) -> int:
        return sum(row.verdict == verdict for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        counts = {v.replace(" ", "_"): self.count(v) for v in ("agrees", "differs", "not lowered")}
        return {**counts, "worst": self.worst, "nodes": [row.to_dict() for row in self.rows]}

    def __str__(self) -> str:
        head = (
            f"torch-mlir: {self.count('agrees')} nodes agree with eager (worst difference {self.worst:.1e}), "
            f"{self.count('differs')} differ, {self.count('not lowered')} not lowered"
        )
        rest = [f"  {r.verdict}: {r.place}" + (f": {r.reason}" if r.reason else "") for r in self.rows]
        return "\n".join([head, *(line for line, r in zip(rest, self.rows) if r.verdict != "agrees")])


def second_opinion(case: Case, **options: Any) -> Opinion:
    """Lowers and runs every captured node of a case, at the extents of each of its programs' first batch.

    Raises:
        MlirError: torch-mlir is not installed.
    """
    require()
    found = Opinion()
    for piece, part in _parts(case, options):
        _examine(found, piece, part)
    return found


def linalg_text(case: Case, **options: Any) -> str:
    """The captured nodes of a case as linalg on tensors, a module a run of nodes; what has no such form as comments."""
    require()
    lines: list[str] = []
    for piece, part in _parts(case, options):
        for some, module in _lowered(part, lambda run, values: linalg(run, values)[0]):
            shown = ", ".join(node.name for node in some.nodes)
            if isinstance(module, MlirError):
                lines.append(f"// {piece}: not lowered: {shown}: {module}")
            else:
                lines += [f"// {piece}: {shown}", str(module).strip()]
    return "\n".join(lines)


@dataclass
class Part:
    """A run of nodes with the values that it met, its own and those it takes. refused: why it cannot be lowered."""

    module: fx.GraphModule
    nodes: list[fx.Node]
    values: dict[fx.Node, Any]
    refused: str = ""

    def code(self) -> tuple[Callable[..., Any], list[Any], list[fx.Node]]:
        """What it computes, for which arguments, and which nodes' values come out."""
        own = set(self.nodes)
        made = [n for n in self.nodes if isinstance(self.values[n], torch.Tensor)]
        outs = [n for n in made if any(u not in own for u in n.users)] or made[-1:]
        graph, taken = extract(self.module, self.nodes, outs)
        return graph, [self.values[n] for n in taken], outs

    @property
    def ops(self) -> list[fx.Node]:
        return [n for n in self.nodes if not is_part(n)]

    def halves(self) -> Iterator[Part]:
        """Two parts; the several results of one op stay with it."""
        middle = self.nodes.index(self.ops[len(self.ops) // 2])
        for some in (self.nodes[:middle], self.nodes[middle:]):
            yield Part(self.module, some, self.values)


def _examine(found: Opinion, piece: str, part: Part) -> None:
    for some, results in _lowered(part, execute):
        if isinstance(results, MlirError):
            found.rows += [Row(piece, place_of(n), "not lowered", str(results)) for n in some.ops]
            continue
        _, _, outs = some.code()
        same = [_same(found, some.values[n], result, n) for n, result in zip(outs, results)]
        # Only values that leave the run are compared: the nodes behind them agree or not with them.
        found.rows += [Row(piece, place_of(n), "agrees" if all(same) else "differs") for n in some.ops]


def _same(found: Opinion, eager: torch.Tensor, result: torch.Tensor, node: fx.Node) -> bool:
    apart = difference(eager, result, exact=False)
    if eager.is_floating_point() and eager.shape == result.shape and eager.numel():
        gap = (eager.double() - result.double()).abs().max().item()
        found.worst = max(found.worst, gap) if math.isfinite(gap) else found.worst
    if apart is not None:
        found.mismatches.append(Mismatch(0, f"mlir {node.name}", "eager", *apart, place=place_of(node)))
    return apart is None


def _lowered(part: Part, lower: Callable[..., Any]) -> Iterator[tuple[Part, Any]]:
    """The part, or smaller ones, with what `lower` makes of each; a MlirError beside nodes that cannot be lowered."""
    if part.refused:
        yield part, MlirError(part.refused)
        return
    run, values, _ = part.code()
    try:
        yield part, lower(run, values)
    except MlirError as error:
        if len(part.ops) == 1:
            yield part, error
            return
        for half in part.halves():
            yield from _lowered(half, lower)


# ---------------------------------------------------------------------------------------------------------- parts
def _parts(case: Case, options: dict[str, Any]) -> Iterator[tuple[str, Part]]:
    """Runs of captured nodes with values; nodes that no run can hold come alone, without any."""
    made = case_options(case, **{"capture": "tape", "lower": "eager", **options})
    place = torch.device("cpu")
    compiled = CompiledModel(copied(case.model, place), made)
    inputs = Inputs(normalise(made.inputs), place)
    seen: set[int] = set()
    for batch in case.batches:
        given = inputs.fresh({k: v for k, v in batch.items() if v is not None})
        compiled(**given)
        ticket = compiled.ticket
        if ticket is None or id(ticket.executor) in seen:
            continue
        seen.add(id(ticket.executor))
        gathered: list[tuple[str, Part]] = []
        executor = ticket.executor
        kept, executor.pieces = (
            executor.pieces,
            {s.name: _Gather(s.name, s.module, gathered).run for s in executor.program.pieces},
        )
        try:
            executor.uncaptured(given, ticket.layout.live)
        finally:
            executor.pieces = kept
        yield from gathered


class _Gather(fx.Interpreter):
    """Runs a piece, and keeps what each run of nodes met when it was met: memory is written later."""

    def __init__(self, piece: str, module: fx.GraphModule, found: list[tuple[str, Part]]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.piece, self.found, self.whole = piece, found, module
        self.open: Part | None = None

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "call_function" or is_free(n):
            return result
        refused = "" if is_part(n) and self.open is not None else _refused(n)
        if refused:
            self.open = None
            if not is_part(n):
                self.found.append((self.piece, Part(self.whole, [n], {}, refused)))
            return result
        if self.open is None:
            self.open = Part(self.whole, [], {})
            self.found.append((self.piece, self.open))
        self.open.nodes.append(n)
        self.open.values[n] = tree_map(_kept, result)
        for node in _behind(n):
            if node not in self.open.values:
                self.open.values[node] = tree_map(_kept, self.env[node])
        return result


def _behind(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that a part's code may take: arguments, seen through views."""
    stack = list(node.all_input_nodes)
    while stack:
        one = stack.pop()
        yield one
        if is_free(one):
            stack += one.all_input_nodes


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _refused(node: fx.Node) -> str:
    """Why MLIR's immutable values cannot hold what a node does; nothing where they might."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return "no ATen op"
    if op._schema.is_mutable:
        return "writes memory"
    return "draws random numbers" if torch.Tag.nondeterministic_seeded in op.tags else ""
