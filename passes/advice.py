"""What the seams of a plan cost, and what would save it."""

from __future__ import annotations

import operator
from itertools import groupby

from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import facts
from capwise.report import RULES, Diagnostic
from capwise.trace import span_of
from capwise.transfer.seams import levels_of

# A replay costs about what one launch does: a piece of a single op saves nothing.
LEAST_OPS = 2
# Kinds of seams that are tried; more of them are no advice but a list.
MOST_KINDS = 8


class Advice(CompilerPass):
    """Seams of one op and code are worth removing iff the program has fewer pieces without them and something would
    remove them; a piece between two seams is too small iff it holds a single launch."""

    name = "advice"
    needs = ("levels", "steps")
    gives = ("advice",)
    codes = ("CW501", "CW502")

    def run(self, graph: fx.Graph) -> bool:
        state = self.state
        seams = [n for n in state.levels if facts(n).eager]
        if seams and state.options.repair == "auto":
            for level, nodes in _pieces(state.levels).items():
                between = {level - 1, level + 1} <= set(state.levels.values())
                if between and len(nodes) < LEAST_OPS:
                    self._small(nodes[0])
            kinds: dict[tuple[str, str], list[fx.Node]] = {}
            for node in seams:
                if code := state.eager.get(node):
                    kinds.setdefault((str(node.target), code), []).append(node)
            pieces = sum(step.kind == "piece" for step in state.steps)
            for (op, code), nodes in sorted(kinds.items(), key=lambda k: -len(k[1]))[:MOST_KINDS]:
                self._removable(op, code, nodes, pieces)
        return False

    def _small(self, node: fx.Node) -> None:
        self.state.report.add(
            Diagnostic(
                "CW501", "proved", node.name, "a piece is too small to pay for its launch",
                "alone between seams: a replay costs what the op costs", span_of(node),
                notes=("1 launch in the piece",), help=("remove a seam beside it",), op=str(node.target),
                candidates=(("merge", 0.0), ("run eagerly", 1.0)),
            )
        )  # fmt: skip

    def _removable(self, op: str, code: str, nodes: list[fx.Node], pieces: int) -> None:
        found = next((d for d in self.state.report.diagnostics if d.code == code and d.node == nodes[0].name), None)
        others = tuple(r for r in RULES[code].repairs if r != "seam")
        help = (found.help if found is not None else ()) or others
        fewer = len(_pieces(levels_of(self.state.order, without=nodes)))
        if not help or fewer >= pieces:
            return
        times = f"{len(nodes)} seams" if len(nodes) > 1 else "one seam"
        self.state.report.add(
            Diagnostic(
                "CW502", "proved", nodes[0].name, f"{times} of {op} split what could be fewer pieces",
                f"runs eagerly: {code}", span_of(nodes[0]), notes=(f"{pieces} pieces, {fewer} without",), help=help[:2],
                op=op, evidence=(("pieces", str(pieces)), ("without", str(fewer)), ("code", code)),
            )
        )  # fmt: skip


def _pieces(levels: dict[fx.Node, int]) -> dict[int, list[fx.Node]]:
    """The ops of each piece."""
    ordered = sorted(levels.items(), key=operator.itemgetter(1))
    groups = groupby(ordered, key=operator.itemgetter(1))
    return {level: [node for node, _ in found] for level, found in groups if level % 2}
