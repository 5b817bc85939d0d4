"""A Program's pieces, lowered; a piece that does not lower runs as it is, and says so once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from capwise import compat
from capwise.lower.inductor import LoweredPiece, LoweringError, lower_piece
from capwise.ops import aten
from capwise.program import Program, Step


def lower_pieces(program: Program, extents: Mapping[str, int]) -> dict[str, Callable[..., Any]]:
    """Each captured piece as something to call, compiled at its first use.

    Args:
        extents: the bucket that the first compile is made for; others share it where its guards allow.
    """
    known = {s: extents[s] for s in program.space.sympy if s in extents}
    return {step.name: _Piece(program, step, known) for step in program.pieces}


class _Piece:
    """Compiles at the first call. A piece that Inductor cannot lower runs eagerly; strict mode raises."""

    def __init__(self, program: Program, step: Step, extents: Mapping[str, int]) -> None:
        self.program, self.step, self.extents = program, step, dict(extents)
        self.run: Callable[..., Any] | None = None
        self.draws = any(_is_random(node) for node in step.module.graph.nodes)

    def __call__(self, *args: Any) -> Sequence[Any]:
        with compat.random_as_eager(self.draws):
            return self._call(*args)

    def _call(self, *args: Any) -> Sequence[Any]:
        if self.run is None:
            self.run = self._lower()
        try:
            return self.run(*args)
        except LoweringError as error:
            self.run = self._eager(error)
            return self.run(*args)

    def _lower(self) -> Callable[..., Any]:
        try:
            piece: LoweredPiece = lower_piece(self.step.module, self.program.space.sympy, self.extents, [self.extents])
        except LoweringError as error:
            return self._eager(error)
        return piece

    def _eager(self, error: LoweringError) -> fx.GraphModule:
        if self.program.options.strict:
            raise error
        message = f"{self.program.name}: {self.step.name} runs eagerly, Inductor could not lower it: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=4)
        return self.step.module


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and aten.draws(node.target, node.args, node.kwargs)
