"""Where each graph input lives."""

from __future__ import annotations

from torch import fx

from capwise.compilation import CompilerPass
from capwise.transfer.inputs import set_inputs


class Storage(CompilerPass):
    """A value is owned state iff its storage is that of a tensor that the model or the caller keeps."""

    name = "storage"
    needs = ("symbols",)
    gives = ("origin",)

    def run(self, graph: fx.Graph) -> bool:
        set_inputs(self.state, {})
        return False
