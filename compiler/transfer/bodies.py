"""Ops whose Python body does more than its arguments say."""

from __future__ import annotations

import torch
from torch import fx

from capwise.bodies import Act, acts
from capwise.runtime.kernel_call import call_of
from capwise.transfer.flow import SEAM, Flow, Hazard

_SAID = {
    "CW002": ("{} syncs with the host", "its body waits for a value of the device"),
    "CW003": ("{} reads hidden inputs", "what it reads at capture is not what it reads at replay"),
    "CW103": ("{} keeps state in Python", "what its body does once, or keeps, a replay does not"),
    "CW104": ("{} uses random state that a recording freezes", "drawn anew at every eager step, once at capture"),
}


def body(flow: Flow, node: fx.Node) -> None:
    """An op may be recorded iff its body reads and keeps nothing but its arguments: declared or not, the body is what
    runs."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or call_of(op) is not None:
        return
    groups: dict[str, list[Act]] = {}
    for act in acts(op):
        groups.setdefault(act.code, []).append(act)
    for code, found in sorted(groups.items()):
        message, label = _SAID[code]
        notes = tuple(f"{act.span}: {act.what}" for act in found[:4])
        verdict = "refuted" if any(act.verdict == "refuted" for act in found) else "assumed"
        flow.report(Hazard(code, node, message.format(op), label, (SEAM,), notes=notes, verdict=verdict))  # type: ignore[arg-type]
