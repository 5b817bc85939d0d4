"""Bytes read in the format that they were written in."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import is_tensor, val


class ReadFormat(CompilerPass):
    """Bytes are read in another format than the model says iff that is the only one they were written in."""

    name = "read_format"
    needs = ("diagnostics",)
    gives = ("readable",)

    def run(self, graph: fx.Graph) -> bool:
        changed = False
        for hazard in self.state.hazards:
            if hazard.chosen is None or hazard.chosen.kind != "format":
                continue
            _retype(hazard.node, hazard.chosen.extent)
            changed = True
        return changed


def _retype(node: fx.Node, dtype: torch.dtype) -> None:
    """Changes the dtype of a reinterpreting view, and of what is made of it in that dtype."""
    before = val(node).dtype
    node.args = (node.args[0], dtype)
    stack = [node]
    while stack:
        one = stack.pop()
        if is_tensor(one) and val(one).dtype == before:
            fake = val(one)
            with fake.fake_mode:
                one.meta["val"] = fake.view(dtype)
            stack.extend(one.users)
