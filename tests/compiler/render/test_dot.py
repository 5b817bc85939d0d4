"""Pieces and seams as a DOT graph."""

from __future__ import annotations

from types import SimpleNamespace

from capwise.render.dot import dot


def _step(kind, name, inputs, outputs, ops, mutated=()):
    return SimpleNamespace(kind=kind, name=name, inputs=inputs, outputs=outputs, ops=ops, mutated=frozenset(mutated))


def test_steps_are_boxes_and_values_are_arrows(text):
    program = SimpleNamespace(
        name='m "0"',
        arrivals={"x": SimpleNamespace(kind="input", name="x"), "s": SimpleNamespace(kind="state", name="cache")},
        steps=[
            _step("piece", "piece0", ("x",), ("y",), tuple(f"op{i}" for i in range(8))),
            _step("seam", "seam0", ("y", "s"), (), ("lib.op",), mutated=("s",)),
        ],
    )
    assert dot([program]) == text(
        r"""
        digraph capwise {
          rankdir=TB;
          node [fontname="monospace", fontsize=10];
          subgraph cluster_0 {
            label="m \"0\"";
            p0_0 [shape=box, style=solid, label="piece piece0\nop0\nop1\nop2\nop3\nop4\nop5\nand 2 more"];
            p0_in_0 [shape=ellipse, label="input x"];
            p0_in_0 -> p0_0 [label="x"];
            p0_1 [shape=box, style=dashed, color="#888888", label="seam seam0\nlib.op"];
            p0_0 -> p0_1 [label="y"];
            p0_in_1 [shape=ellipse, label="state cache"];
            p0_in_1 -> p0_1 [label="s", dir=both];
          }
        }
        """
    )
