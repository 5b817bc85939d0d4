"""Expressions: simplification never changes a value."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capwise.kernel_access.evaluate import Frame
from capwise.kernel_access.rewrite import substitute
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Poly, addressing, interval


def leaves(space):
    return [
        space.leaf("sym", "n"),
        space.leaf("pid", 0, low=0),
        space.lane(0, 8),
        Poly.of(3),
        space.leaf("sym", "m"),
    ]


def value(poly, n, m, pid):
    frame = Frame({}, (pid, 0, 0), (9, 1, 1), {"n": n, "m": m}, lambda arg, where: where)
    return np.broadcast_to(frame.value(poly, (8,)), (8,)).tolist()


small = st.integers(-40, 40)
recipe = st.recursive(
    st.integers(0, 4).map(lambda i: ("leaf", i)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["add", "mul", "min", "max"]), inner, inner),
        st.tuples(st.sampled_from(["div", "rem", "floor", "mod", "times"]), inner, st.integers(1, 9)),
        st.tuples(st.just("ite"), inner, inner, inner),
    ),
    max_leaves=5,
)


def built(space, node):
    """The expression, and the same in plain Python."""
    op, *rest = node
    if op == "leaf":
        i = rest[0]
        return leaves(space)[i], lambda env: env[i]
    parts = [built(space, r) if isinstance(r, tuple) else (Poly.of(r), lambda env, r=r: r) for r in rest]
    polys, plain = [p for p, _ in parts], [f for _, f in parts]
    return _MAKE[op](space, *polys), lambda env: _PLAIN[op](*(f(env) for f in plain))


_MAKE = {
    "add": lambda s, a, b: a + b,
    "mul": lambda s, a, b: a * b,
    "times": lambda s, a, b: a * b,
    "min": Space.minimum,
    "max": Space.maximum,
    "div": Space.div,
    "rem": Space.rem,
    "floor": lambda s, a, b: s.floor(a, b.const),
    "mod": lambda s, a, b: s.mod(a, b.const),
    "ite": lambda s, c, a, b: s.choose(s.ge(c), a, b),
}
_PLAIN = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "times": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": lambda a, b: int(a / b),
    "rem": lambda a, b: a - b * int(a / b),
    "floor": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "ite": lambda c, a, b: a if c >= 0 else b,
}


@given(recipe, small, small, st.integers(0, 8))
def test_expressions_keep_their_value(node, n, m, pid):
    poly, plain = built(Space(), node)
    assert value(poly, n, m, pid) == [plain([n, pid, lane, 3, m]) for lane in range(8)]


@given(recipe, small, small, st.integers(0, 8))
def test_intervals_hold(node, n, m, pid):
    poly, _ = built(Space(), node)
    low, high = interval(poly)
    assert all((low is None or low <= v) and (high is None or v <= high) for v in value(poly, n, m, pid))


@given(recipe, small, small, st.integers(0, 8))
def test_substitution_is_evaluation(node, n, m, pid):
    space = Space()
    poly, _ = built(space, node)
    put = substitute(space, poly, {leaves(space)[0].node: Poly.of(n), leaves(space)[4].node: Poly.of(m)})
    assert value(put, 0, 0, pid) == value(poly, n, m, pid)


def test_quotients_of_tiles_come_apart():
    space = Space()
    _, pid, lane, *_ = leaves(space)
    assert space.div(pid * 8 + lane, Poly.of(8)) == pid
    assert space.rem(pid * 8 + lane, Poly.of(8)) == lane


def test_joined_branches_are_their_fork():
    space = Space()
    n, pid, *_ = leaves(space)
    a, b = space.ge(n), space.eq(pid - n)
    fork = space.either([space.both([a, b]), space.both([a, space.negate(b)])])
    assert fork is a
    assert space.both([a, space.negate(a)]) is space.false and space.either([b, space.negate(b)]) is space.true


def test_conditions_are_not_addresses():
    space = Space()
    n, pid, lane, *_ = leaves(space)
    chosen = space.choose(space.ge(n), pid * 2, lane)
    assert {leaf.op for leaf in addressing(chosen)} == {"pid", "lane"}


def test_exact_division():
    space = Space()
    n, pid, *_ = leaves(space)
    assert (n * pid * 6).divided(n * 3) == pid * 2
    assert (n * 6 + pid).divided(n * 3) is None
    assert ((n + pid) * 4).divided(n + pid) == Poly.of(4)
