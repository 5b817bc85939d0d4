"""Who owns what a graph input stands in."""

from __future__ import annotations

import torch
from torch import nn

from capwise import Buffer
from capwise.facts import fact, has_fact


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x, table, scale):
        self.cache[0] = scale
        return x * self.weight + self.cache[table % 8] - self.cache.view(2, 16)[0, 0]


def _case(make_case):
    table = torch.zeros(16, dtype=torch.int64)
    scale = torch.ones(4)
    steps = [{"x": torch.ones(t, 4) * t, "table": table[:t], "scale": scale} for t in (6, 3)]
    return make_case(Owner(), steps, {"table": Buffer("T")})


def test_inputs_are_known_by_who_keeps_them(program_of, make_case, replays):
    program = program_of(_case(make_case))
    found = {n.name: fact(n).origin for n in program.module.graph.nodes if n.op == "placeholder" and has_fact(n)}
    assert {"x": "staged", "table": "buffer", "scale": "static", "cache": "state", "weight": "state"}.items() <= (
        found.items()
    )
    replays(_case(make_case))


def test_views_share_the_storage_of_what_they_look_at(program_of, make_case):
    nodes = list(program_of(_case(make_case)).module.graph.nodes)
    cache = next(n for n in nodes if n.name == "cache")
    views = [n for n in nodes if n.op == "call_function" and has_fact(n) and fact(n).storage == fact(cache).storage]
    assert {str(v.target) for v in views} >= {"aten.select.int", "aten.view.default"}
    assert {fact(v).origin for v in views} == {"state"}
    made = next(n for n in nodes if "aten.mul" in str(n.target))
    assert fact(made).origin == "pool" and fact(made).storage != fact(cache).storage
