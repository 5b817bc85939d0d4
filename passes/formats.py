"""Formats of 8-bit floats behind plain bytes."""

from __future__ import annotations

import torch
from torch import fx

from capwise.compilation import CompilerPass
from capwise.facts import is_tensor, storage_of, val
from capwise.program import is_free, written_arguments
from capwise.transfer.flow import Hazard, Remedy

_FLOATS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_BYTES = (torch.uint8, torch.int8, *_FLOATS)


class Formats(CompilerPass):
    """Bytes are read as they were written iff every format that some op has written to a storage is the one that its
    readers take it for; state is read at the next step too.

    The formats of NVIDIA (e4m3fn) and of AMD's gfx942 (e4m3fnuz) differ in bias: 0x38 is 1.0 in the one and 0.5 in the
    other, and 0x80 is -0.0 or NaN.
    """

    name = "formats"
    needs = ("contract", "rows")
    gives = ("formats",)
    codes = ("CW601",)

    def run(self, graph: fx.Graph) -> bool:
        if not any(is_tensor(n) and val(n).dtype in _FLOATS for n in graph.nodes):
            return False
        written = _written_formats(graph)
        for node in graph.nodes:
            if _is_reinterpreted(node) and val(node).dtype in _FLOATS:
                formats = written.get(storage_of(val(node)), set())
                if formats - {val(node).dtype}:
                    self._add(node, sorted(formats, key=str))
        return False

    def _add(self, node: fx.Node, formats: list[torch.dtype]) -> None:
        taken, was = _name(val(node).dtype), " and ".join(map(_name, formats))
        plain = len(formats) == 1 and _only_aten(node)
        remedies = (Remedy("format", f"read as {was}", arg=node, extent=formats[0]),) if plain else ()
        hazard = Hazard(
            "CW601", node, f"bytes that were written as {was} are read as {taken}",
            "the same bits are other numbers in another 8-bit format", remedies, node,
        )  # fmt: skip
        self.state.record(hazard)


def _written_formats(graph: fx.Graph) -> dict[int, set[torch.dtype]]:
    """The formats that each storage was written in, as a least fixed point: what a step writes to state is there when
    the next one starts."""
    found: dict[int, set[torch.dtype]] = {}
    size = -1
    while size != sum(map(len, found.values())):
        size = sum(map(len, found.values()))
        for node in graph.nodes:
            _step(node, found)
    return found


def _step(node: fx.Node, found: dict[int, set[torch.dtype]]) -> None:
    sources = [a for a in node.all_input_nodes if is_tensor(a) and val(a).dtype in _BYTES]
    if node.op == "call_function":
        targets = [w for w in written_arguments(node) if is_tensor(w) and val(w).dtype in _BYTES]
        for target in targets:
            mine = found.setdefault(storage_of(val(target)), set())
            mine |= _formats([s for s in sources if s is not target], found)
            if val(target).dtype in _FLOATS:
                mine.add(val(target).dtype)
    if not is_tensor(node) or val(node).dtype not in _BYTES or node.op == "call_function" and is_free(node):
        return
    mine = found.setdefault(storage_of(val(node)), set())
    if val(node).dtype in _FLOATS:
        mine.add(val(node).dtype)
    elif node.op == "call_function":
        mine |= _formats(sources, found)


def _formats(sources: list[fx.Node], found: dict[int, set[torch.dtype]]) -> set[torch.dtype]:
    return set().union(*[found.get(storage_of(val(s)), set()) for s in sources])


def _is_reinterpreted(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is torch.ops.aten.view.dtype


def _only_aten(node: fx.Node) -> bool:
    """Whether only ATen ops read these values, which take any format."""
    ops = [u.target for u in node.users]
    plain = all(isinstance(op, torch._ops.OpOverload) and op.namespace == "aten" for op in ops)
    return plain and all(_only_aten(u) for u in node.users if is_tensor(u) and val(u).dtype == val(node).dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
