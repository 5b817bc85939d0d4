"""`with capwise.allow("CW203", reason="...")`: a finding that its author answers for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx

from capwise.options import nearest
from capwise.report import RULES

_KEY = "capwise_allow"


def allow(code: str, *, reason: str) -> AbstractContextManager[Any]:
    """Ops traced inside are left as they are where they raise this code; the finding stays in the report, as *assumed*
    and with the reason.

    Args:
        code: one of the codes of `capwise rules`.
        reason: why it is no fault here; kept in every report.

    Raises:
        ValueError: no such code, or no reason.
    """
    if code not in RULES:
        raise ValueError(f"allow: expected a code such as CW203; got {code!r}{nearest(code, list(RULES))}")
    if not reason.strip():
        raise ValueError("allow: reason: expected why this is no fault; got nothing")
    return torch.fx.traceback.annotate({_KEY: f"{code}: {reason}"})


def allowed(node: fx.Node, code: str) -> str | None:
    """The reason that allows this code at this node, if one does."""
    said = (node.meta.get("custom") or {}).get(_KEY, "")
    found, _, reason = str(said).partition(": ")
    return reason if found == code else None
