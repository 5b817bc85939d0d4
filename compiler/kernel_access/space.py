"""Making expressions in simplified form, each node once: the only place that builds nodes.

Every rule keeps the value for all values of the leaves; constant bounds of nodes (`low`, `high`) decide which apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from capwise.kernel_access.symbolic import Node, Part, Poly, interval


class Space:
    """Makes nodes, each once, in simplified form. One a kernel."""

    def __init__(self) -> None:
        self._table: dict[tuple[object, ...], Node] = {}
        self.true = self.make("true")
        self.false = self.make("false")

    @property
    def mark(self) -> int:
        """Nodes made so far: later ones have a uid not below it."""
        return len(self._table)

    def make(self, op: str, *args: Part, low: int | None = None, high: int | None = None) -> Node:
        """The node as it is, with constant bounds for a new one."""
        key = (op, *args)
        node = self._table.get(key)
        if node is None:
            node = self._table[key] = Node(len(self._table), op, args)
            node.low, node.high = low, high
        return node

    def leaf(self, op: str, *args: Part, low: int | None = None, high: int | None = None) -> Poly:
        """`make` as a polynomial."""
        return Poly({(self.make(op, *args, low=low, high=high),): 1})

    # integers -----------------------------------------------------------------------------------------------------

    def lane(self, dim: int, size: int) -> Poly:
        """Index along one dimension of a tensor, 0 <= lane < size."""
        return Poly.of(0) if size == 1 else self.leaf("lane", dim, size, low=0, high=size - 1)

    def div(self, a: Poly, b: Poly) -> Poly:
        """Quotient rounded towards zero."""
        return self._divide("div", a, b)

    def rem(self, a: Poly, b: Poly) -> Poly:
        """Remainder with the sign of the dividend."""
        return self._divide("rem", a, b)

    def floor(self, a: Poly, b: int) -> Poly:
        """Quotient by a positive constant, rounded down."""
        whole = Poly({m: c // b for m, c in a.terms.items()})
        rest = Poly({m: c % b for m, c in a.terms.items()})
        low, _ = interval(rest)
        if low is not None and low >= 0:
            return whole + self.div(rest, Poly.of(b))
        return whole + self._divide("floor", rest, Poly.of(b))

    def mod(self, a: Poly, b: int) -> Poly:
        """Remainder in [0, b) by a positive constant."""
        low, _ = interval(a)
        if low is not None and low >= 0:
            return self.rem(a, Poly.of(b))
        return a - self.floor(a, b) * b

    def _divide(self, op: str, a: Poly, b: Poly) -> Poly:
        ka, kb = a.const, b.const
        if ka is not None and kb:
            quotient = ka // kb if op == "floor" else abs(ka) // abs(kb) * (1 if (ka < 0) == (kb < 0) else -1)
            return Poly.of(ka - kb * quotient if op == "rem" else quotient)
        if kb == 1:
            return Poly.of(0) if op == "rem" else a
        if ka == 0:
            return Poly.of(0)
        low, _ = interval(a)
        if kb and kb > 0 and low is not None and low >= 0:
            return self._divide_low(op, a, kb)
        if low is not None and low >= 0 and (interval(b)[0] or 0) > 0:
            return self.leaf(op, a, b, low=0, high=interval(a)[1])
        return self.leaf(op, a, b)

    def _divide_low(self, op: str, a: Poly, k: int) -> Poly:
        """a >= 0 and k > 0: multiples of k come out where what stays is not negative."""
        whole = Poly({m: c // k for m, c in a.terms.items()})
        rest = Poly({m: c % k for m, c in a.terms.items()})
        rest_low, rest_high = interval(rest)
        if rest_low is None or rest_low < 0:
            whole, rest, rest_high = Poly.of(0), a, interval(a)[1]
        if rest_high is not None and rest_high < k:
            return rest if op == "rem" else whole
        if op == "rem":
            return self.leaf("rem", rest, Poly.of(k), low=0, high=k - 1)
        return whole + self.leaf("div", rest, Poly.of(k), low=0, high=None if rest_high is None else rest_high // k)

    def minimum(self, a: Poly, b: Poly) -> Poly:
        """The smaller."""
        return a + self._clip("min", b - a, a, b)

    def maximum(self, a: Poly, b: Poly) -> Poly:
        """The larger."""
        return a + self._clip("max", b - a, a, b)

    def _clip(self, op: str, gap: Poly, a: Poly, b: Poly) -> Poly:
        """min(a, b) - a or max(a, b) - a, where gap = b - a."""
        low, high = interval(gap)
        a_low, b_low = interval(a)[0], interval(b)[0]
        a_high, b_high = interval(a)[1], interval(b)[1]
        if low is not None and low >= 0:
            return Poly.of(0) if op == "min" else gap
        if high is not None and high <= 0:
            return gap if op == "min" else Poly.of(0)
        pick: Callable[..., int] = min if op == "min" else max
        lows = [x for x in (a_low, b_low) if x is not None]
        highs = [x for x in (a_high, b_high) if x is not None]
        low = pick(lows) if len(lows) == 2 or (lows and op == "max") else None
        high = pick(highs) if len(highs) == 2 or (highs and op == "min") else None
        first, second = sorted((a, b), key=Poly.order)
        return self.leaf(op, first, second, low=low, high=high) - a

    def choose(self, condition: Node, a: Poly, b: Poly) -> Poly:
        """a where the condition holds, else b."""
        if condition is self.true or a == b:
            return a
        if condition is self.false:
            return b
        gap = (a - b).const
        if gap is not None and b.const != 0:
            return b + self.choose(condition, Poly.of(gap), Poly.of(0))
        (la, ha), (lb, hb) = interval(a), interval(b)
        low = None if la is None or lb is None else min(la, lb)
        high = None if ha is None or hb is None else max(ha, hb)
        return self.leaf("ite", condition, a, b, low=low, high=high)

    # truth --------------------------------------------------------------------------------------------------------

    def ge(self, poly: Poly) -> Node:
        """poly >= 0."""
        low, high = interval(poly)
        if low is not None and low >= 0:
            return self.true
        return self.false if high is not None and high < 0 else self.make("ge", poly)

    def eq(self, poly: Poly) -> Node:
        """poly == 0."""
        low, high = interval(poly)
        if low == high == 0:
            return self.true
        if (low is not None and low > 0) or (high is not None and high < 0):
            return self.false
        choice = self._eq_choice(poly)
        if choice is not None:
            return choice
        return self.make("eq", max(poly, -poly, key=Poly.order))

    def _eq_choice(self, poly: Poly) -> Node | None:
        """A truth value turned to 0 or 1 and compared again is that truth value."""
        for node in poly.nodes():
            if node.op == "ite" and len(poly.terms) <= 2 and isinstance(node.args[0], Node):
                _, a, b = node.args
                rest = poly - Poly({(node,): poly.terms.get((node,), 0)})
                if isinstance(a, Poly) and isinstance(b, Poly) and a.const is not None and b.const is not None:
                    k, r = poly.terms.get((node,), 0), rest.const
                    if r is not None and k:
                        yes, no = k * a.const + r == 0, k * b.const + r == 0
                        return self._either(node.args[0], yes, no)
        return None

    def _either(self, condition: Node, yes: bool, no: bool) -> Node:
        if yes and no:
            return self.true
        if yes:
            return condition
        return self.negate(condition) if no else self.false

    def negate(self, node: Node) -> Node:
        """Not."""
        if node is self.true:
            return self.false
        if node is self.false:
            return self.true
        if node.op == "not":
            return _node(node.args[0])
        if node.op == "ge":
            return self.ge(-_as_poly(node.args[0]) - 1)
        return self.make("not", node)

    def both(self, nodes: Iterable[Node]) -> Node:
        """And; flattened."""
        parts = self._flat("and", nodes, self.true)
        if self.false in parts or any(self.negate(p) in parts for p in parts):
            return self.false
        if not parts:
            return self.true
        return next(iter(parts)) if len(parts) == 1 else self.make("and", *sorted(parts, key=_uid))

    def either(self, nodes: Iterable[Node]) -> Node:
        """Or; what every side has in common is taken out, so that the join of two branches is their fork again."""
        parts = self._flat("or", nodes, self.false)
        if self.true in parts or any(self.negate(p) in parts for p in parts):
            return self.true
        if not parts:
            return self.false
        if len(parts) == 1:
            return next(iter(parts))
        known = {self.negate(p) for p in parts}
        sides = [self._flat("and", [p], self.true) - (known if p.op == "and" else set()) for p in parts]
        if any(p is not self.both(side) for p, side in zip(parts, sides)):
            return self.either(self.both(side) for side in sides)
        common = set.intersection(*sides)
        if common:
            return self.both([*common, self.either(self.both(side - common) for side in sides)])
        return self.make("or", *sorted(parts, key=_uid))

    def _flat(self, op: str, nodes: Iterable[Node], neutral: Node) -> set[Node]:
        out: set[Node] = set()
        for node in nodes:
            out |= {_node(a) for a in node.args} if node.op == op else {node}
        return out - {neutral}

    def pick(self, condition: Node, a: Node, b: Node) -> Node:
        """Truth value a where the condition holds, else b."""
        if a is b:
            return a
        return self.either([self.both([condition, a]), self.both([self.negate(condition), b])])


def _node(value: Part) -> Node:
    assert isinstance(value, Node)
    return value


def _as_poly(value: Part) -> Poly:
    assert isinstance(value, Poly)
    return value


def _uid(node: Node) -> int:
    return node.uid
