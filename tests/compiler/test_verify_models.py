"""Small hand-written models, one idea each: what is found in them, whether that costs a seam, and that replay is right.

`codes` are all codes of the report under "auto"; a model whose fault is real is wrong under `unsafe`, else the row
would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import capwise
from capwise import Buffer, Case, Input, Live
from capwise.report import ADVICE


@torch.library.custom_op("verify_models::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    """Nobody says that it mixes rows."""
    return x - x.mean(0)


@opaque.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("verify_models::opaque_", mutates_args=("state",))
def opaque_(state: torch.Tensor, x: torch.Tensor) -> None:
    state.add_(x.sum(0))


# ---------------------------------------------------------------------------------------------------------- batches
def rows(tokens: int, step: int = 0) -> torch.Tensor:
    return ((torch.arange(tokens * 4).view(tokens, 4) * 7 + step * 3) % 11 - 5) / 4


def tokens_of(*counts: int, **more: Callable[[int, int], Any]) -> list[dict[str, Any]]:
    """A batch a count: x [T, 4], and more arguments by functions of (T, step)."""
    return [{"x": rows(t, i), **{n: f(t, i) for n, f in more.items()}} for i, t in enumerate(counts)]


def requests_of(*batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """A batch by the lengths of its requests: x [T, 4], starts [R+1], slots [R] (distinct, not 0), scale [R]."""
    made = []
    for i, lengths in enumerate(batches):
        starts = torch.tensor([0, *lengths]).cumsum(0)
        slots = torch.arange(len(lengths)) * 3 % 7 + 1
        made.append({"x": rows(sum(lengths), i), "starts": starts, "slots": slots, "scale": slots / 4})
    return made


SHRINKING = tokens_of(7, 5, 3, 8, 1)
REQUESTS = requests_of((2, 3, 2), (1, 4), (4,), (1, 1, 1), (0, 3, 2), (1,))


# ---------------------------------------------------------------------------------------------------------- models
class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(64.0).view(16, 4) / 8)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


class RowLocal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 4)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return F.layer_norm(self.down(F.silu(gate) * value), (4,)) + x


def prefix_sum(x):
    return x.cumsum(0)


def causal_convolution(x):
    taps = torch.tensor([0.25, 0.5, 1.0]).expand(4, 1, 3)
    return F.conv1d(F.pad(x.t()[None], (2, 0)), taps, groups=4)[0].t()


def shift(x):
    return torch.cat([torch.zeros(1, 4), x[:-1]]) + x


def total(x):
    return x - x.sum(0)


def mean(x):
    return x - x.mean(0)


def largest(x):
    return x - x.exp().amax(0)


def softmax_over_tokens(x):
    return torch.softmax(x, 0)


def attention(x):
    """Causal: a live row never attends to the tail, but zero times NaN is NaN."""
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q.exp(), q.exp(), is_causal=True)[0, 0]


def full_attention(x):
    return torch.softmax(x @ x.t(), -1) @ x


def last_row(x):
    return x + x[-1]


def reversed_rows(x):
    return x.flip(0) * 2


def times_count(x):
    return x * x.shape[0]


def last_of_request(x, starts):
    return x[starts[1:] - 1]


def request_of_token(x, starts, scale):
    token = torch.arange(x.shape[0])
    request = torch.searchsorted(starts, token, right=True) - 1
    return x * scale[request][:, None]


def sum_of_request(x, starts):
    request = torch.searchsorted(starts, torch.arange(x.shape[0]), right=True) - 1
    return torch.zeros(starts.shape[0] - 1, 4).index_add_(0, request, x.exp())


class WritesSlots(State):
    def forward(self, x, starts, slots):
        self.state[slots] = self.state[slots] * 0.5 + x[starts[1:] - 1]
        return x + 1


class WritesSlotsOnly(State):
    def forward(self, slots, scale):
        self.state[slots] += scale[:, None]
        return scale + 1


class WritesPrefix(State):
    def forward(self, x):
        self.state[: x.shape[0]] = x * 2
        return x + 1


class Counts(State):
    def forward(self, x):
        self.count += x.shape[0]
        return x * self.count


def calls_opaque(x):
    return torch.ops.verify_models.opaque(x + 1) * 2


class OpaqueState(State):
    def forward(self, x):
        torch.ops.verify_models.opaque_(self.state, x)
        return self.state[0] + x


def boolean_mask(x):
    return x[x[:, 0] > 0].sum(0)


def item(x):
    return x * x.amax().item()


def longest(x, max_query_len):
    return x * max_query_len


def masked_by_user(x, live):
    """The user's own mask, from the live extent on the device, is enough."""
    return torch.where((torch.arange(x.shape[0]) < live)[:, None], x, 0.0).sum(0) + x


def optional(x, bias=None):
    return x.sum(0) if bias is None else (x + bias).sum(0)


def two_outputs(x):
    return x, x.sum(0)


def branch(x, starts):
    """Decode when every request has one token."""
    return x * 2 if x.shape[0] == starts.shape[0] - 1 else x - x.sum(0)


def head_major(x):
    """[2T] token-major meets [2T] head-major."""
    return (x.view(-1, 2) + x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2)).view(-1, 4)


def writes_all_but_the_last(x):
    """A view that ends before its memory does: its tail is a live row of that memory."""
    kept = x.clone()
    kept[:-1] = 0.5
    return kept


def writes_through_the_last(x):
    """A filled copy of the row is not the row."""
    kept = x.clone()
    kept[-1] += 1
    return kept


def seam_then_write(x):
    """What a seam made is written in a piece, and read by a seam again."""
    made = x.flip(0)
    made.mul_(0.5)
    return made.flip(0) - made


T = {"x": ("T", 4)}
R = {**T, "starts": ("R+1",), "slots": ("R",), "scale": ("R",)}
NULL = {**R, "slots": Input("R", null=0)}


@dataclass(frozen=True)
class Row:
    """model: a function, or a module class. seams: under auto. wrong: without repairs."""

    model: Any
    codes: set[str]
    seams: bool = False
    wrong: bool = True
    batches: list[dict[str, Any]] = field(default_factory=lambda: SHRINKING)
    inputs: Mapping[str, Any] = field(default_factory=lambda: T)

    def case(self) -> Case:
        return Case(
            self.model() if isinstance(self.model, type) else self.model,
            [{k: v for k, v in b.items() if k in self._names()} for b in self.batches],
            inputs={k: v for k, v in self.inputs.items() if k in self._names()},
            capacity={"T": 16, "R": 4, "Q": 9},
            options={"capture_sizes": [8, 16]},
            name="model",
        )

    def _names(self) -> tuple[str, ...]:
        call = self.model.forward if isinstance(self.model, type) else self.model
        return call.__code__.co_varnames[: call.__code__.co_argcount]


def by_request(model: Any, codes: set[str], **more: Any) -> Row:
    return Row(model, codes, **{"batches": REQUESTS, "inputs": R, **more})


ROWS = {
    "row-local": Row(RowLocal, set(), wrong=False),
    "prefix sum": Row(prefix_sum, set(), wrong=False),
    "causal convolution": Row(causal_convolution, set(), wrong=False),
    "shift": Row(shift, set(), wrong=False),
    "total": Row(total, {"CW202"}),
    "mean": Row(mean, {"CW202", "CW301"}, seams=True),
    "largest": Row(largest, {"CW202"}),
    "softmax over tokens": Row(softmax_over_tokens, {"CW202"}),
    "causal attention": Row(attention, {"CW202"}, wrong=False),
    "attention": Row(full_attention, {"CW202"}),
    "last row": Row(last_row, {"CW201"}),
    "reversed": Row(reversed_rows, {"CW202", "CW301"}, seams=True),
    "times count": Row(times_count, {"CW102"}),
    "last of a request": by_request(last_of_request, {"CW101", "CW206"}),
    "request of a token": by_request(request_of_token, {"CW101", "CW201", "CW206"}),
    "sum of a request": by_request(sum_of_request, {"CW101", "CW201", "CW202", "CW206"}),
    "slots": by_request(WritesSlots, {"CW101", "CW204", "CW206"}),
    "slots, null row": by_request(WritesSlotsOnly, {"CW101", "CW204", "CW206"}, inputs=NULL),
    "prefix of state": Row(WritesPrefix, {"CW204"}),
    "count": Row(Counts, {"CW102"}),
    "opaque": Row(calls_opaque, {"CW001", "CW301"}, seams=True),
    "opaque state": Row(OpaqueState, {"CW001"}, seams=True),
    "boolean mask": Row(boolean_mask, {"CW002"}, seams=True),
    "item": Row(item, {"CW002", "CW202"}, seams=True),
    "optional": Row(optional, {"CW202"}, batches=[*tokens_of(7, 5), *tokens_of(6, 3, bias=rows), *tokens_of(2)]),
    "two outputs": Row(two_outputs, {"CW202"}),
    "head-major": Row(head_major, {"CW202"}, seams=True),
    "all but the last": Row(writes_all_but_the_last, {"CW202"}),
    "through the last": Row(writes_through_the_last, {"CW202"}, seams=True),
    "seam, write, seam": Row(seam_then_write, {"CW202", "CW301"}, seams=True),
    "branch": by_request(branch, {"CW102", "CW202"}),
    "named int": Row(
        longest,
        {"CW101", "CW102"},
        batches=tokens_of(7, 5, 3, max_query_len=lambda t, i: 7 - 2 * i),
        inputs={**T, "max_query_len": "Q"},
    ),
    "live extent": Row(
        masked_by_user,
        set(),
        wrong=False,
        batches=tokens_of(7, 5, 3, live=lambda t, i: torch.tensor(t)),
        inputs={**T, "live": Live("T")},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_found_and_that_it_is_repaired(name):
    row = ROWS[name]
    result = capwise.verify(row.case(), repair="auto")
    assert result.ok, str(result)
    assert result.report.codes() - set(ADVICE) == row.codes, "\n".join(map(str, result.report))
    assert bool(result.report.seams) is row.seams, result.report.seams
    assert result.steps == len(row.batches) and result.misses == 0


@pytest.mark.parametrize("name", ROWS)
def test_seams_alone_are_right_too(name):
    row = ROWS[name]
    result = capwise.verify(row.case(), repair="split")
    assert result.ok, str(result)
    if row.wrong and name != "branch":
        assert result.report.seams
    assert "CW901" not in result.report.codes()


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.wrong])
def test_the_fault_is_real(name):
    assert not capwise.verify(ROWS[name].case(), unsafe=True).ok


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if not row.wrong])
def test_where_nothing_is_wrong_nothing_is_reported_wrong(name):
    result = capwise.verify(ROWS[name].case(), unsafe=True)
    assert result.ok, str(result)


# ---------------------------------------------------------------------------------------------------------- inputs
def test_a_null_row_is_scratch_and_no_more():
    """What is written to row 0 is nobody's; a real slot is compared."""
    case = ROWS["slots, null row"].case()
    model = capwise.compile(case.model, inputs=case.inputs, capacity=case.capacity, capture="tape", lower="eager")
    before = case.model.state.clone()
    for batch in case.batches:
        model(**batch)
    touched = {int(s) for b in case.batches for s in b["slots"]}
    changed = set((case.model.state != before).any(1).nonzero().flatten().tolist())
    assert changed - {0} == touched
    (found,) = [d for d in model.report if d.code == "CW204"]
    assert found.repair == "null slot fill"


def test_an_engines_buffer_is_filled_in_place():
    """The whole storage behind the view is handed over: its tail is filled there."""
    whole = torch.zeros(5, dtype=torch.int64)
    batches = [{**b, "starts": whole[: len(b["starts"])].copy_(b["starts"])} for b in REQUESTS[:1]]
    inputs = {**R, "starts": Buffer("R+1")}
    case = Row(request_of_token, set(), batches=batches, inputs=inputs).case()
    model = capwise.compile(
        case.model, inputs=case.inputs, capacity=case.capacity, capture="tape", capture_sizes=[8, 16], lower="eager"
    )
    for batch in REQUESTS:
        whole.fill_(3)
        view = whole[: len(batch["starts"])].copy_(batch["starts"])
        given = {"x": batch["x"], "starts": view, "scale": batch["scale"]}
        assert torch.equal(model(**given), case.model(**given))
        assert whole[len(batch["starts"]) :].tolist() != [3] * (5 - len(batch["starts"])) or len(view) == 5
    assert model.misses == 0


def test_strided_inputs_are_served_like_dense_ones():
    """A column of a table, at a stride that changes from step to step."""

    def wide(tokens, step):
        return rows(tokens, step).repeat_interleave(step + 1, 1)[:, :: step + 1]

    batches = [{"x": wide(t, i)} for i, t in enumerate((7, 5, 3))]
    assert not batches[1]["x"].is_contiguous()
    result = capwise.verify(Row(total, set(), batches=batches).case())
    assert result.ok and result.misses == 0


def test_an_input_that_is_returned_is_the_callers_own():
    case = ROWS["two outputs"].case()
    model = capwise.compile(case.model, inputs=case.inputs, capacity=case.capacity, capture="tape", lower="eager")
    for batch in case.batches:
        same, summed = model(**batch)
        assert same is batch["x"] and torch.allclose(summed, batch["x"].sum(0))


def test_above_the_largest_bucket_the_same_program_runs_uncaptured():
    for name in ("total", "reversed", "prefix of state", "seam, write, seam", "through the last"):
        row = ROWS[name]
        case = Row(row.model, row.codes, batches=tokens_of(7, 14, 5, 15)).case()
        result = capwise.verify(case, capture_sizes=[4, 8])
        assert result.ok, f"{name}: {result}"
        torch._dynamo.reset()
