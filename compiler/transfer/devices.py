"""Work of the host in a program of a device, and what passes between the two."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from capwise.facts import is_tensor, val
from capwise.ops import aten
from capwise.program import is_free
from capwise.transfer.flow import SEAM, Flow, Hazard


def between_devices(flow: Flow, node: fx.Node) -> None:
    """An op may be recorded iff it reads and makes tensors of the device alone, or host tensors that never change."""
    device = flow.device
    if device.type == "cpu" or is_free(node):
        return
    host = [a for a in node.all_input_nodes if is_tensor(a) and val(a).device.type == "cpu"]
    made = {t.device.type for t in tree_leaves(val(node)) if isinstance(t, torch.Tensor)}
    on_device = any(is_tensor(a) and val(a).device.type != "cpu" for a in node.all_input_nodes) or made - {"cpu"}
    host_made = "cpu" in made
    if not host and not host_made or _is_constant(node) or host and all(map(_is_constant, host)):
        return
    if not on_device:
        label = "a recording holds what the device does"
        hazard = Hazard("CW103", node, f"{node.target} runs on the host: a replay skips it", label, (SEAM,))
    elif host_made:
        label = "its result is needed on the host"
        hazard = Hazard("CW002", node, f"{node.target} waits for the device", label, (SEAM,))
    elif all(val(a).dim() == 0 for a in host):
        label = f"{host[0].name} is a number of the host"
        hazard = Hazard("CW102", node, "host value is frozen at capture", label, (SEAM,), host[0])
    else:
        label = f"{host[0].name} lies in host memory, which may be written again meanwhile"
        hazard = Hazard("CW306", node, f"{node.target} reads host memory inside the step", label, (SEAM,), host[0])
    flow.report(hazard)


def _is_constant(node: fx.Node) -> bool:
    """Made of constants of the trace alone: the same at every step."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload) and aten.is_random(node.target):
        return False
    return all(map(_is_constant, node.all_input_nodes))
