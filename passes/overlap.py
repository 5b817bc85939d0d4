"""What one call reads where it writes."""

from __future__ import annotations

from torch import fx

from capwise.compilation import CompilerPass
from capwise.transfer.flow import Hazard, Remedy
from capwise.transfer.meetings import Meeting, meetings


class Overlap(CompilerPass):
    """A call is in order iff nothing that it reads through one argument may be a place that it writes through another,
    but for an element that is read only at the place where it is written itself.

    Two arguments may share a place iff they are views of one storage, and neither their ranges, nor their columns
    within a common stride, nor their elements at the largest extents are shown to be apart. Nothing orders the elements
    of a launch, eager's own result then depends on the order that a kernel happens to take, and PyTorch looks for it
    only where both views are dense. The repair is a temporary: all reads come before all writes.
    """

    name = "overlap"
    needs = ("contract", "rows")
    gives = ("overlaps",)
    codes = ("CW304",)

    def run(self, graph: fx.Graph) -> bool:
        for node in graph.nodes:
            for found in meetings(node, self.state.space):
                self._add(found)
        return False

    def _add(self, found: Meeting) -> None:
        hazard = Hazard(
            "CW304",
            found.node,
            str(found),
            "no order between the two",
            (Remedy("temporary", "temporary", arg=found.arg, cost=1.0),),
            found.arg,
            verdict="refuted" if found.is_sure else "assumed",
        )
        self.state.record(hazard)
