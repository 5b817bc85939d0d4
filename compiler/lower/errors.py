"""What lowering raises. The caller runs the piece eagerly and reports the reason."""

from __future__ import annotations


class LoweringError(RuntimeError):
    """A piece that cannot be lowered.

    Attributes:
        node: the fx node that stopped it, by name; None where it is not known.
        reason: one line, without tensor values.
    """

    def __init__(self, reason: str, node: str | None = None) -> None:
        self.node = node
        self.reason = reason
        super().__init__(f"{node}: {reason}" if node else reason)
