"""What a kernel's TTIR says beyond its addresses: what is compared, what integers become data, along which extents
lanes are combined. A contract can only be derived where these stay within rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capwise.kernel_access.access import Access, Loop
from capwise.kernel_access.axes import Role, roles
from capwise.kernel_access.machine import Machine
from capwise.kernel_access.parse import Op, parse, parse_type, split_top
from capwise.kernel_access.rewrite import Rewriter
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Poly
from capwise.kernel_access.ttir import build
from capwise.kernel_access.values import Bool, Int, Value

_FROM_INT = ("arith.sitofp", "arith.uitofp", "arith.bitcast", "tt.bitcast", "arith.index_cast")
_COMBINES = ("tt.reduce", "tt.scan")
_REORDERS = ("tt.dot", "tt.gather", "tt.histogram", "tt.cat", "tt.join", "tt.split", "tt.map_elementwise")
_AXIS = re.compile(r"axis = (\d+)")

Combined = tuple[tuple[int, ...], int]


@dataclass(frozen=True)
class KernelView:
    """One kernel, at the values of its scalars that a launch knows.

    tests: comparisons. content: integers that are stored or turned into other data. combined: the tiles whose lanes are
    combined along one dimension, as (shape, dimension); None among them where that is not known.
    """

    accesses: tuple[Access, ...]
    loops: Mapping[int, Loop]
    space: Space
    roles: Mapping[str, Role]
    tests: tuple[Node, ...]
    content: tuple[Poly, ...]
    combined: frozenset[Combined | None]

    def mixes(self, shape: tuple[int, ...], dim: int, size: int) -> bool:
        """Whether lanes along a dimension of a tile of this shape may be combined with each other. A tile of another
        shape is told by the extent alone."""
        for one in self.combined:
            if one is None or (dim == one[1] if one[0] == shape else size == one[0][one[1]]):
                return True
        return False

    def at(self, scalars: Mapping[str, int]) -> Rewriter:
        """Rewrites expressions with scalar arguments replaced by numbers."""

        def number(node: Node) -> Poly | None:
            value = scalars.get(str(node.args[0])) if node.op == "sym" else None
            return None if value is None else Poly.of(value)

        return Rewriter(self.space, number)


def view_kernel(kernel: Any, signature: Mapping[str, str], fixed: Mapping[str, Any]) -> KernelView:
    """Runs the kernel's TTIR once more, watching what the access summary does not keep.

    Raises:
        BuildError, ParseError, Unfollowed: as for `kernel_access.summarize`, where it gives a summary of unknowns.
    """
    constexprs = {k: v for k, v in fixed.items() if k not in signature}
    unsigned = frozenset(n for n, kind in signature.items() if kind.lstrip("*").startswith("u"))
    watcher = _Watcher(parse(build(kernel, signature, constexprs)), unsigned)
    watcher.run([n for n in kernel.arg_names if n in signature])
    use = roles(watcher.accesses, watcher.loops)
    seen = watcher.seen
    combined = frozenset(seen.combined)
    return KernelView(
        tuple(watcher.accesses), watcher.loops, watcher.space, use, tuple(seen.tests), tuple(seen.content), combined
    )


@dataclass
class _Seen:
    tests: dict[Node, None] = field(default_factory=dict)
    content: dict[Poly, None] = field(default_factory=dict)
    combined: set[Combined | None] = field(default_factory=set)


class _Watcher(Machine):
    def __init__(self, functions: Any, unsigned: frozenset[str]) -> None:
        super().__init__(functions, unsigned)
        self.seen = _Seen()

    def execute(self, op: Op) -> None:
        args = [self.env[n] for n in op.operands if n in self.env]
        super().execute(op)
        if not self.muted:
            self._watch(op, args)

    def _watch(self, op: Op, args: Sequence[Value]) -> None:
        if op.name == "arith.cmpi":
            value = self.env[op.results[0]]
            if isinstance(value, Bool):
                self.seen.tests[value.node] = None
        elif op.name in _FROM_INT or op.name.startswith(("tt.store", "tt.atomic")):
            data = args[1:2] if op.name.startswith("tt.store") else args[1:] if "atomic" in op.name else args
            for value in data:
                if isinstance(value, Int):
                    self.seen.content[value.poly] = None
        elif op.name in _COMBINES:
            self.seen.combined |= _combined(op)
        elif op.name in _REORDERS or _is_moved(op):
            self.seen.combined.add(None)


def _combined(op: Op) -> set[Combined | None]:
    """The tiles that a reduction or scan runs over, and along which dimension."""
    axis = _AXIS.search(op.text)
    shapes = [parse_type(t).shape for t in split_top(op.types.partition("->")[0].strip().strip("()"))]
    if axis is None or not shapes or any(len(s) <= int(axis.group(1)) for s in shapes):
        return {None}
    return {(shape, int(axis.group(1))) for shape in shapes}


def _is_moved(op: Op) -> bool:
    """Lanes of a tile change their dimension, so that its shape does not tell where rows are."""
    source = parse_type(op.types.partition("->")[0])
    return op.name in ("tt.trans", "tt.reshape") and len(source.shape) > 1
