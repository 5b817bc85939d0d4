"""Puts live extents on the device in place of host numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from capwise.axes import as_expr
from capwise.compilation import CompilerPass, Editor
from capwise.facts import facts, val
from capwise.transfer.scalars import OPERATORS, is_affine, tensor_overload

aten = torch.ops.aten


class DeviceScalar(CompilerPass):
    """A host number is replaced by a 0-d tensor iff a recording would freeze it at the captured extent and the op has
    an overload that takes a tensor there."""

    name = "device_scalar"
    needs = ("diagnostics",)
    gives = ("scalars",)

    def run(self, graph: fx.Graph) -> bool:
        changed = False
        for hazard in self.state.hazards:
            if hazard.chosen is None or hazard.chosen.kind != "scalar" or facts(hazard.node).eager:
                continue
            # Two numbers of one op are replaced together.
            if hazard.chosen.arg in hazard.node.all_input_nodes:
                self._replace(hazard.node, hazard.chosen.arg)
                changed = True
        return changed

    def _replace(self, node: fx.Node, number: Any) -> None:
        edit = Editor(self.state, node)
        scalar = self._tensor(edit, number)
        if node.target is aten.scalar_tensor.default:
            dtype = node.kwargs.get("dtype") or torch.get_default_dtype()
            node.replace_all_uses_with(edit.call(aten._to_copy.default, scalar, dtype=dtype))
            self.state.graph.erase_node(node)
            return
        found = tensor_overload(node, number)
        assert found is not None
        overload, others = found
        names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]

        def convert(name: str, arg: Any) -> Any:
            if arg is number:
                return scalar
            if name not in others or arg is None:
                return arg
            return self._tensor(edit, arg) if isinstance(arg, fx.Node) else edit.call(aten.full.default, [], arg)

        node.args = tuple(convert(n, a) for n, a in zip(names, node.args))
        node.kwargs = {n: convert(n, a) for n, a in node.kwargs.items()}
        node.target = overload

    def _tensor(self, edit: Editor, number: Any) -> Any:
        """The host computation, done again on live scalars."""
        if not isinstance(number, fx.Node):
            return number
        if is_affine(self.state.space, number):
            return edit.expression(as_expr(val(number)))
        args = [self._tensor(edit, a) for a in number.args]
        if number.target is torch.sym_float:
            return edit.call(aten._to_copy.default, args[0], dtype=torch.float64)
        args = [edit.call(aten.full.default, [], a) if not isinstance(a, fx.Node) else a for a in args]
        return edit.call(OPERATORS[number.target], *args)
