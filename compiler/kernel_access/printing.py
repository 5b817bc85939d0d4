"""Expressions as text in argument names, and as sympy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from capwise.kernel_access.symbolic import Node, Part, Poly

if TYPE_CHECKING:
    import sympy

_PREFIX = {"pid": "pid", "grid": "grid", "trip": "trip", "carry": "carried", "exit": "final", "opaque": "unknown",
           "obool": "unknown"}  # fmt: skip


def text(part: Part) -> str:
    """A polynomial or condition in argument names: `(n - 1)*stride + 16`, `max(idx_ptr)`, `pid0 < n`."""
    if isinstance(part, Poly):
        return _poly(part)
    if isinstance(part, Node):
        return _TRUTHS[part.op](part) if part.op in _TRUTHS else _node(part)
    return str(part)


def _poly(poly: Poly) -> str:
    """Positive terms first, constants last."""
    terms = sorted(poly.terms.items(), key=lambda t: (t[1] < 0, not t[0], [_node(n) for n in t[0]]))
    out = ""
    for monomial, coefficient in terms:
        factors = [_factor(n) for n in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+"
        out += f" {sign} {'*'.join(factors)}" if out else f"{'-' if coefficient < 0 else ''}{'*'.join(factors)}"
    return out or "0"


def _factor(node: Node) -> str:
    inside = _node(node)
    return f"({inside})" if node.op in ("div", "rem", "floor") else inside


def _wrapped(part: Part) -> str:
    inside = text(part)
    return f"({inside})" if " " in inside else inside


def _node(node: Node) -> str:
    if node.op in _PREFIX:
        return _PREFIX[node.op] + "_".join(str(a) for a in node.args if isinstance(a, int))
    if node.op == "lane":
        return f"range{node.args[0]}({node.args[1]})"
    if node.op in ("maxof", "minof"):
        return f"{node.op[:3]}({node.args[0]})"
    if node.op in ("div", "floor", "rem"):
        return f"{_wrapped(node.args[0])} {'%' if node.op == 'rem' else '//'} {_wrapped(node.args[1])}"
    if node.op in ("min", "max"):
        return f"{node.op}({', '.join(sorted(text(a) for a in node.args))})"
    if node.op == "load":
        return f"{node.args[0]}[{text(node.args[1])}]"
    if node.op == "ite":
        return f"({text(node.args[1])} if {text(node.args[0])} else {text(node.args[2])})"
    return str(node.args[0]) if node.op in ("sym", "last") else node.op


def _order(node: Node) -> str:
    """poly >= 0 as `smaller <= larger`, strict where the constant allows."""
    (poly,) = node.polys()
    constant = poly.terms.get((), 0)
    above = Poly({m: c for m, c in poly.terms.items() if c > 0 and m})
    below = Poly({m: -c for m, c in poly.terms.items() if c < 0 and m})
    if constant < 0:
        return f"{text(below + (-constant - 1))} < {text(above)}"
    return f"{text(below)} <= {text(above + constant)}"


def _equal(node: Node, sign: str = "==") -> str:
    (poly,) = node.polys()
    above = Poly({m: c for m, c in poly.terms.items() if c > 0 and m})
    below = Poly({m: -c for m, c in poly.terms.items() if c <= 0 or not m})
    return f"{text(above)} {sign} {text(below)}" if above.terms else f"{text(below)} {sign} 0"


def _negated(node: Node) -> str:
    inner = node.args[0]
    assert isinstance(inner, Node)
    return _equal(inner, "!=") if inner.op == "eq" else f"not ({text(inner)})"


_TRUTHS: dict[str, Callable[[Node], str]] = {
    "ge": _order,
    "eq": _equal,
    "not": _negated,
    "and": lambda node: " and ".join(sorted(_wrapped(a) for a in node.args)),
    "or": lambda node: " or ".join(sorted(_wrapped(a) for a in node.args)),
    "true": lambda node: "True",
    "false": lambda node: "False",
}


def to_sympy(part: Part) -> sympy.Expr:
    """The same expression for sympy: integer symbols named as in `text`, loaded values as functions of their offset."""
    import sympy

    if isinstance(part, Poly):
        total = sympy.Integer(0)
        for monomial, coefficient in part.terms.items():
            total += sympy.Mul(coefficient, *(to_sympy(n) for n in monomial))
        return total
    assert isinstance(part, Node)
    args = part.args
    if part.op in ("div", "floor"):
        return sympy.floor(to_sympy(args[0]) / to_sympy(args[1]))
    if part.op == "rem":
        return sympy.Mod(to_sympy(args[0]), to_sympy(args[1]))
    if part.op in ("min", "max"):
        return (sympy.Min if part.op == "min" else sympy.Max)(*(to_sympy(a) for a in args))
    if part.op == "load":
        return sympy.Function(str(args[0]), integer=True)(to_sympy(args[1]))
    if part.op == "ite":
        condition = sympy.Symbol(text(args[0]), integer=True, nonnegative=True)
        return to_sympy(args[2]) + condition * (to_sympy(args[1]) - to_sympy(args[2]))
    name = f"range{args[0]}" if part.op == "lane" else _node(part)
    nonnegative = True if part.low is not None and part.low >= 0 else None
    return sympy.Symbol(name, integer=True, nonnegative=nonnegative)
