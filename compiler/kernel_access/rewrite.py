"""Substitution in expressions: lanes move when a tensor is reshaped, loaded values become a sentinel."""

from __future__ import annotations

from collections.abc import Callable

from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Node, Part, Poly

Replace = Callable[[Node], "Poly | Node | None"]


class Rewriter:
    """Rebuilds expressions with some nodes replaced. `replace` gives the new value of a node, or None to keep it and
    rewrite its operands; results are simplified again, so conditions can become true or false."""

    def __init__(self, space: Space, replace: Replace) -> None:
        self.space, self.replace = space, replace
        self._memo: dict[Node, Poly | Node] = {}

    def poly(self, poly: Poly) -> Poly:
        """The polynomial with replacements made."""
        out = Poly.of(0)
        for monomial, coefficient in poly.terms.items():
            term = Poly.of(coefficient)
            for node in monomial:
                value = self._visit(node)
                term = term * (value if isinstance(value, Poly) else Poly({(value,): 1}))
            out = out + term
        return out

    def truth(self, node: Node) -> Node:
        """The condition with replacements made."""
        value = self._visit(node)
        assert isinstance(value, Node)
        return value

    def _visit(self, node: Node) -> Poly | Node:
        done = self._memo.get(node)
        if done is None:
            done = self.replace(node)
            if done is None:
                done = self._rebuild(node) if node.args else node
            self._memo[node] = done
        return done

    def _part(self, part: Part) -> Part:
        if isinstance(part, Poly):
            return self.poly(part)
        return self.truth(part) if isinstance(part, Node) else part

    def _rebuild(self, node: Node) -> Poly | Node:
        args = tuple(self._part(a) for a in node.args)
        if args == node.args:
            return node
        return rebuild(self.space, node, args)


def rebuild(space: Space, node: Node, args: tuple[Part, ...]) -> Poly | Node:
    """The same operation on other operands, simplified."""
    ints: dict[str, Callable[..., Poly]] = {
        "div": space.div,
        "rem": space.rem,
        "min": space.minimum,
        "max": space.maximum,
        "ite": space.choose,
    }
    truths: dict[str, Callable[..., Node]] = {"ge": space.ge, "eq": space.eq, "not": space.negate}
    if node.op in ints:
        return ints[node.op](*args)
    if node.op in truths:
        return truths[node.op](*args)
    nodes = [a for a in args if isinstance(a, Node)]
    if node.op in ("and", "or"):
        return space.both(nodes) if node.op == "and" else space.either(nodes)
    if node.op == "floor":
        divisor = args[1].const if isinstance(args[1], Poly) else None
        assert isinstance(args[0], Poly) and divisor is not None
        return space.floor(args[0], divisor)
    return space.make(node.op, *args, low=node.low, high=node.high)


def substitute(space: Space, poly: Poly, mapping: dict[Node, Poly]) -> Poly:
    """`poly` with nodes replaced by polynomials."""
    return Rewriter(space, mapping.get).poly(poly)
