"""A tracer small enough to read: a module to the aten graph that lowering is given."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

LIMITS = {"T": 32, "R": 16}


class Named(nn.Module):
    """States what the names mean, as capwise.compile does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.m = model

    def forward(self, x, qsl, slots):
        T, R = x.shape[0], slots.shape[0]
        for n, most in ((T, LIMITS["T"]), (R, LIMITS["R"])):
            torch._check(n >= 1)
            torch._check(n <= most)
        torch._check(qsl.shape[0] == R + 1)
        return self.m(x, qsl, slots)


@dataclass
class Piece:
    """A traced module: its graph, its symbols, and arguments for any extents."""

    gm: torch.fx.GraphModule
    symbols: dict[str, Any]
    model: nn.Module

    def args(self, T: int, R: int, model: nn.Module, seed: int = 0) -> list[Any]:
        """Arguments at an extent, those of `model` by reference."""
        batch = make_batch(T, R, seed, next(model.buffers()).device)
        owned = dict(model.named_parameters()) | dict(model.named_buffers())
        here = {self.symbols["T"]: T, self.symbols["R"]: R}
        made: list[Any] = []
        for p in self.gm.graph.find_nodes(op="placeholder"):
            val = p.meta["val"]
            if isinstance(val, torch.SymInt):
                made.append(int(val.node.expr.subs(here)))
            elif p.meta["of"] in batch:
                made.append(batch[p.meta["of"]])
            else:
                made.append(owned[p.meta["of"]])
        return made

    def compare(self, run: Any, T: int, R: int) -> None:
        """Runs the graph and `run` on equal arguments; outputs, their strides and all state must agree."""
        a, b = copy.deepcopy(self.model), copy.deepcopy(self.model)
        with torch.no_grad():
            want = self.gm(*self.args(T, R, a))
        got = run(*self.args(T, R, b))
        assert isinstance(got, tuple) and len(got) == len(want)
        for w, g in zip(want, got):
            torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5, equal_nan=True)
            assert _layout(g) == _layout(w)
        for (name, w), g in zip(a.named_buffers(), b.buffers()):
            torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def _layout(value: Any) -> list[tuple[int, int]]:
    if not isinstance(value, torch.Tensor):
        return []
    return [(n, s) for n, s in zip(value.shape, value.stride()) if n > 1]


def make_batch(T: int, R: int, seed: int = 0, device: Any = "cpu") -> dict[str, torch.Tensor]:
    """x [T, 16], boundaries [R + 1], slots [R]."""
    g = torch.Generator().manual_seed(100 * T + R + seed)
    cuts = sorted((torch.randperm(T - 1, generator=g)[: R - 1] + 1).tolist()) if R > 1 else []
    batch = {
        "x": torch.randn(T, 16, generator=g),
        "qsl": torch.tensor([0, *cuts, T], dtype=torch.int32),
        "slots": (torch.randperm(11, generator=g)[:R] + 1).int(),
    }
    return {name: value.to(device) for name, value in batch.items()}


def _aten(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    holders = gm.graph.find_nodes(op="placeholder")
    fakes = [p.meta["example_value"] for p in holders]
    mode = next(f.fake_mode for f in fakes if isinstance(f, torch.Tensor))

    def run(*args):
        with preserve_node_meta():
            return torch.fx.Interpreter(gm).run(*args)

    with mode, torch.no_grad():
        made = make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
    for node in reversed(made.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            made.graph.erase_node(node)
    for node in reversed(made.graph.nodes):
        if node.op == "call_function" and not node.users and isinstance(node.meta.get("val"), torch.SymBool):
            made.graph.erase_node(node)
    made.recompile()
    for old, new in zip(holders, made.graph.find_nodes(op="placeholder")):
        source = old.meta["grapharg"].source.name
        new.meta["source"] = source() if callable(source) else source
    return made


def _owner(source: str) -> str:
    words = [w for w in source.replace("]", "").replace("['", ".").replace("'", "").split(".") if w]
    skip = ("L", "self", "_modules", "_parameters", "_buffers")
    return ".".join(w for w in words if w not in skip).removeprefix("m.")


@pytest.fixture
def trace():
    """trace(module) -> Piece: through Dynamo at (T, R) = (6, 3), with T and R unbacked."""

    def go(model: nn.Module) -> Piece:
        found: dict[str, Any] = {}

        def backend(gm, _):
            found["gm"] = _aten(gm)
            return gm.forward

        batch = make_batch(6, 3, device=next(model.buffers()).device)
        for name, axis in (("x", "T"), ("qsl", "R+1"), ("slots", "R")):
            torch._dynamo.decorators.mark_unbacked(batch[name], 0, shape_id=axis)
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(Named(copy.deepcopy(model)), backend=backend, fullgraph=True)(**batch)
        symbols = {}
        for p in found["gm"].graph.find_nodes(op="placeholder"):
            p.meta["of"] = _owner(p.meta["source"])
            val = p.meta["val"]
            if isinstance(val, torch.Tensor) and p.meta["of"] in ("x", "slots"):
                symbols["T" if p.meta["of"] == "x" else "R"] = val.shape[0].node.expr
            if isinstance(val, torch.SymInt):
                for dim, name in (("L['x'].size()[0]", "T"), ("L['slots'].size()[0]", "R")):
                    if p.meta["source"] == dim:
                        symbols[name] = val.node.expr
        return Piece(found["gm"], symbols, model)

    return go
