"""What the model's Python changes at a step: found, performed, and never lost to a replay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import capwise
from capwise.effects import path_of
from capwise.verify import verify


def case(model: nn.Module, *tokens: int) -> capwise.Case:
    generator = torch.Generator().manual_seed(1)
    return capwise.Case(
        model=model,
        batches=[{"x": torch.randn(t, 4, generator=generator)} for t in tokens],
        inputs={"x": ("T", 4)},
        capacity={"T": 8},
        options={"capture_sizes": (4, 8)},
    )


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


class Writer(nn.Module):
    """Stores what it never reads."""

    def __init__(self):
        super().__init__()
        self.width = 0
        self.log = []

    def forward(self, x):
        self.width = 4
        self.log.append(7)
        return x + 1


class Memo(nn.Module):
    """The first step decides what later ones do."""

    def __init__(self):
        super().__init__()
        self.scale = None

    def forward(self, x):
        if self.scale is None:
            self.scale = x[0].abs().sum()
        return x / self.scale


class Rebinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))
        self.kept = {}

    def forward(self, x):
        y = x + self.state
        self.state = y[0] * 2
        self.kept["y"] = y[0] + 1
        return y


def found(model: nn.Module, **options: object) -> dict[tuple[str, str], capwise.report.Diagnostic]:
    return {(d.code, d.node): d for d in capwise.backend.check_case(case(model, 3), **options)}


def test_a_value_that_the_step_changes_is_latched_and_has_a_place() -> None:
    (diagnostic,) = found(Counter()).values()
    assert (diagnostic.code, diagnostic.node, diagnostic.repair) == ("CW103", "self.steps", "guard")
    assert diagnostic.file == __file__ and "self.steps += 1" in open(__file__).readlines()[diagnostic.line - 1]
    assert found(Counter(), repair="none")["CW103", "self.steps"].severity == "error"


def test_stores_of_every_kind_are_found() -> None:
    assert {k: d.repair for k, d in found(Writer()).items()} == {
        ("CW103", "self.width"): "refresh before replay",
        ("CW103", "self.log"): "refresh before replay",
    }
    assert set(found(Memo())) == {("CW103", "self.scale"), ("CW303", "self.scale")}
    assert set(found(Rebinds())) == {("CW303", "self.state"), ("CW301", "self.state"), ("CW303", "self.kept.y")}
    assert not found(Weights())


@pytest.mark.parametrize("model", [Counter, Memo, Rebinds])
def test_a_replay_that_skips_them_differs_and_capwise_does_not(model: type[nn.Module]) -> None:
    assert not verify(case(model(), 3, 3, 4, 3), unsafe=True).ok
    result = verify(case(model(), 3, 3, 4, 3))
    assert result.ok and not result.misses, str(result)


def test_stores_that_nothing_reads_are_made_at_every_step() -> None:
    model = Writer()
    compiled = capwise.compile(model, inputs={"x": ("T", 4)}, capture="tape")
    for _ in range(3):
        model.width = 0
        compiled(x=torch.ones(3, 4))
        assert model.width == 4
    assert model.log == [7, 7, 7]


def test_a_value_that_never_settles_ends_in_eager_steps() -> None:
    model, x = Counter(), torch.ones(3, 4)
    compiled = capwise.compile(model, inputs={"x": ("T", 4)}, capture="tape")
    with pytest.warns(RuntimeWarning, match="CW103"):
        seen = [float(compiled(x=x)[0, 0]) for _ in range(12)]
    assert seen == list(range(1, 13))
    assert len(compiled.programs) == 8 and compiled.misses == 4


class Accumulates(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.plain = torch.zeros(4)

    def forward(self, x):
        self.total += x[0]
        self.plain += 1
        return x + self.total + self.plain


def test_an_update_in_place_is_no_store() -> None:
    assert not found(Accumulates())
    assert verify(case(Accumulates(), 3, 4, 3)).ok


class KeepsView(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))
        self.part = None

    def forward(self, x):
        self.state.add_(x[0])
        self.part = self.state[1:3]
        return x * 2


def test_a_view_of_state_that_is_kept_stays_one() -> None:
    model = KeepsView()
    compiled = capwise.compile(model, inputs={"x": ("T", 4)}, capture="tape")
    for _ in range(3):
        compiled(x=torch.ones(3, 4))
    model.state.fill_(9)
    assert model.part.tolist() == [9, 9]


def test_a_tensor_replaced_at_every_step_is_staged_and_recorded_once() -> None:
    compiled = capwise.compile(Rebinds(), inputs={"x": ("T", 4)}, capture="tape")
    bound = []
    for _ in range(4):
        compiled(x=torch.ones(3, 4))
        (executor,) = compiled._all[-1].executors
        bound.append(next(iter(executor.bound.values())))
    assert bound[1] is bound[2] is bound[3]


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.packed = torch.ones(4)
        self.more = [torch.ones(4)]

    def forward(self, x):
        return x * self.w * self.packed * self.more[0]


def test_a_tensor_that_moved_is_noticed_wherever_the_model_keeps_it() -> None:
    model, x = Weights(), torch.ones(3, 4)
    compiled = capwise.compile(model, inputs={"x": ("T", 4)}, capture="tape")
    compiled(x=x), compiled(x=x)
    model.w.data = torch.full((4,), 2.0)
    assert float(compiled(x=x)[0, 0]) == 2
    model.packed = torch.full((4,), 3.0)
    assert float(compiled(x=x)[0, 0]) == 6
    model.more[0] = torch.full((4,), 5.0)
    assert float(compiled(x=x)[0, 0]) == 30
    model.more[0].fill_(7)
    assert float(compiled(x=x)[0, 0]) == 42


def test_sources_read_as_the_user_wrote_them() -> None:
    assert path_of("L['self']._modules['model']._modules['sub'].__dict__['_buffers']['b']") == "self.sub.b"
    assert path_of("G['__import_my_dot_module'].TABLE[3]") == "TABLE[3]"
