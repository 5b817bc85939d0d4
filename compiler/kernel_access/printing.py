"""Expressions as text in argument names, and as sympy. Long chains of choices are cut short in text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capwise.kernel_access.symbolic import SEARCHED, Node, Part, Poly

if TYPE_CHECKING:
    import sympy

_PREFIX = {"pid": "pid", "grid": "grid", "trip": "trip", "carry": "carried", "exit": "final", "opaque": "unknown",
           "obool": "unknown"}  # fmt: skip
_LONGEST = 400


def text(part: Part) -> str:
    """A polynomial or condition in argument names: `n*stride + 16 - stride`, `max(idx_ptr)`, `pid0 < n`."""
    return _Text().of(part)


class _Text:
    """One printing; each node is put into words once."""

    def __init__(self) -> None:
        self._done: dict[Node, str] = {}

    def of(self, part: Part) -> str:
        if isinstance(part, Poly):
            return self._poly(part)
        return self._node(part) if isinstance(part, Node) else str(part)

    def _poly(self, poly: Poly) -> str:
        """Positive terms first, constants last."""
        terms = sorted(poly.terms.items(), key=lambda t: (t[1] < 0, not t[0], [self._node(n) for n in t[0]]))
        out = ""
        for monomial, coefficient in terms:
            factors = [self._factor(n) for n in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            out += f" {sign} {'*'.join(factors)}" if out else f"{'-' if coefficient < 0 else ''}{'*'.join(factors)}"
        return out or "0"

    def _factor(self, node: Node) -> str:
        inside = self._node(node)
        return f"({inside})" if node.op in ("div", "rem", "floor") else inside

    def _wrapped(self, part: Part) -> str:
        inside = self.of(part)
        return f"({inside})" if " " in inside and not inside.startswith("((") else inside

    def _node(self, node: Node) -> str:
        if node not in self._done:
            words = self._truth(node) if node.op in _TRUTHS else self._value(node)
            self._done[node] = words if len(words) <= _LONGEST else f"{node.op}(...)"
        return self._done[node]

    def _value(self, node: Node) -> str:
        args = node.args
        if node.op in _PREFIX:
            return _PREFIX[node.op] + "_".join(str(a) for a in args if isinstance(a, int))
        if node.op == "lane":
            return f"range{args[0]}({args[1]})"
        if node.op in ("maxof", "minof"):
            return f"{node.op[:3]}({args[0]})"
        if node.op in ("div", "floor", "rem"):
            return f"{self._wrapped(args[0])} {'%' if node.op == 'rem' else '//'} {self._wrapped(args[1])}"
        if node.op in ("min", "max"):
            return f"{node.op}({', '.join(sorted(self.of(a) for a in args))})"
        if node.op == "load":
            return f"{args[0]}[{self.of(args[1])}]"
        if node.op in SEARCHED:
            return f"{node.op}({args[0]})"
        if node.op == "ite":
            return f"({self.of(args[1])} if {self.of(args[0])} else {self.of(args[2])})"
        return str(args[0])

    def _truth(self, node: Node) -> str:
        if node.op in ("and", "or"):
            return f" {node.op} ".join(sorted(self._wrapped(a) for a in node.args))
        if node.op == "not":
            inner = node.args[0]
            assert isinstance(inner, Node)
            return self._equal(inner, "!=") if inner.op == "eq" else f"not ({self._node(inner)})"
        if node.op == "eq":
            return self._equal(node, "==")
        return self._order(node) if node.op == "ge" else node.op.capitalize()

    def _order(self, node: Node) -> str:
        """poly >= 0 as `smaller <= larger`, strict where the constant allows."""
        above, below, constant = _sides(node)
        if constant < 0:
            return f"{self._poly(below + (-constant - 1))} < {self._poly(above)}"
        return f"{self._poly(below)} <= {self._poly(above + constant)}"

    def _equal(self, node: Node, sign: str) -> str:
        above, below, constant = _sides(node)
        if not above.terms:
            return f"{self._poly(below)} {sign} {constant}"
        return f"{self._poly(above)} {sign} {self._poly(below - constant)}"


_TRUTHS = frozenset({"ge", "eq", "not", "and", "or", "true", "false"})


def _sides(node: Node) -> tuple[Poly, Poly, int]:
    """Positive terms, negated negative terms, and the constant of a comparison with 0."""
    (poly,) = node.polys()
    above = Poly({m: c for m, c in poly.terms.items() if c > 0 and m})
    below = Poly({m: -c for m, c in poly.terms.items() if c < 0 and m})
    return above, below, poly.terms.get((), 0)


def to_sympy(part: Part) -> sympy.Expr:
    """The same expression for sympy: integer symbols named as in `text`, loaded values as functions of their offset,
    conditions as symbols that are 0 or 1."""
    return _Sympy().of(part)


class _Sympy:
    """One conversion; each node is converted once."""

    def __init__(self) -> None:
        self._done: dict[Node, sympy.Expr] = {}

    def of(self, part: Part) -> sympy.Expr:
        import sympy

        if isinstance(part, Poly):
            terms = (sympy.Mul(c, *(self.of(n) for n in m)) for m, c in part.terms.items())
            return sympy.Add(*terms)
        assert isinstance(part, Node)
        if part not in self._done:
            self._done[part] = self._node(part)
        return self._done[part]

    def _node(self, node: Node) -> sympy.Expr:
        import sympy

        args = node.args
        if node.op in ("div", "floor"):
            return sympy.floor(self.of(args[0]) / self.of(args[1]))
        if node.op == "rem":
            return sympy.Mod(self.of(args[0]), self.of(args[1]))
        if node.op in ("min", "max"):
            return (sympy.Min if node.op == "min" else sympy.Max)(*(self.of(a) for a in args))
        if node.op == "load":
            return sympy.Function(str(args[0]), integer=True)(self.of(args[1]))
        if node.op == "ite":
            condition = sympy.Symbol(text(args[0]), integer=True, nonnegative=True)
            return self.of(args[2]) + condition * (self.of(args[1]) - self.of(args[2]))
        name = f"range{args[0]}" if node.op == "lane" else text(node)
        nonnegative = True if node.low is not None and node.low >= 0 else None
        return sympy.Symbol(name, integer=True, nonnegative=nonnegative)
