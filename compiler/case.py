"""A Case: a model and a history of batches, the thing that `check` and `verify` are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capwise.options import Options


@dataclass
class Case:
    """A model, the batches it is served, and what the axes of its inputs are called.

    Args:
        model: called as `model(**batch)`; state lives in its buffers.
        batches: the history. A batch maps argument names to tensors or ints; an absent optional is a missing key.
            Tensors may be strided views: they are passed on as they are.
        inputs: argument name -> axis labels, `Input`, `Buffer`, `Live`, or a symbol name for an int.
        capacity, key, options: as for `capwise.compile`.
        reference: a module with the same call that says what is right, where the model is wrong even eagerly.
        name: shown in reports.

    Raises:
        ValueError: no batch, or a batch that is no mapping.
    """

    model: Any
    batches: Sequence[Mapping[str, Any]]
    inputs: Mapping[str, Any] | None = None
    capacity: Mapping[str, int] = field(default_factory=dict)
    key: Any = ("T",)
    options: Mapping[str, Any] | None = None
    reference: Any = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.batches:
            raise ValueError("batches: expected at least one batch; got none")
        for i, batch in enumerate(self.batches):
            if not isinstance(batch, Mapping):
                raise ValueError(f"batches[{i}]: expected argument name -> value; got {type(batch).__name__}")
        if not self.name:
            self.name = type(self.model).__name__

    def make_options(self, **more: Any) -> Options:
        """This case's options, with `more` on top."""
        own = {"inputs": self.inputs, "capacity": dict(self.capacity), "key": self.key}
        return Options.make({**own, **(self.options or {}), **more})
