"""Where Dynamo stops: the errors that it raises, the user's line, and where a broken graph goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from capwise.compat.sources import TORCH_ROOT


def branch_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises where the host branches on an unbacked size."""
    from torch._dynamo.exc import UserError
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (UserError, GuardOnDataDependentSymNode)


def graph_break_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises where it would have to break the graph."""
    from torch._dynamo.exc import TorchRuntimeError, Unsupported

    return (Unsupported, TorchRuntimeError)


def user_span(error: BaseException) -> Any:
    """The user's line that Dynamo was tracing when it raised."""
    from capwise.report import Span

    stack = getattr(error, "real_stack", None)
    frames = [f for f in stack or [] if TORCH_ROOT not in f.filename]
    return Span(frames[-1].filename, frames[-1].lineno or 0) if frames else None


def resumed_place(gm: fx.GraphModule) -> Any:
    """A diagnostic where this graph goes on after a graph break: eager Python runs before it. Dynamo names the code
    that it makes for the rest of a frame after the line of the break."""
    from capwise.report import Diagnostic, Span

    translator = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
    code = translator.f_code
    if not code.co_name.startswith("torch_dynamo_resume_in_"):
        return None
    line = code.co_name.rpartition("_at_")[2]
    span = Span(code.co_filename, int(line) if line.isdigit() else code.co_firstlineno)
    return Diagnostic("CW002", "refuted", "graph", "the graph breaks here", "eager Python runs here", span, "seam")
