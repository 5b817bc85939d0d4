"""Pieces and seams: only what another step or the caller reads crosses a border."""

from __future__ import annotations

import torch
from torch import nn


def _text(program):
    return [line for line in program.text().splitlines() if line.startswith(("piece", "seam", "return"))]


def test_only_needed_values_cross_borders(make_case, program_of, text, replays, differs):
    def model(x):
        a = x + 1
        b = a * 2
        c = b.exp()
        return c.flip(0) * a

    case = make_case(model)
    assert (
        _text(program_of(case))
        == text(
            """
        piece piece0(x) -> exp, add
        seam seam1(exp) -> flip
        piece piece1(flip, add) -> mul_1
        return mul_1
        """
        ).splitlines()
    )
    replays(case)
    differs(case)


def test_one_piece_takes_its_inputs_and_gives_its_outputs(make_case, program_of, text, replays):
    case = make_case(lambda x: (x + 1) * 2)
    assert program_of(case).text() == text(
        """
        program function.0.0: 1 pieces, 0 seams
          input x
        piece piece0(x) -> mul
          %0 = aten.add.Tensor(x, 1)  [T:padded, 4]
          %1 = aten.mul.Tensor(%0, 2)  [T:padded, 4]
          return [%1]
        return mul
        """
    )
    replays(case)


def test_a_view_is_made_again_on_either_side(make_case, program_of, text, replays):
    """Views cost no launch: what crosses is what they look at."""

    def model(x):
        y = (x * 2).view(-1, 2, 2)
        return y.flip(0) + y[:, 0:1]

    case = make_case(model)
    program = program_of(case)
    assert (
        _text(program)
        == text(
            """
        piece piece0(x) -> mul
        seam seam1(mul) -> flip
        piece piece1(flip, mul) -> add
        return add
        """
        ).splitlines()
    )
    assert program.text().count("aten.view.default") == 2
    replays(case)


def test_one_of_several_results_crosses_alone(make_case, program_of, replays):
    def model(x):
        values, places = (x * 2).flip(0).sort(1)
        return values + 1, places.flip(0) + 0

    case = make_case(model)
    (sort,) = [s for s in program_of(case).pieces if "aten.sort.default" in s.ops]
    assert sort.outputs == ("getitem_1", "add")
    replays(case)


class Returns(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.arange(4.0))

    def forward(self, x):
        self.state.add_(1)
        return {
            "x": x,
            "view": x.t(),
            "state": self.state,
            "sum": x + self.state,
            "n": x.shape[0],
            "k": 3,
            "none": None,
        }


def test_inputs_state_numbers_and_views_are_returned_as_what_they_are(make_case, program_of, replays):
    case = make_case(Returns())
    assert {o.kind for o in program_of(case).outputs} >= {"value", "host"}
    replays(case)


def test_seams_see_live_extents(make_case, replays):
    """An op that nobody speaks for gets what eager would see: live rows, with the strides of a live tensor."""
    seen.clear()
    replays(make_case(lambda x: torch.ops.split_tests.looks((x * 2)[:, :3]) + 1))
    assert {shape for shape, _ in seen} == {(6, 3), (5, 3), (3, 3)} and {stride for _, stride in seen} == {(4, 1)}


seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []


@torch.library.custom_op("split_tests::looks", mutates_args=())
def looks(x: torch.Tensor) -> torch.Tensor:
    seen.append((tuple(x.shape), tuple(x.stride())))
    return x * 3


@looks.register_fake
def _(x):
    return x.new_empty(x.shape)


@torch.library.custom_op("split_tests::triples_", mutates_args={"x"})
def triples_(x: torch.Tensor) -> None:
    x.mul_(3)


@triples_.register_fake
def _(x):
    return None


def test_what_a_seam_writes_reaches_the_pieces_after_it(make_case, program_of, replays):
    def model(x):
        y = x * 2
        torch.ops.split_tests.triples_(y[:, :2])
        return y + 1

    case = make_case(model)
    assert len(program_of(case).seams) == 1
    replays(case)


def test_what_a_seam_writes_inside_a_head_major_value_reaches_the_pieces_after_it(make_case, replays):
    def model(x):
        heads = x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2)
        torch.ops.split_tests.triples_(heads)
        return heads + 1

    replays(make_case(model))


def test_what_a_seam_writes_to_state_stays(make_case, replays):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.ones(16, 4))

        def forward(self, x):
            torch.ops.split_tests.triples_(self.state[: x.shape[0]])
            return x + self.state[0]

    replays(make_case(Writes()))
