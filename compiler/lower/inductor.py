"""A captured piece lowered by Inductor: compiled once for as many buckets as its guards allow.

The piece is traced again with backed symbols (`retrace`), compiled, and the guards collected are evaluated at every
bucket; a bucket that breaks one gets a compile of its own, with symbols where that works and at fixed extents where it
does not. No global setting is changed, Dynamo is not reset and the random state is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule

from capwise.lower.binding import Binding, Extents, bind
from capwise.lower.errors import LoweringError
from capwise.lower.retrace import Traced, compile_traced, retrace

__all__ = ["LoweredPiece", "LoweringError", "lower_piece"]

# A piece whose every bucket needs its own compile would cost minutes; past this many the caller runs it eagerly.
MAX_COMPILES = 16


@dataclass(frozen=True)
class Compiled:
    """One compile and the assumptions it stands on."""

    call: Callable[..., Sequence[Any]]
    traced: Traced

    def holds(self, extents: Extents) -> bool:
        return not self.traced.broken(extents)


class LoweredPiece:
    """A lowered piece. Called with the piece's own arguments, at any extents, it returns the piece's outputs.

    Inputs are written in place, as the graph writes them. An output that is, or is a view of, an argument is returned
    as such; outputs that share memory with each other still do. The first call at some extents may compile (`prepare`
    does so ahead) and, on a GPU, loads and tunes kernels: make it before capture.

    Attributes:
        compiles: how many times Inductor ran.
    """

    def __init__(self, binding: Binding, extents: Iterable[Extents], max_compiles: int) -> None:
        self._binding = binding
        self._wanted = tuple(dict.fromkeys(extents))
        self._max_compiles = max_compiles
        self._compiled: list[Compiled] = []
        self._bound: dict[Extents, Callable[[Sequence[Any]], tuple[Any, ...]]] = {}

    @property
    def compiles(self) -> int:
        return len(self._compiled)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols the piece depends on."""
        return self._binding.names

    def covers(self, extents: Mapping[str, int]) -> bool:
        """True iff a call at these extents compiles nothing."""
        return self._find(self._binding.pick(extents)) is not None

    def assumptions(self, extents: Mapping[str, int]) -> list[str]:
        """Why these extents are not covered: one line a compile, with the guards they break; empty iff covered."""
        here = self._binding.pick(extents)
        broken = [c.traced.broken(here) for c in self._compiled]
        return [] if any(not b for b in broken) else [", ".join(b) for b in broken]

    def prepare(self, extents: Iterable[Mapping[str, int]]) -> None:
        """Compiles what calls at these extents need.

        Raises:
            LoweringError: a bucket that does not lower, or one compile too many. Buckets before it stay usable.
        """
        for named in extents:
            here = self._binding.pick(named)
            if self._find(here) is None:
                self._compile(here)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Runs the piece; raises LoweringError where these extents need a compile that fails."""
        here = self._binding.extents(args)
        run = self._bound.get(here)
        if run is None:
            compiled = self._find(here) or self._compile(here)
            run = self._bound[here] = self._bind(compiled, here)
        with torch.no_grad():
            return run(args)

    def _find(self, extents: Extents) -> Compiled | None:
        return next((c for c in self._compiled if c.holds(extents)), None)

    def _bind(self, compiled: Compiled, extents: Extents) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        collect, deliver, call = self._binding.collect(extents), self._binding.deliver(extents), compiled.call
        return lambda args: deliver(args, call(*extents, *collect(args)))

    def _compile(self, extents: Extents) -> Compiled:
        """Compiles for `extents`: with symbols at the most widely valid hint, else at fixed extents."""
        if len(self._compiled) >= self._max_compiles:
            raise LoweringError(f"needs more than {self._max_compiles} compiles for its buckets")
        for traced in self._candidates(extents):
            try:
                compiled = Compiled(compile_traced(traced), traced)
            except LoweringError:
                if traced.fixed is not None:
                    raise
                continue
            if compiled.holds(extents):
                self._compiled.append(compiled)
                return compiled
        raise AssertionError("a compile at fixed extents holds there")

    def _candidates(self, extents: Extents) -> Iterable[Traced]:
        pending = {extents, *(e for e in self._wanted if self._find(e) is None)}
        ranked = []
        for hint in dict.fromkeys((_plain_hint(self._binding, extents), extents)) if extents else ():
            try:
                traced = retrace(self._binding, hint, dynamic=True)
            except LoweringError:
                continue
            valid = [e for e in pending if not traced.broken(e)]
            if extents in valid:
                ranked.append((len(valid), traced))
        yield from (t for _, t in sorted(ranked, key=lambda r: -r[0]))
        yield retrace(self._binding, extents, dynamic=False)


def lower_piece(
    gm: GraphModule,
    symbols: Mapping[str, sympy.Symbol],
    hints: Mapping[str, int],
    extents: Sequence[Mapping[str, int]],
    *,
    max_compiles: int = MAX_COMPILES,
) -> LoweredPiece:
    """Lowers one captured piece.

    Args:
        gm: an aten graph, not functionalised; every node carries `meta["val"]`. It is read, not changed. Arguments are
            tensors and ints; a placeholder whose `val` is None or a plain number stands for that value.
        symbols: name -> symbol in the analysis graph, for every symbol in the layout of an argument.
        hints: the bucket to compile for now.
        extents: every bucket that will be captured; they share compiles where guards allow. More may be called.
        max_compiles: the bound on compiles over the life of the piece.

    Raises:
        LoweringError: the piece does not lower at `hints`: the node, where known, and the reason.
    """
    binding = bind(gm, symbols)
    piece = LoweredPiece(binding, [binding.pick(e) for e in extents], max_compiles)
    piece.prepare([hints])
    return piece


def _plain_hint(binding: Binding, extents: Extents) -> Extents:
    """Extents just below a bucket's that coincide with no fixed size of the graph and with each other.

    torch takes the branch that the hint takes: at T = 16 with a hidden size of 16 it may note `Eq(T, 16)`, which no
    other bucket satisfies, where 13 gives `Ne(T, 16)` or nothing.
    """
    taken = _fixed_sizes(binding.gm)
    chosen: dict[int, int] = {}
    for i in sorted(range(len(extents)), key=lambda i: -extents[i]):
        n = extents[i]
        chosen[i] = next((c for c in range(n, max(n // 2, 1), -1) if c % 2 and c % 3 and c not in taken), n)
        taken |= {chosen[i] - 1, chosen[i], chosen[i] + 1}
    return tuple(chosen[i] for i in range(len(extents)))


def _fixed_sizes(gm: GraphModule) -> set[int]:
    vals = [n.meta.get("val") for n in gm.graph.nodes]
    return {d for v in vals if isinstance(v, torch.Tensor) for d in v.shape if isinstance(d, int)}
