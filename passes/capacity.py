"""Recorded extents that every buffer can hold."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch
from torch import fx

from capwise.axes import as_expr
from capwise.compilation import CompilerPass
from capwise.facts import is_tensor, val
from capwise.labels import parse_dim
from capwise.ops import aten as table
from capwise.report import Diagnostic
from capwise.trace import span_of

_END = torch.iinfo(torch.int64).max


class Capacity(CompilerPass):
    """An extent may be recorded iff no slice of a buffer reaches, at that extent, past the buffer's last row.

    Eager touches the live rows, which fit; a recording touches the padded ones. Buckets above what fits are not
    recorded: the largest that fits becomes one, and larger batches run at their live extents.
    """

    name = "capacity"
    needs = ("symbols",)
    gives = ("capacity",)
    codes = ("CW205",)

    def run(self, graph: fx.Graph) -> bool:
        most: dict[str, tuple[int, fx.Node]] = {}
        for node in graph.nodes:
            for symbol, fits in self._limits(node):
                if symbol not in most or fits < most[symbol][0]:
                    most[symbol] = (fits, node)
        for symbol, (fits, node) in most.items():
            largest = self._largest(symbol)
            # What fits at no extent was never meant to: Python cuts such a slice at the buffer's end.
            if largest is not None and 1 <= fits < largest:
                self._cap(symbol, fits, largest, node)
        return False

    def _largest(self, symbol: str) -> int | None:
        """The largest extent that would be recorded; None where every recording is of the live extent."""
        space, state = self.state.space, self.state
        if symbol not in space.padded:
            return None
        capacity = state.capacity.get(symbol)
        if symbol in state.outside or capacity is None:
            return capacity
        return max((s for s in state.options.capture_sizes if s <= capacity), default=None)

    def _limits(self, node: fx.Node) -> Iterator[tuple[str, int]]:
        """(symbol, its largest extent) for which a slice of a dimension of fixed length stays inside."""
        if node.op != "call_function" or node.target is not torch.ops.aten.slice.Tensor:
            return
        source = node.args[0]
        assert isinstance(source, fx.Node)
        dim, start, end = (_argument(node, name) for name in ("dim", "start", "end"))
        length = val(source).shape[dim or 0] if is_tensor(source) else None
        if not isinstance(length, int):
            return
        first = as_expr(0 if start is None else _value(start))
        last = as_expr(_END if end is None else _value(end))
        if not last.is_Integer:
            yield from self._largest_root(length - last)
        if not first.is_Integer:
            # Counted from the end where it is negative.
            from_start = first.subs(dict.fromkeys(first.free_symbols, 0)) > 0
            yield from self._largest_root(first if from_start else length + first)

    def _largest_root(self, room: sympy.Expr) -> Iterator[tuple[str, int]]:
        """The largest extent at which `room`, which falls in one symbol, is not negative."""
        symbols = sorted(room.free_symbols, key=str)
        if len(symbols) != 1 or symbols[0] not in self.state.space.names or not room.is_polynomial(*symbols):
            return
        slope, rest = room.expand().coeff(symbols[0], 1), room.expand().coeff(symbols[0], 0)
        if slope.is_Integer and rest.is_Integer and slope < 0:
            yield self.state.space.names[symbols[0]], int(rest // -slope)

    def _cap(self, symbol: str, fits: int, largest: int, node: fx.Node) -> None:
        source = node.args[0]
        repaired = self.state.options.repair != "none"
        if repaired:
            dim = parse_dim(symbol, symbol)
            assert dim.symbol is not None
            base = fits - (dim.offset or 0)
            self.state.caps[dim.symbol] = min(base, self.state.caps.get(dim.symbol, base))
            self.state.space.most[symbol] = min(fits, self.state.space.most.get(symbol, fits))
        self.state.report.add(
            Diagnostic(
                "CW205",
                "refuted",
                node.name,
                f"{source} ends before the largest recorded {symbol}",
                label=f"holds {symbol} = {fits} at most; {largest} would be recorded",
                span=span_of(node),
                repair=f"cap the bucket at {fits}" if repaired else None,
                notes=("rows past the end of a buffer belong to somebody else",),
                help=(f"make the buffer as large as the largest bucket, or bound it: capacity={{{symbol!r}: {fits}}}",),
                evidence=(("symbol", symbol),),
                op=str(node.target),
            )
        )


def _argument(node: fx.Node, name: str) -> object:
    assert isinstance(node.target, torch._ops.OpOverload)
    return table.argument(node.target, node.args, node.kwargs, name)


def _value(argument: object) -> object:
    return val(argument) if isinstance(argument, fx.Node) else argument
