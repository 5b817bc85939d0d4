"""What a kernel does with its values apart from addressing: what is compared, what integers become data, and along
which extents lanes are combined. Rows are a kernel's own only where these stay within them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from capwise.kernel_access.parse import Op, parse_type, split_top
from capwise.kernel_access.symbolic import Node, Poly
from capwise.kernel_access.values import Bool, Int, Value

_FROM_INT = ("arith.sitofp", "arith.uitofp", "arith.bitcast", "tt.bitcast", "arith.index_cast")
_COMBINES = ("tt.reduce", "tt.scan")
_REORDERS = ("tt.gather", "tt.histogram", "tt.cat", "tt.join", "tt.split", "tt.map_elementwise")
_AXIS = re.compile(r"axis = (\d+)")

Combined = tuple[tuple[int, ...], int]


@dataclass(frozen=True)
class Seen:
    """tests: comparisons. content: integers that are stored or turned into other data. combined: the tiles whose lanes
    are combined along one dimension, as (shape, dimension); None among them where that is not known. finite: lines of
    branches that leave other rows as they are, as long as what they multiply zeros with is finite."""

    tests: tuple[Node, ...] = ()
    content: tuple[Poly, ...] = ()
    combined: frozenset[Combined | None] = frozenset()
    finite: tuple[int, ...] = ()

    def mixes(self, shape: tuple[int, ...], dim: int, size: int) -> bool:
        """Whether lanes along a dimension of a tile of this shape may be combined with each other. A tile of another
        shape is told by the extent alone."""
        for one in self.combined:
            if one is None or (dim == one[1] if one[0] == shape else size == one[0][one[1]]):
                return True
        return False

    def mapped(self, poly: Callable[[Poly], Poly], truth: Callable[[Node], Node]) -> Seen:
        """The same with its expressions rewritten."""
        return replace(self, tests=tuple(map(truth, self.tests)), content=tuple(map(poly, self.content)))


@dataclass
class Watcher:
    """Collects `Seen` while a kernel is run."""

    tests: dict[Node, None] = field(default_factory=dict)
    content: dict[Poly, None] = field(default_factory=dict)
    combined: dict[str, set[Combined | None]] = field(default_factory=dict)
    finite: dict[int, None] = field(default_factory=dict)

    def watch(self, op: Op, args: Sequence[Value], results: Sequence[Value]) -> None:
        """One operation with its operands' and results' values."""
        if op.name == "arith.cmpi":
            self.tests |= {v.node: None for v in results if isinstance(v, Bool)}
        elif op.name in _FROM_INT or op.name.startswith(("tt.store", "tt.atomic")):
            data = args[1:2] if op.name.startswith("tt.store") else args[1:] if "atomic" in op.name else args
            self.content |= {v.poly: None for v in data if isinstance(v, Int)}
        elif op.name in _COMBINES:
            self.combined[op.results[0]] = _combined(op)
        elif op.name == "tt.dot":
            self.combined[op.results[0]] = _contracted(op)
        elif op.name in _REORDERS or _is_moved(op):
            self.combined[op.results[0]] = {None}

    def seen(self) -> Seen:
        combined = frozenset[Combined | None]().union(*self.combined.values())
        return Seen(tuple(self.tests), tuple(self.content), combined, tuple(self.finite))


def _combined(op: Op) -> set[Combined | None]:
    """The tiles that a reduction or scan runs over, and along which dimension."""
    axis = _AXIS.search(op.text)
    shapes = [parse_type(t).shape for t in split_top(op.types.partition("->")[0].strip().strip("()"))]
    if axis is None or not shapes or any(len(s) <= int(axis.group(1)) for s in shapes):
        return {None}
    return {(shape, int(axis.group(1))) for shape in shapes}


def _contracted(op: Op) -> set[Combined | None]:
    """The dimension that a product of matrices sums over, in either factor."""
    shapes = [parse_type(t.strip()).shape for t in op.types.partition("->")[0].split(" * ")]
    if len(shapes) != 2 or any(len(s) < 2 for s in shapes):
        return {None}
    return {(shapes[0], len(shapes[0]) - 1), (shapes[1], len(shapes[1]) - 2)}


def _is_moved(op: Op) -> bool:
    """Lanes of a tile change their dimension, so that its shape does not tell where rows are."""
    if op.name not in ("tt.trans", "tt.reshape"):
        return False
    return len(parse_type(op.types.partition("->")[0]).shape) > 1
