"""Branches that a program takes for some of its rows, and that change nothing for the others.

`if tl.max(mine) > 0:` asks whether any lane of a tile needs what the branch does; the tile's rows decide together. Each
row still has only its own say iff, wherever `mine` is false, what the branch gives is what stands without it: stores
have masks that imply `mine`, and what it gives is made by adding products with loads whose masks imply `mine` and
that are zero elsewhere. A product with zero is zero for finite factors only, which is what this rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from capwise.kernel_access.parse import Block, Op
from capwise.kernel_access.symbolic import Node
from capwise.kernel_access.values import Bool, Value

_LIKE = frozenset({"arith.extf", "arith.truncf", "arith.negf", "tt.fp_to_fp"})
_QUIET = ("arith.", "math.", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.addptr", "tt.make_range", "tt.fp_to_fp")
_MOST = frozenset({"arith.maxsi", "arith.maxui", "arith.ori"})


def asks_any(op: Op) -> bool:
    """A reduction to the largest: of truth values, whether any is true."""
    combine = [o.name for region in op.regions for block in region for o in block.ops[:-1]]
    return op.name == "tt.reduce" and len(combine) == 1 and combine[0] in _MOST


def is_neutral(
    branch: Sequence[Block], without: Sequence[str], mine: Node, made: Mapping[str, Op], env: Mapping[str, Value]
) -> bool:
    """Whether a branch gives, wherever `mine` is false, the values called `without`.

    made: the operation behind each name. env: the values of the names after the branch was run."""
    if len(branch) != 1:
        return False
    ops = branch[0].ops
    given = ops[-1].operands if ops and ops[-1].name == "scf.yield" else ()
    tracks = [_Track(name, _is_zero(made, name)) for name in without]
    for op in ops:
        quiet = op.name in ("tt.load", "scf.yield") or op.name.startswith(_QUIET)
        if op.regions or not (quiet or op.name == "tt.store" and _is_masked(op, mine, env)):
            return False
        for track in tracks:
            track.follow(op, lambda load: _covered(load, mine, made, env))
    return all(name in track.same for track, name in zip(tracks, given, strict=True))


class _Track:
    """Names that, wherever `mine` is false, hold 0, or what stands without the branch."""

    def __init__(self, without: str, is_zero: bool) -> None:
        self.same, self.zero = {without}, {without} if is_zero else set()

    def follow(self, op: Op, covered: Callable[[Op], bool]) -> None:
        zero, same = [n in self.zero for n in op.operands], [n in self.same for n in op.operands]
        if op.name == "tt.load":
            is_zero, is_same = covered(op), False
        elif op.name in _LIKE:
            is_zero, is_same = zero[0], False
        elif op.name == "arith.mulf":
            is_zero, is_same = any(zero), False
        elif op.name == "math.fma":
            product = any(zero[:2])
            is_zero, is_same = product and zero[2], product and same[2]
        elif op.name in ("arith.addf", "arith.subf"):
            is_zero = all(zero)
            is_same = same[0] and zero[1] or op.name == "arith.addf" and zero[0] and same[1]
        else:
            return
        self.zero |= set(op.results) if is_zero else set()
        self.same |= set(op.results) if is_same else set()


def _is_zero(made: Mapping[str, Op], name: str) -> bool:
    op = made.get(name)
    if op is None or op.name != "arith.constant":
        return False
    text = op.text.removeprefix("dense<").partition(">")[0].partition(" : ")[0].strip()
    return text in ("0.000000e+00", "0")


def _covered(load: Op, mine: Node, made: Mapping[str, Op], env: Mapping[str, Value]) -> bool:
    """Loads nothing, and gives 0, wherever `mine` is false."""
    return len(load.operands) == 3 and _is_zero(made, load.operands[2]) and _implies(env.get(load.operands[1]), mine)


def _is_masked(store: Op, mine: Node, env: Mapping[str, Value]) -> bool:
    """Writes nothing wherever `mine` is false."""
    return len(store.operands) == 3 and _implies(env.get(store.operands[2]), mine)


def _implies(mask: Value | None, mine: Node) -> bool:
    return isinstance(mask, Bool) and (mask.node.op == "false" or _parts(mine) <= _parts(mask.node))


def _parts(node: Node) -> set[Node]:
    return {n for n in node.args if isinstance(n, Node)} if node.op == "and" else {node}
