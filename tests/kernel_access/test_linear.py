"""Proofs of linear inequalities."""

from hypothesis import given
from hypothesis import strategies as st

from capwise.kernel_access.linear import Prover, facts_of, infeasible
from capwise.kernel_access.space import Space
from capwise.kernel_access.symbolic import Poly


def symbols(space, count=3):
    return [space.leaf("sym", f"x{i}") for i in range(count)]


def test_rounding_to_integers():
    space = Space()
    x, *_ = symbols(space)
    assert infeasible([x * 2 - 1, -(x * 2) + 1])
    assert not infeasible([x * 2 - 2, -(x * 2) + 2])


def test_midpoint_lies_below_the_upper_end():
    space = Space()
    lo, hi, n = symbols(space)
    mid = space.div(lo + hi, Poly.of(2))
    prover = Prover(space, lambda node: [])
    facts = [lo, hi - lo - 1, n - hi]
    assert prover.proves(n - mid - 1, facts)
    assert not prover.proves(n - mid - 2, facts)
    assert not prover.proves(mid - lo - 1, facts)


def test_both_sides_of_a_choice_are_proved():
    space = Space()
    x, y, z = symbols(space)
    chosen = space.choose(space.ge(x - y), y, x)
    prover = Prover(space, lambda node: [])
    assert prover.proves(x - chosen, []) and prover.proves(y - chosen, [])
    assert not prover.proves(z - chosen, [])


def test_conditions_give_facts():
    space = Space()
    x, y, _ = symbols(space)
    both = space.both([space.ge(x - 3), space.eq(x - y)])
    assert Prover(space, lambda node: []).proves(y - 3, facts_of([both]))
    assert facts_of([space.either([space.ge(x), space.ge(y)]), space.negate(space.eq(x))]) == []


@given(st.lists(st.tuples(*[st.integers(-4, 4)] * 4), min_size=1, max_size=5))
def test_what_has_a_solution_is_never_infeasible(rows):
    space = Space()
    x = symbols(space)
    polys = [x[0] * a + x[1] * b + x[2] * c + d for a, b, c, d in rows]
    box = range(-3, 4)
    solved = any(all(a * i + b * j + c * k + d >= 0 for a, b, c, d in rows) for i in box for j in box for k in box)
    assert not (solved and infeasible(polys))
