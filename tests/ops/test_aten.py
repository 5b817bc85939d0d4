"""The ATen table says what padded rows may hold; here each row is run: neutral values change nothing, others do."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from capwise.contracts import find
from capwise.models.footguns import FOOTGUNS
from capwise.ops import aten

A = torch.ops.aten
LIVE, PADDED = 4, 6
GARBAGE = (float("nan"), 1e9, -7.0)


def _x(rows=LIVE):
    """Positive, no two alike, in no order; later rows are longer tails of the same values."""
    return (torch.tensor([5.0, 2.0, 9.0, 3.0, 8.0, 4.0])[:rows, None] + torch.tensor([0.0, 0.25, 0.5])).contiguous()


def _padded(value, x=None):
    x = _x() if x is None else x
    tail = torch.full((PADDED - len(x), *x.shape[1:]), value, dtype=torch.float64).to(x.dtype)
    return torch.cat([x, tail])


def _parts(result):
    return [p for p in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(p, torch.Tensor)]


def _same(got, want, dim=None):
    """Equal, live rows of `got` against all of `want` where a dimension is given."""
    for one, other in zip(_parts(got), _parts(want), strict=True):
        one = one if dim is None else one.narrow(dim, 0, other.shape[dim])
        if one.shape != other.shape or not torch.allclose(one.double(), other.double(), equal_nan=True):
            return False
    return True


# ---------------------------------------------------------------------------------------------------------- the table
@pytest.mark.parametrize("name", aten.TABLE)
def test_every_row_names_a_real_op(name):
    packet = getattr(A, name, None)
    assert isinstance(packet, torch._ops.OpOverloadPacket) and packet.overloads()


def test_forms_of_an_op_share_a_row():
    for one in (A.add.Tensor, A.add_.Tensor, A.add.out, A.sigmoid.default, A.sigmoid_.default):
        assert aten.row(one).family == "pointwise"
    assert aten.row(A.index_put_.default) is aten.row(A.index_put.default) is aten.TABLE["index_put"]
    assert aten.row(A.cumsum_.default) is aten.row(A.cumsum.out) is aten.TABLE["cumsum"]
    assert aten.base_name(A.__and__.Tensor) == "__and__" and aten.base_name(A.add_.Tensor) == "add"


def test_unknown_ops_have_none():
    assert aten.row(A.rrelu_with_noise.default) is None and aten.row(A.ctc_loss.IntList) is None
    assert aten.row(torch.ops.footgun.opaque.default) is None


def test_tags_speak_where_the_table_does_not():
    for op in (A.sin.default, A.bitwise_xor.Tensor, A.eq.Scalar, A.sub_.Tensor):
        assert "add" not in aten.TABLE and aten.row(op).family == "pointwise"


def test_syncs_and_random_ops_are_known_by_their_tags():
    assert aten.syncs(A._local_scalar_dense.default) and aten.syncs(A.equal.default) and not aten.syncs(A.add.Tensor)
    assert (
        aten.is_random(A.rand.default) and aten.is_random(A.bernoulli.default) and not aten.is_random(A.zeros.default)
    )


def test_arguments_by_name():
    op = A.sum.dim_IntList
    assert aten.argument(op, (1, [0]), {}, "dim") == [0] and aten.argument(op, (1, [0]), {}, "keepdim") is False
    assert aten.argument(op, (1, [0]), {"keepdim": True}, "keepdim") is True
    assert aten.argument(op, (1,), {}, "nothing", 7) == 7 and aten.has_argument(op, "dtype")
    assert aten.written(A.add_.Tensor) == ("self",) and aten.written(A.add.out) == ("out",) and not aten.written(op)


# ---------------------------------------------------------------------------------------------------------- rows alone
UNARY = "gelu silu mish hardswish softplus relu6 hardtanh leaky_relu elu celu selu clone zero contiguous conj_physical"
POINTWISE = {
    **{name: getattr(A, name) for name in f"{UNARY} _to_copy lift_fresh lift_fresh_copy".split()},
    "logit": lambda x: A.logit(x / 16),
    "copy": lambda x: A.copy(x, x * 2),
    "fill": lambda x: A.fill(x, 2.0),
    "masked_fill": lambda x: A.masked_fill(x, x > 3, 0.0),
    "where": lambda x: A.where(x > 3, x, -x),
    "to": lambda x: A.to(x, torch.float64),
    "type_as": lambda x: A.type_as(x, x.double()),
    "floor_divide": lambda x: A.floor_divide(x, 2),
    "true_divide": lambda x: A.true_divide(x, 2),
    "clamp_max": lambda x: A.clamp_max(x, 4),
    "clamp_min": lambda x: A.clamp_min(x, 4),
    "__and__": lambda x: A.__and__(x.nan_to_num().int(), 3),
    "__or__": lambda x: A.__or__(x.nan_to_num().int(), 3),
    "__xor__": lambda x: A.__xor__(x.nan_to_num().int(), 3),
    "prelu": lambda x: A.prelu(-x, torch.tensor([0.5, 2.0, 3.0])),
    "_prelu_kernel": lambda x: A._prelu_kernel(-x, torch.tensor([[0.5, 2.0, 3.0]])),
    "addcmul": lambda x: A.addcmul(x, x, x),
    "addcdiv": lambda x: A.addcdiv(x, x, x + 1),
    "lerp": lambda x: A.lerp(x, x + 1, 0.25),
    "copysign": lambda x: A.copysign(x, -x),
}
# Output dimension that carries the rows; views of one row each.
VIEWS = {
    "view": (lambda x: A.view(x, [-1, 3, 1]), 0),
    "_unsafe_view": (lambda x: A._unsafe_view(x, [-1, 1, 3]), 0),
    "reshape": (lambda x: A.reshape(x, [-1, 3, 1]), 0),
    "_reshape_alias": (lambda x: A._reshape_alias(x, [len(x), 3, 1], [3, 1, 1]), 0),
    "flatten": (lambda x: A.flatten(x[..., None], 1), 0),
    "view_as": (lambda x: A.view_as(x, x), 0),
    "permute": (lambda x: A.permute(x, [1, 0]), 1),
    "transpose": (lambda x: A.transpose(x, 0, 1), 1),
    "t": (A.t, 1),
    "unsqueeze": (lambda x: A.unsqueeze(x, 0), 1),
    "squeeze": (lambda x: A.squeeze(x[:, None], 1), 0),
    "slice": (lambda x: A.slice(x, 1, 0, 2), 0),
    "select": (lambda x: A.select(x, 1, 1), 0),
    "expand": (lambda x: A.expand(x[None], [2, -1, -1]), 1),
    "split": (lambda x: A.split(x, 2, 1), 0),
    "split_with_sizes": (lambda x: A.split_with_sizes(x, [1, 2], 1), 0),
    "unbind": (lambda x: A.unbind(x, 1), 0),
    "alias": (A.alias, 0),
    "detach": (A.detach, 0),
    "as_strided": (lambda x: A.as_strided(x, [len(x), 2], [3, 2]), 0),
    "diagonal": (lambda x: A.diagonal(x[:, :, None].expand(-1, 3, 3), 0, 1, 2), 0),
}
JOINS = {
    "cat": (lambda x: A.cat([x, x * 2], 1), 0),
    "stack": (lambda x: A.stack([x, x * 2], 1), 0),
    "constant_pad_nd": (lambda x: A.constant_pad_nd(x, [0, 0, 2, 0], 1.0), 0),
    "repeat": (lambda x: A.repeat(x, [1, 2]), 0),
    "tril": (A.tril, 0),
    "triu": (A.triu, 0),
}
SCANS = {
    "cumsum": lambda x: A.cumsum(x, 0),
    "cumprod": lambda x: A.cumprod(x, 0),
    "cummax": lambda x: A.cummax(x, 0),
    "cummin": lambda x: A.cummin(x, 0),
    "logcumsumexp": lambda x: A.logcumsumexp(x, 0),
}
TAIL_STAYS = {
    **{f"pointwise {n}": (fn, 0) for n, fn in POINTWISE.items()},
    **{f"view {n}": case for n, case in VIEWS.items()},
    **{f"join {n}": case for n, case in JOINS.items()},
    **{f"scan {n}": (fn, 0) for n, fn in SCANS.items()},
}


@pytest.mark.parametrize("case", TAIL_STAYS)
def test_a_tail_of_anything_stays_in_the_tail(case):
    (fn, dim), family = TAIL_STAYS[case], case.split()[0]
    assert aten.TABLE[case.split()[1]].family == family
    for value in GARBAGE:
        assert _same(fn(_padded(value)), fn(_x()), dim)


@pytest.mark.parametrize("name", SCANS)
def test_a_suffix_scan_would_not_do(name):
    """The same ops from the other end are not scans: their live rows do see the tail."""

    def fn(x):
        return SCANS[name](x.flip(0))

    assert not all(_same(fn(_padded(value)), fn(_x()), 0) for value in GARBAGE)


# ---------------------------------------------------------------------------------------------------------- neutral
REDUCE = {
    "sum": lambda x: A.sum(x, [0]),
    "nansum": lambda x: A.nansum(x, [0]),
    "count_nonzero": lambda x: A.count_nonzero(x, [0]),
    "prod": lambda x: A.prod(x, 0),
    "amax": lambda x: A.amax(x, [0]),
    "max": lambda x: A.max(x, 0),
    "argmax": lambda x: A.argmax(x, 0),
    "amin": lambda x: A.amin(x, [0]),
    "min": lambda x: A.min(x, 0),
    "argmin": lambda x: A.argmin(x, 0),
    "any": lambda x: A.any(x > 9.8, 0),
    "all": lambda x: A.all(x != 0, 0),
    "logsumexp": lambda x: A.logsumexp(x, [0]),
    "norm": lambda x: A.norm(x, 2, [0]),
    "linalg_vector_norm": lambda x: A.linalg_vector_norm(x, 3, [0]),
}
NORMALISE = {
    "_softmax": lambda x: A._softmax(x, 0, False)[:LIVE],
    "softmax": lambda x: A.softmax(x, 0)[:LIVE],
    "_safe_softmax": lambda x: A._safe_softmax(x, 0)[:LIVE],
    "_log_softmax": lambda x: A._log_softmax(x, 0, False)[:LIVE],
    "log_softmax": lambda x: A.log_softmax(x, 0)[:LIVE],
}
NEUTRAL = {**REDUCE, **NORMALISE}
# Values that spoil; for `any` and `all` the neutral value is one of what they read, not of x.
WRONG = {"count_nonzero": 1.0, "all": 0.0, "amin": 0.0, "min": 0.0, "argmin": 0.0, "amax": 99.0, "max": 99.0}


def _neutral(name):
    value = aten.TABLE[name].neutral
    value = {"-max": -math.inf, "max": math.inf}.get(value, value) if isinstance(value, str) else value
    return {"any": 0.0, "all": 1.0}.get(name, value)


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_value_changes_nothing_and_another_does(name):
    fn = NEUTRAL[name]
    assert aten.TABLE[name].neutral is not None and _same(fn(_padded(_neutral(name))), fn(_x()))
    assert not _same(fn(_padded(WRONG.get(name, 99.0))), fn(_x()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_extremes_are_neutral_for_integers_too(dtype):
    from capwise.transfer.flow import extreme

    x = _x().to(dtype)
    for name in ("amax", "amin", "argmax", "argmin"):
        value = extreme(dtype, aten.TABLE[name].neutral)
        padded = torch.cat([x, torch.full((2, 3), value, dtype=dtype)])
        assert _same(REDUCE[name](padded), REDUCE[name](x))


def test_any_and_all_are_neutral_by_their_booleans():
    x = torch.tensor([True, False])
    for name, op in (("any", A.any), ("all", A.all)):
        for start in (x, ~x, x | True, x & False):
            neutral = torch.full((2,), aten.TABLE[name].neutral)
            assert op(torch.cat([start, neutral])) == op(start)


def _contracts(value, other):
    """Every contraction over a padded shared dimension, with these tails in its factors."""
    left = torch.cat([_x(), torch.full((2, 3), value)]).t().contiguous()
    right = torch.cat([_x() / 2, torch.full((2, 3), other)])
    bias = torch.ones(3, 3)
    return {
        "mm": A.mm(left, right),
        "addmm": A.addmm(bias, left, right),
        "bmm": A.bmm(left[None], right[None]),
        "baddbmm": A.baddbmm(bias[None], left[None], right[None]),
        "mv": A.mv(left, right[:, 0].contiguous()),
        "addmv": A.addmv(bias[0], left, right[:, 0].contiguous()),
        "dot": A.dot(left[0], right[:, 0].contiguous()),
        "linear": A.linear(left, right.t().contiguous()),
    }


def _live_contracts():
    left, right, bias = _x().t().contiguous(), _x() / 2, torch.ones(3, 3)
    column = right[:, 0].contiguous()
    return {
        "mm": A.mm(left, right), "addmm": A.addmm(bias, left, right), "bmm": A.bmm(left[None], right[None]),
        "baddbmm": A.baddbmm(bias[None], left[None], right[None]), "mv": A.mv(left, column),
        "addmv": A.addmv(bias[0], left, column), "dot": A.dot(left[0], column), "linear": A.linear(left, right.t()),
    }  # fmt: skip


# `_int_mm` is `mm` of integers, which have no NaN.
CONTRACTS = [n for n, row in aten.TABLE.items() if row.family == "contract" and n != "_int_mm"]


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_zero_factor_and_a_finite_one_add_nothing(name):
    want = _live_contracts()[name]
    for value, other, same in ((0.0, 3.0, True), (3.0, 0.0, True), (1.0, 1.0, False), (0.0, math.nan, False)):
        assert _same(_contracts(value, other)[name], want) is same


@pytest.mark.parametrize("name", CONTRACTS)
def test_free_letters_are_rows_of_the_result(name):
    """A tail along a dimension that is not shared stays in the result's tail."""
    how = aten.TABLE[name].how
    assert set(how.split("->")[1].replace("...", "")) <= set(how.split("->")[0])
    if name in ("mm", "addmm", "linear"):
        weight = torch.ones(3, 2)
        calls = {
            "mm": lambda x: A.mm(x, weight),
            "addmm": lambda x: A.addmm(torch.ones(2), x, weight),
            "linear": lambda x: A.linear(x, weight.t()),
        }
        assert _same(calls[name](_padded(math.nan)), calls[name](_x()), 0)


SORTS = {
    ("sort", False): lambda x: [p[:LIVE] for p in A.sort(x, 0)],
    ("sort", True): lambda x: [p[:LIVE] for p in A.sort(x, 0, True)],
    ("argsort", False): lambda x: A.argsort(x, 0)[:LIVE],
    ("argsort", True): lambda x: A.argsort(x, 0, True)[:LIVE],
    ("topk", True): lambda x: A.topk(x, 3, 0),
    ("topk", False): lambda x: A.topk(x, 3, 0, False),
}


@pytest.mark.parametrize("name, descending", SORTS)
def test_the_tail_is_last_in_the_order_asked_for(name, descending):
    assert aten.TABLE[name].neutral == "by direction"
    fn, last = SORTS[name, descending], -math.inf if descending else math.inf
    assert _same(fn(_padded(last)), fn(_x())) and not _same(fn(_padded(-last)), fn(_x()))


# ---------------------------------------------------------------------------------------------------------- no neutral
NO_NEUTRAL = {
    "mean": lambda x: A.mean(x, [0]),
    "var": lambda x: A.var(x, [0]),
    "std": lambda x: A.std(x, [0]),
    "var_mean": lambda x: A.var_mean(x, [0]),
    "std_mean": lambda x: A.std_mean(x, [0]),
    "median": lambda x: A.median(x, 0)[0],
    "nanmedian": lambda x: A.nanmedian(x, 0)[0],
    "mode": lambda x: A.mode(x, 0)[0],
    "dist": lambda x: A.dist(x, torch.ones_like(x) * 0.7, 2),
    "native_layer_norm": lambda x: A.native_layer_norm(x.t(), [len(x)], None, None, 1e-5)[0][:, :LIVE],
    "layer_norm": lambda x: A.layer_norm(x.t(), [len(x)])[:, :LIVE],
    "rms_norm": lambda x: A.rms_norm(x.t(), [len(x)])[:, :LIVE],
    "flip": lambda x: A.flip(x, [0])[:LIVE],
    "roll": lambda x: A.roll(x, [1], [0])[:LIVE],
    "rot90": lambda x: A.rot90(x, 1, [0, 1])[:, :LIVE] if len(x) == LIVE else A.rot90(x, 3, [0, 1])[:, :LIVE],
    "bincount": lambda x: A.bincount(x[:, 0].nan_to_num().clamp(0, 59).long(), minlength=60),
}


@pytest.mark.parametrize("name", NO_NEUTRAL)
def test_no_constant_leaves_a_mix_alone(name):
    row = aten.TABLE[name]
    assert row.neutral is None and row.family in ("reduce", "mix", "normalise")
    for value in (0.0, 1.0, -0.0, math.inf, -math.inf, 1e4, -1e4):
        assert not _same(NO_NEUTRAL[name](_padded(value)), NO_NEUTRAL[name](_x())), value


# ---------------------------------------------------------------------------------------------------------- by index
def test_gathered_rows_are_those_of_their_index():
    """Tails of the index gather tails; tails of the source are met by no live index."""
    index = torch.tensor([3, 0, 2])
    padded_index = torch.tensor([3, 0, 2, 1, 1])
    calls = {
        "index": lambda x, i: A.index(x, [i]),
        "_unsafe_index": lambda x, i: A._unsafe_index(x, [i]),
        "index_select": lambda x, i: A.index_select(x, 0, i),
        "embedding": A.embedding,
        "gather": lambda x, i: A.gather(x, 0, i[:, None].expand(-1, 3)),
        "take": lambda x, i: A.take(x, i),
    }
    assert {n for n, row in aten.TABLE.items() if row.family == "gather"} == set(calls)
    for fn in calls.values():
        assert _same(fn(_padded(math.nan), padded_index), fn(_x(), index), 0)


SCATTERS = {
    "index_put": lambda t, i, s: A.index_put(t, [i], s),
    "_unsafe_index_put": lambda t, i, s: A._unsafe_index_put(t, [i], s),
    "index_add": lambda t, i, s: A.index_add(t, 0, i, s),
    "index_copy": lambda t, i, s: A.index_copy(t, 0, i, s),
    "index_fill": lambda t, i, s: A.index_fill(t, 0, i, 9.0),
    "scatter": lambda t, i, s: A.scatter(t, 0, i[:, None].expand(-1, 3), s),
    "scatter_add": lambda t, i, s: A.scatter_add(t, 0, i[:, None].expand(-1, 3), s),
    "scatter_reduce": lambda t, i, s: A.scatter_reduce(t, 0, i[:, None].expand(-1, 3), s, "prod"),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_padded_rows_write_nothing_if_they_are_neutral_or_repeat_the_last(name):
    fn, target, index = SCATTERS[name], torch.ones(8, 3), torch.tensor([6, 1, 3, 4])
    want = fn(target, index, _x())
    if aten.TABLE[name].neutral is not None:
        assert _same(fn(target, torch.cat([index, torch.tensor([0, 7])]), _padded(0.0)), want)
    elif name != "scatter_reduce":
        again = torch.cat([_x(), _x()[-1:], _x()[-1:]])
        assert _same(fn(target, torch.cat([index, index[-1:], index[-1:]]), again), want)
    assert not _same(fn(target, torch.cat([index, torch.tensor([0, 7])]), _padded(5.0)), want)


def test_a_search_ends_before_a_tail_of_the_highest():
    sequence, values = torch.tensor([0.0, 2.0, 3.0, 6.0]), torch.tensor([0.0, 1.0, 2.0, 5.0, 7.0])
    calls = {"searchsorted": lambda s, v: A.searchsorted(s, v, right=True), "bucketize": lambda s, v: A.bucketize(v, s)}
    assert {n for n, row in aten.TABLE.items() if row.family == "search"} == set(calls)
    for fn in calls.values():
        assert _same(fn(torch.cat([sequence, torch.full((2,), math.inf)]), values), fn(sequence, values))
        stale = torch.cat([sequence, torch.tensor([1.0, 1.0])])
        assert not _same(fn(stale, values), fn(sequence, values))


# ---------------------------------------------------------------------------------------------------------- windows
def test_a_causal_convolution_keeps_the_tail_behind_and_a_centred_one_needs_zeros():
    weight = torch.tensor([[[0.5, 1.0, 2.0]]])

    def conv(x, padding):
        return A.convolution(x[:, 0][None, None], weight, None, [1], [padding], [1], False, [0], 1)[0, 0]

    causal = [conv(F.pad(x, (0, 0, 2, 0)), 0) for x in (_padded(math.nan), _x())]
    assert _same(causal[0], causal[1], 0)
    assert _same(conv(_padded(0.0), 1), conv(_x(), 1), 0) and not _same(conv(_padded(1.0), 1), conv(_x(), 1), 0)
    assert aten.TABLE["convolution"].family == "convolution"


def test_causal_attention_keeps_the_tail_behind_only_if_it_is_finite():
    def attend(x):
        q = x[None, None]
        return A._scaled_dot_product_attention_math(q, q, q, is_causal=True)[0][0, 0]

    assert _same(attend(_padded(0.0)), attend(_x()), 0) and _same(attend(_padded(7.0)), attend(_x()), 0)
    assert not _same(attend(_padded(math.nan)), attend(_x()), 0)
    full = [F.scaled_dot_product_attention(x[None], x[None], x[None])[0] for x in (_padded(0.0) / 8, _x() / 8)]
    assert not _same(full[0], full[1], 0)
    assert aten.TABLE["scaled_dot_product_attention"].family == "attention"


def test_factories_are_made_from_sizes_alone():
    same = {"zeros_like": A.zeros_like, "ones_like": A.ones_like, "full_like": lambda x: A.full_like(x, 3.0)}
    for name, fn in same.items():
        assert aten.TABLE[name].family == "factory" and _same(fn(_padded(math.nan)), fn(_x()), 0)
    for name in ("arange", "zeros", "ones", "full", "empty", "scalar_tensor", "eye", "linspace", "rand", "randn"):
        assert aten.TABLE[name].family == "factory"
    assert {n for n, row in aten.TABLE.items() if row.how == "random"} == {
        "rand", "randn", "randint", "randperm", "rand_like", "randn_like",
    }  # fmt: skip


def test_every_family_is_run_here():
    """Rows that no test above runs, by name: each is stricter than it need be, or another form of one that is run."""
    run = {n.split()[1] for n in TAIL_STAYS} | {*NEUTRAL, *NO_NEUTRAL, *CONTRACTS, *SCATTERS} | {n for n, _ in SORTS}
    by_family = ("gather", "search", "factory", "attention", "convolution")
    elsewhere = ("inner", "channels", "solve", "pairs", "grouped", "bins", "patch", "data")
    left = {n for n, row in aten.TABLE.items() if n not in run and row.family not in (*by_family, *elsewhere)}
    left = {n for n in left if not n.endswith("_backward")}
    assert left <= {
        "_cummax_helper", "_cummin_helper", "_fused_rms_norm", "kthvalue", "renorm", "repeat_interleave", "aminmax",
        "_pdist_forward", "_embedding_bag", "_int_mm", "index_reduce", "unfold", "view_as_real", "view_as_complex",
        "native_dropout", "bernoulli", "uniform", "normal", "exponential", "cauchy", "log_normal", "geometric",
        "random",
    }, left  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- met
class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm = torch.nn.Linear(4, 12, bias=False), torch.nn.LayerNorm(4)
        self.register_buffer("cache", torch.zeros(16, 4))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(-1, 3, 2, 2).unbind(1)
        y = F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in (q, k, v)), is_causal=True)
        y = y[0].transpose(0, 1).reshape(-1, 4)
        self.cache[: x.shape[0]] = y
        return F.silu(y) + F.rms_norm(x, (4,)) * torch.sigmoid(y).clamp_(0, 1)


class Routes(torch.nn.Module):
    def forward(self, x):
        weights, places = torch.softmax(x, -1).topk(2)
        hot = F.one_hot(places, 4).sum(1)
        order = torch.cat([x, x], 1).argsort(1).to(torch.int32)
        return (
            torch.zeros_like(x).scatter_add_(1, places, weights) + hot + order.split(4, 1)[0] + x.masked_fill(x > 1, 0)
        )


def _overloads(program):
    return {n.target for n in program.module.graph.nodes if n.op == "call_function"}


def test_every_overload_met_has_a_row(make_case, program_of):
    """Small models of what is served; overloads without a row are printed by the failure."""
    cases = [f.case() for n, f in FOOTGUNS.items() if n not in ("stale boundaries", "unit stride", "flip")] + [
        make_case(Attends()),
        make_case(Routes()),
    ]
    met = set()
    for case in cases:
        torch._dynamo.reset()
        met |= _overloads(program_of(case, repair="none"))
    ops = {op for op in met if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten"}
    ops = {op for op in ops if not aten.base_name(op).startswith("sym_") and not aten.syncs(op)}
    assert len(ops) >= 35
    assert not sorted(str(op) for op in ops if aten.row(op) is None)


def test_a_contract_is_found_for_a_node_by_row(make_case, program_of):
    program = program_of(make_case(Routes()))
    nodes = [n for n in program.module.graph.nodes if n.op == "call_function"]
    found = {str(n.target): find(n) for n in nodes}
    assert found["aten.topk.default"].row is aten.TABLE["topk"] and found["aten.topk.default"].source == "table"
