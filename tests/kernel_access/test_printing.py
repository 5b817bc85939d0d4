"""Expressions as text."""

import pytest

from capwise.kernel_access.printing import text, to_sympy
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Poly


@pytest.fixture
def space():
    return Space()


def test_polynomials(space):
    n, p = space.leaf("sym", "n"), space.leaf("pid", 1, low=0)
    assert text(n * p * 2 - n + 3) == "2*n*pid1 + 3 - n"
    assert text(Poly.of(0)) == "0" and text(-n - 1) == "-n - 1"


def test_operations(space):
    n = space.leaf("sym", "n")
    assert text(space.div(n + 1, Poly.of(4)) * n) in ("((n + 1) // 4)*n", "n*((n + 1) // 4)")
    assert text(space.leaf("load", "idx", n + 1, None, None)) == "idx[n + 1]"
    assert text(space.leaf("maxof", "idx")) == "max(idx)"


def test_conditions(space):
    n, p = space.leaf("sym", "n"), space.leaf("pid", 0, low=0)
    assert text(space.ge(n - p - 1)) == "pid0 < n"
    assert text(space.ge(n - p)) == "pid0 <= n"
    assert text(space.eq(n + 1)) == "n == -1"
    assert text(space.negate(space.eq(n - p))) in ("n != pid0", "pid0 != n")


def test_sympy(space):
    n, p = space.leaf("sym", "n"), space.leaf("pid", 0, low=0)
    expression = to_sympy(space.rem(p, Poly.of(3)) + n * 2)
    assert expression.subs({s: {"n": 5, "pid0": 7}[s.name] for s in expression.free_symbols}) == 11
