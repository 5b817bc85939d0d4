"""`capwise.compile`: one program serves every batch; after the first call the program is called directly."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch import nn

import capwise
from capwise import Buffer, InputError, Live

SETTINGS = {"capture": "tape", "lower": "eager", "capture_sizes": (4, 8), "capacity": {"T": 32, "R": 4}}
FACTOR = 2.0


def _compile(model, inputs=None, **more):
    return capwise.compile(model, inputs={"x": ("T", 4), **(inputs or {})}, **{**SETTINGS, **more})


@pytest.fixture
def traced(monkeypatch):
    """Calls that went through Dynamo."""
    calls = []
    kind = type(capwise.compile(lambda x: x))
    through = kind._through_dynamo

    def spy(self, batch, extents):
        calls.append(dict(extents))
        return through(self, batch, extents)

    monkeypatch.setattr(kind, "_through_dynamo", spy)
    return calls


def _equal(got, want):
    return torch.allclose(got, want, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- one program
@pytest.mark.parametrize("first", [6, 1, 4, 3])
def test_one_program_serves_every_extent_whichever_comes_first(first, rows, traced):
    model = _compile(lambda x, s: (x - x.sum(0), s * 2), {"s": ("R",)})
    for tokens, requests in ((first, 3), (5, 4), (3, 3), (1, 1), (8, 2), (20, 4), (2, 1)):
        x, s = rows(tokens), torch.ones(requests) * tokens
        y, z = model(x=x, s=s)
        assert _equal(y, x - x.sum(0)) and torch.equal(z, s * 2)
    assert len(model.programs) == 1 and len(traced) == 1 and model.misses == 0


def test_positional_and_keyword_calls_are_the_same(rows, traced):
    model = _compile(lambda x, s: x * s.sum(), {"s": ("R",)})
    for call in (lambda: model(rows(3), torch.ones(2)), lambda: model(rows(3), s=torch.ones(2))):
        assert torch.equal(call(), rows(3) * 2)
    assert len(traced) == 1


def test_an_optional_that_comes_and_goes_is_a_program_each(rows):
    model = _compile(lambda x, bias=None: x if bias is None else x + bias, {"bias": ("T", 4)})
    for bias in (None, rows(3), None, rows(3)):
        want = rows(3) if bias is None else rows(3) + bias
        assert torch.equal(model(x=rows(3), bias=bias), want)


def test_a_branch_on_a_size_is_a_program_a_side(rows):
    def model(x):
        return x * 2 if x.shape[0] > 3 else x + 1

    compiled = _compile(model)
    for tokens in (6, 2, 5, 3, 1, 8, 2):
        assert torch.equal(compiled(x=rows(tokens)), model(rows(tokens)))
    (found,) = [d for d in compiled.report if d.code == "CW102"]
    # One a side, and one for a single token: backed sizes of 1 are traced as such.
    assert found.repair == "key" and found.file == __file__ and len(compiled.programs) == 3


def test_a_model_that_cannot_be_one_graph_says_where(rows):
    def model(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(RuntimeError, match=rf"CW002: {__file__}:{model.__code__.co_firstlineno + 1}"):
        _compile(model)(x=rows(3))
    report = capwise.check(model, {"x": rows(3)}, inputs={"x": ("T", 4)})
    assert [(d.code, d.line) for d in report] == [("CW002", model.__code__.co_firstlineno + 1)]


# ---------------------------------------------------------------------------------------------------------- outputs
def test_the_structure_of_the_result_is_kept(rows, traced):
    model = _compile(lambda x: {"y": x + 1, "none": None, "k": 3, "t": (x + 2, [x * 0.5])})
    for tokens in (6, 3, 3, 1):
        got, x = model(x=rows(tokens)), rows(tokens)
        assert list(got) == ["y", "none", "k", "t"] and got["none"] is None and got["k"] == 3
        assert isinstance(got["t"], tuple) and isinstance(got["t"][1], list)
        assert torch.equal(got["y"], x + 1) and torch.equal(got["t"][1][0], x * 0.5)
    assert len(traced) == 1


def test_an_output_that_is_an_input_stays_that(rows):
    model = _compile(lambda x: (x, x + 1))
    for tokens in (6, 3, 5):
        x = rows(tokens)
        same, more = model(x=x)
        assert same is x and torch.equal(more, x + 1)


def test_a_model_that_only_returns_its_input_gives_it_back(rows):
    model = _compile(lambda x: x)
    for tokens in (6, 3):
        x = rows(tokens)
        assert model(x=x) is x


def test_a_view_of_an_input_is_one(rows):
    model = _compile(lambda x: (x.t(), x + 1))
    for tokens in (6, 3, 5):
        x = rows(tokens)
        view, _ = model(x=x)
        assert torch.equal(view, x.t()) and view.data_ptr() == x.data_ptr()


class HasState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return x + 1, self.total


def test_an_output_that_is_a_buffer_stays_that(rows):
    model = _compile(HasState())
    for tokens in (6, 3, 5):
        assert model(x=rows(tokens))[1] is model.model.total
    assert torch.equal(model.model.total, sum(rows(t).sum(0) for t in (6, 3, 5)))


def test_a_number_of_the_batch_is_returned_as_it_is_now(rows):
    model = _compile(lambda x: (x + 1, x.shape[0], x.shape[0] * 2 + 1))
    assert [model(x=rows(t))[1:] for t in (6, 3, 5)] == [(6, 13), (3, 7), (5, 11)]


def test_outputs_are_views_until_the_next_step_or_copies(rows):
    for outputs, kept in (("view", False), ("copy", True)):
        model = _compile(lambda x: x + 1, outputs=outputs)
        model(x=rows(8, -1))
        first = model(x=rows(8))
        model(x=rows(8, -1))
        assert torch.equal(first, rows(8) + 1) is kept
        torch._dynamo.reset()


def test_an_output_has_the_strides_that_eager_gives_it(rows):
    def model(x):
        return x.t() @ x, x @ x.t(), (x @ x.t()).t(), (x * 2).t()

    compiled = _compile(model)
    for tokens in (6, 3, 5):
        want, got = model(rows(tokens)), compiled(x=rows(tokens))
        assert [g.shape for g in got] == [w.shape for w in want]
        assert [g.stride() for g in got[:2]] == [w.stride() for w in want[:2]]
        assert all(_equal(g, w) for g, w in zip(got, want))


# ---------------------------------------------------------------------------------------------------------- effects
class Remembers(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return x + 1


def test_an_attribute_that_the_model_sets_is_right_and_owned(rows):
    """What Dynamo stores in an attribute must not change when the next step runs."""
    model, kept = _compile(Remembers()), []
    for tokens in (6, 3, 5, 6):
        assert torch.equal(model(x=rows(tokens)), rows(tokens) + 1)
        kept.append((model.model.last, rows(tokens) * 2))
        assert torch.equal(*kept[-1])
    assert all(torch.equal(got, want) for got, want in kept)


class Carries(nn.Module):
    """State that is rebound, not written: another tensor at every step."""

    def __init__(self):
        super().__init__()
        self.h = torch.zeros(4)

    def forward(self, x):
        self.h = self.h + x.sum(0)
        return x + self.h


def test_state_that_is_rebound_at_every_step_is_carried(rows):
    model, eager = _compile(Carries()), Carries()
    for tokens in (6, 3, 5, 6, 3):
        assert _equal(model(x=rows(tokens)), eager(rows(tokens)))
    assert _equal(model.model.h, eager.h)


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))
        self.scale, self.config = 2.0, {"add": 1}

    def forward(self, x):
        return x * self.weight * self.scale + self.shift + self.config["add"]


CHANGES = {
    "attribute": lambda m: setattr(m, "scale", 5.0),
    "attribute's item": lambda m: m.config.update(add=7),
    "parameter in place": lambda m: m.weight.data.fill_(3.0),
    "parameter rebound": lambda m: setattr(m, "weight", nn.Parameter(torch.full((4,), 3.0))),
    "buffer rebound": lambda m: setattr(m, "shift", torch.full((4,), 9.0)),
    "loaded": lambda m: m.load_state_dict({"weight": torch.full((4,), 4.0), "shift": torch.ones(4)}),
    "mode": lambda m: m.eval(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_module_is_honoured(change, rows):
    model = _compile(Scales())
    with torch.no_grad():
        for _ in range(2):
            model(x=rows(6))
        change(model.model)
        for tokens in (3, 6, 5):
            assert torch.equal(model(x=rows(tokens)), model.model(rows(tokens)))


def test_a_change_back_is_honoured_too(rows):
    model = _compile(Scales())
    with torch.no_grad():
        for scale in (2.0, 5.0, 2.0, 5.0):
            model.model.scale = scale
            assert torch.equal(model(x=rows(3)), model.model(rows(3)))


def test_a_change_of_a_global_is_honoured(rows, monkeypatch):
    module = sys.modules[__name__]
    model = _compile(lambda x: x * FACTOR)
    model(x=rows(6)), model(x=rows(6))
    monkeypatch.setattr(module, "FACTOR", 5.0)
    assert torch.equal(model(x=rows(3)), rows(3) * 5)


# ---------------------------------------------------------------------------------------------------------- guards
def test_a_moved_static_input_runs_eagerly_is_counted_and_said_once(rows):
    model = _compile(lambda x, w: x * w)
    one, two = torch.ones(4), torch.full((4,), 2.0)
    model(x=rows(6), w=one), model(x=rows(3), w=one)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for tokens in (6, 3, 5):
            assert torch.equal(model(x=rows(tokens), w=two), rows(tokens) * 2)
    assert model.misses == 3
    (warning,) = [w for w in said if w.category is RuntimeWarning]
    assert "'w'" in str(warning.message) and "ran eagerly" in str(warning.message) and "CW" in str(warning.message)
    assert torch.equal(model(x=rows(3), w=one), rows(3)) and model.misses == 3


def test_a_new_value_at_the_old_address_is_read(rows):
    model, w = _compile(lambda x, w: x * w), torch.ones(4)
    model(x=rows(6), w=w)
    w.fill_(3.0)
    assert torch.equal(model(x=rows(3), w=w), rows(3) * 3) and model.misses == 0


def test_a_static_input_of_other_strides_is_another_program_or_eager(rows):
    model, wide = _compile(lambda x, w: x * w), torch.arange(8.0)
    for w in (wide[:4], wide[::2], wide[:4]):
        assert torch.equal(model(x=rows(3), w=w), rows(3) * w)


def test_a_buffer_that_moved_runs_eagerly(rows):
    model = _compile(lambda x, n: x + n.sum(), {"n": Buffer("T")})
    one, two = torch.ones(16), torch.full((16,), 2.0)
    for whole, misses in ((one, 0), (one, 0), (two, 1), (one, 1)):
        x = rows(3)
        assert torch.equal(model(x=x, n=whole[:3]), x + 3 * whole[0]) and model.misses == misses


def test_a_python_argument_is_part_of_the_signature(rows):
    model = _compile(lambda x, mode: x * 2 if mode == "double" else x + 1)
    for mode in ("double", "plain", "double"):
        assert torch.equal(model(x=rows(3), mode=mode), rows(3) * 2 if mode == "double" else rows(3) + 1)


# ---------------------------------------------------------------------------------------------------------- named ints
def test_a_named_int_serves_every_value(rows):
    model = _compile(lambda x, q: x * q, {"q": "Q"}, capacity={"T": 32, "Q": 100})
    for q in (5, 1, 7, 0, 100):
        assert torch.equal(model(x=rows(3), q=q), rows(3) * q)
    assert len(model.programs) == 1
    with pytest.raises(InputError, match=r"Q: expected .*100; got 101"):
        model(x=rows(3), q=101)


@pytest.mark.parametrize("wrap", [int, torch.tensor], ids=["int", "tensor"])
def test_the_live_extent_may_be_an_argument(wrap, rows):
    def model(x, n):
        return x.masked_fill((torch.arange(x.shape[0]) >= n)[:, None], 0.0).sum(0)

    compiled = _compile(model, {"n": Live("T")})
    for tokens in (2, 6, 3, 8):
        assert _equal(compiled(x=rows(tokens), n=wrap(tokens)), rows(tokens).sum(0))


# ---------------------------------------------------------------------------------------------------------- extents
def test_more_tokens_than_the_largest_bucket_run_uncaptured(rows):
    model = _compile(HasState())
    for tokens in (3, 20, 5, 32):
        x = rows(tokens)
        assert torch.equal(model(x=x)[0], x + 1)
    assert _equal(model.model.total, sum(rows(t).sum(0) for t in (3, 20, 5, 32)))
    assert model.misses == 0 and len(model.programs) == 1


@pytest.mark.parametrize("capture", ["off", "tape"])
def test_an_input_that_the_model_writes_is_written_live(capture, rows):
    def model(x):
        x.add_(1)
        return x * 2

    compiled = _compile(model, capture=capture)
    for tokens in (6, 3, 20, 5):
        big = torch.full((tokens, 6), 9.0)
        mine = big[:, :4].copy_(rows(tokens))
        assert torch.equal(compiled(x=mine), (rows(tokens) + 1) * 2)
        assert torch.equal(big[:, :4], rows(tokens) + 1) and bool((big[:, 4:] == 9).all())


def test_a_strided_input_is_taken_as_it_is(rows):
    model = _compile(lambda x, s: x.sum() + s, {"s": ("R",)})
    for stride in (1, 2, 4, 1):
        column = (
            torch.arange(12.0).view(3, 4)[:, ::4][:, 0] if stride == 4 else torch.arange(12.0)[: 3 * stride : stride]
        )
        assert torch.equal(model(x=rows(2), s=column), rows(2).sum() + column)


def test_capture_off_runs_at_live_extents(rows):
    model = _compile(lambda x: (x - x.mean(0), x.flip(0)), capture="off")
    for tokens in (6, 3, 40 - 8, 1):
        y, z = model(x=rows(tokens))
        assert _equal(y, rows(tokens) - rows(tokens).mean(0)) and torch.equal(z, rows(tokens).flip(0))


# ---------------------------------------------------------------------------------------------------------- keys
def test_uniform_batches_are_recorded_exactly_and_others_by_tokens(rows):
    model = _compile(lambda x, s: (x - x.sum(0), s - s.sum()), {"s": ("R",)}, key=[("T", "R"), ("T",)])
    for tokens, requests in ((6, 3), (5, 2), (4, 4), (3, 1), (6, 4), (8, 2), (6, 3)):
        x, s = rows(tokens), torch.arange(1.0, requests + 1)
        y, z = model(x=x, s=s)
        assert _equal(y, x - x.sum(0)) and torch.equal(z, s - s.sum())
    exact, by_tokens = model.programs
    assert exact.outside == frozenset() and by_tokens.outside == {"R"}


@pytest.mark.parametrize("key", [("T", "Q"), ("Q", "T"), [("T", "Q"), ("T",)]], ids=str)
def test_a_key_symbol_that_no_input_carries_is_dropped_with_a_note(key, rows):
    model = _compile(lambda x: x - x.sum(0), key=key)
    for tokens in (6, 3):
        assert _equal(model(x=rows(tokens)), rows(tokens) - rows(tokens).sum(0))
    assert any("key symbol Q" in text and "dropped" in text for text in model.report.assumptions)
    assert len(model.programs) == 1


def test_with_no_key_left_there_is_one_graph_at_capacity(rows):
    model = _compile(lambda x: x - x.sum(0), key=("Q",))
    for tokens in (6, 3, 20, 1):
        assert _equal(model(x=rows(tokens)), rows(tokens) - rows(tokens).sum(0))
    (program,) = model.programs
    assert program.outside == {"T"}


def test_inferred_names_are_said(rows):
    model = capwise.compile(lambda x, s: (x + 1, s * 2), **SETTINGS)
    for tokens, requests in ((6, 3), (5, 2), (8, 4)):
        y, z = model(x=rows(tokens), s=torch.ones(requests))
        assert y.shape == (tokens, 4) and z.shape == (requests,)
    assert sum("were inferred" in text for text in model.report.assumptions) == 2 and len(model.programs) == 1


# ---------------------------------------------------------------------------------------------------------- check
def test_check_runs_nothing(rows):
    model = HasState()
    report = capwise.check(model, {"x": rows(3)}, inputs={"x": ("T", 4)})
    assert not model.total.any() and report.pieces == 1 and report.case == "HasState"
    assert report.to_dict()["version"] == 1


def test_an_output_that_no_view_shows_is_made_at_every_step(rows):
    model = _compile(lambda x: torch.cat([x, x * 2]))
    for step, tokens in enumerate((6, 3, 6, 3)):
        x = rows(tokens) + step
        assert torch.equal(model(x=x), torch.cat([x, x * 2]))


def test_an_output_is_a_tensor_of_its_own(rows):
    model = _compile(lambda x: x + 1)
    for tokens in (3, 3, 4, 4):
        x = rows(tokens)
        assert torch.equal(model(x=x).t_(), (x + 1).t())
