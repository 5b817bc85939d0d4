"""Direct calls notice whatever the trace rested on: tensors, Python values, and the objects on the way to them."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capwise
from capwise.runtime.guards import Guards

OFFSET = 1.0


@dataclass
class Config:
    scale: float = 2.0
    kind: str = "plus"


class Part(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), value), requires_grad=False)
        self.register_buffer("shift", torch.full((4,), value))
        self.gain = 3

    def forward(self, x):
        return x * self.weight * self.gain + self.shift


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Part(1.0), Part(2.0)])
        self.config, self.factors, self.gains = Config(), [1.0, 2.0, 3.0], {"one": 1.0}
        self.act, self.last = nn.ReLU(), torch.sin

    def scaled(self, x):
        return self.last(self.act(x)) * self.factors[1]

    def forward(self, x):
        for part in self.parts:
            x = self.scaled(part(x))
        for name in self.gains:
            x = x + len(name)
        for factor in self.factors:
            x = x + factor
        return x * self.config.scale + (OFFSET if self.config.kind == "plus" else 0.0)


CHANGES = {
    "a parameter moved": lambda m: setattr(m.parts[0].weight, "data", torch.full((4,), 5.0)),
    "a parameter replaced": lambda m: setattr(m.parts[1], "weight", nn.Parameter(torch.full((4,), 5.0))),
    "a buffer replaced": lambda m: setattr(m.parts[1], "shift", torch.full((4,), 5.0)),
    "a submodule swapped": lambda m: m.parts.__setitem__(0, Part(5.0)),
    "all submodules swapped": lambda m: setattr(m, "parts", nn.ModuleList([Part(5.0), Part(6.0)])),
    "an attribute": lambda m: setattr(m.parts[0], "gain", 7),
    "an attribute's type": lambda m: setattr(m.parts[0], "gain", 3.5),
    "an item of a list": lambda m: m.factors.__setitem__(1, 4.0),
    "a field of the config": lambda m: setattr(m.config, "kind", "none"),
    "a submodule without tensors": lambda m: setattr(m, "act", nn.Sigmoid()),
    "one submodule more": lambda m: m.parts.append(Part(5.0)),
    "an item more": lambda m: m.factors.append(4.0),
    "an item less": lambda m: m.factors.pop(),
    "a key": lambda m: (m.gains.pop("one"), m.gains.update(eleven=1.0)),
    "a function": lambda m: setattr(m, "last", torch.cos),
    "a method": lambda m: setattr(m, "scaled", lambda x: x * 7),
    "a method of a submodule": lambda m: setattr(m.parts[0], "forward", lambda x: x * 7),
    "the config": lambda m: setattr(m, "config", Config(scale=9.0)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed_at_the_next_call(change):
    model, x = Model(), torch.arange(12.0).view(3, 4)
    compiled = capwise.compile(model, inputs={"x": ("T", 4)}, capture="tape")
    with torch.no_grad():
        for _ in range(3):
            compiled(x=x)
        before = model(x)
        change(model)
        assert not torch.equal(model(x), before)
        for _ in range(2):
            assert torch.equal(compiled(x=x), model(x))


def test_where_nothing_changed_one_comparison_is_all(monkeypatch):
    model, x, followed = Model(), torch.ones(3, 4), []
    compiled = capwise.compile(model, inputs={"x": ("T", 4)}, capture="tape")
    slow = Guards._lead_there
    monkeypatch.setattr(Guards, "_lead_there", lambda self, walk: followed.append(1) or slow(self, walk))
    for _ in range(5):
        compiled(x=x)
    assert len(followed) == 1
    model.config = Config()
    for _ in range(3):
        compiled(x=x)
    assert len(followed) == 2


class Named:
    def __init__(self) -> None:
        self.model = SimpleNamespace(config=Config(), tensor=torch.ones(4), sizes=[1, 2])

    def forward(self):
        return self.model


CONFIG, TENSOR, SIZES = (f"L['self'].model.{name}" for name in ("config.scale", "tensor", "sizes"))


def test_an_equal_object_in_the_place_of_another_changes_nothing():
    named = Named()
    guards = Guards(named, {CONFIG: 2.0}, {TENSOR: named.model.tensor})
    assert guards.hold()
    named.model.config = Config()
    assert guards.hold() and guards.hold()
    named.model.config.scale = 3.0
    assert not guards.hold()


@pytest.mark.parametrize("change", [
    lambda m: setattr(m, "tensor", m.tensor.clone()),
    lambda m: setattr(m, "tensor", None),
    lambda m: delattr(m, "tensor"),
    lambda m: setattr(m.tensor, "data", torch.ones(4)),
    lambda m: setattr(m.config, "scale", 2),
    lambda m: setattr(m, "config", None),
    lambda m: m.sizes.append(3),
])  # fmt: skip
def test_what_was_recorded_is_what_is_compared(change):
    named = Named()
    guards = Guards(named, {CONFIG: 2.0, SIZES: [1, 2]}, {TENSOR: named.model.tensor})
    assert guards.hold()
    change(named.model)
    assert not guards.hold() and not guards.hold()


def test_what_changed_before_the_first_question_is_noticed():
    named = Named()
    guards = Guards(named, {CONFIG: 2.0}, {})
    named.model.config.scale = 4.0
    assert not guards.hold()
    named.model.config.scale = 2.0
    assert guards.hold()


def test_a_source_that_only_dynamo_can_follow_never_holds():
    named = Named()
    assert not Guards(named, {}, {"___odd(L['self'])": named.model.tensor}).hold()
