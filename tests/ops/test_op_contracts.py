"""Every contract of the shipped ops, by execution: what it calls harmless is, and what it asks for is needed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import capwise.ops  # noqa: F401  registers the ops
from capwise import compat
from capwise.models import unit_stride_conv  # noqa: F401
from capwise.models.demo_cases import GOLDEN
from capwise.models.qwen4_exp import NgramIds
from capwise.ops.contract import Any, Axes, Contract, Fill, Last, Unit, all_declared, declared
from capwise.ops.samples import SMALL
from capwise.ops.samples import sample as sample_call

SLOTS, CHANNELS = 12, 3
SYMBOLS = {"T": 0, "R": 0, "R+1": 1}


@dataclass
class Sample:
    """One call at live extents: argument name -> value."""

    op: torch._ops.OpOverload
    arguments: dict
    starts: torch.Tensor

    @property
    def contract(self) -> Contract:
        return declared(self.op)

    def call(self, arguments: dict, kernel: bool) -> dict[str, torch.Tensor]:
        """Outputs and, under their own names, what the call wrote."""
        arguments = {n: v.clone() if n in self.contract.state else v for n, v in arguments.items()}
        with compat.interpreted() if kernel else torch.no_grad():
            result = self.op(**arguments)
        outs = result if isinstance(result, tuple) else (result,)
        names = ["out"] if len(outs) == 1 else [f"out{i}" for i in range(len(outs))]
        written = {name: arguments[name] for name in self.contract.state}
        return {**{n: out for n, out in zip(names, outs) if out is not None}, **written}


def _ngram_ids(batch, generator):
    module = NgramIds(GOLDEN)
    return {
        "input_ids": torch.randint(0, 100, (batch.tokens,), generator=generator, dtype=torch.int32),
        "query_start_loc": batch.starts,
        "ngram_context": torch.randint(90, 100, (batch.requests, 2), generator=generator, dtype=torch.int32),
        "multipliers": module.multipliers,
        "sizes": module.sizes,
        "offsets": module.offsets,
        "eos": 99,
    }


def _table_gather(batch, generator):
    return {
        "ids": torch.randint(0, 9, (batch.tokens, 4), generator=generator),
        "table": torch.randn(9, 3, generator=generator),
    }


def _gate(batch, generator):
    shapes = {"key": (batch.tokens, 8), "value": (batch.tokens, 4), "hidden": (batch.tokens, 8)}
    shapes |= {name: (8,) for name in ("w_key", "w_query", "w_conv")}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**tensors, "eps": 1e-6, "hc": 2}


def _conv_state(batch, generator):
    return {
        "x": torch.randn(batch.tokens, CHANNELS, generator=generator),
        "state": torch.randn(SLOTS, CHANNELS, 9, generator=generator),
        "query_start_loc": batch.starts,
        "state_indices": (torch.randperm(SLOTS - 1, generator=generator)[: batch.requests] + 1).int(),
        "has_initial": torch.rand(batch.requests, generator=generator) < 0.7,
        "length": 9,
    }


def _verified(make):
    """A convolution some of whose requests verify up to four tokens, in slots of as many columns more."""

    def call(batch, generator):
        arguments, requests = make(batch, generator), batch.requests
        short = torch.tensor(batch.lengths) <= 4
        return {
            **arguments,
            "state": torch.randn(SLOTS, CHANNELS, 12, generator=generator),
            "num_accepted": torch.randint(1, 5, (requests,), generator=generator, dtype=torch.int32),
            "is_spec": short & (torch.rand(requests, generator=generator) < 0.6),
        }

    return call


def _conv(batch, generator):
    arguments = _conv_state(batch, generator)
    del arguments["length"]
    return {**arguments, "weight": torch.randn(CHANNELS, 4, generator=generator), "dilation": 3}


def _shipped(name):
    """The op's own sample, over the batch's chunks."""
    return lambda batch, generator: sample_call(name, batch.lengths, SMALL, generator.initial_seed())


def _gdn_chunked(batch, generator):
    """Chunks of five tokens and more are long."""
    call = _shipped("gdn_scan_")(batch, generator)
    return {**{n: v for n, v in call.items() if n != "chunk"}, "long": 4}


SHIPPED = (
    "ple_predecessors", "ple_ngram_hash", "ple_table_gather_fp8", "gdn_conv", "gdn_conv_state_", "gdn_scan_",
    "hc_norm", "hc_mix", "hc_write", "moe_route", "moe_experts", "w8a8_linear", "token_requests", "slot_mapping",
    "mrope", "mrope_kv_write_", "qsa_compress_", "qsa_commit_", "qsa_scores", "top_blocks", "sparse_attention",
    "logits_rows", "align_state_shift_", "align_state_copy_",
)  # fmt: skip
MAKERS = {
    "capwise::ple_ngram_ids": _ngram_ids,
    "capwise::ple_table_gather": _table_gather,
    "capwise::ple_gate": _gate,
    "capwise::ple_short_conv": _verified(_conv),
    "capwise::ple_short_conv_state_": _verified(_conv_state),
    "capwise::gdn_chunked_": _gdn_chunked,
    "footgun::unit_stride_short_conv": _conv,
    "footgun::unit_stride_short_conv_state_": _conv_state,
    **{f"capwise::{name}": _shipped(name) for name in SHIPPED},
}
FAMILIES = ("ple", "gdn", "hc", "moe", "w8a8", "token", "slot", "mrope", "qsa", "top", "sparse", "logits", "align")
FAMILIES = ("footgun::unit", *(f"capwise::{family}" for family in FAMILIES))
OURS = {str(op).removesuffix(".default").replace(".", "::"): op for op in all_declared()}
OURS = {name: op for name, op in OURS.items() if name.startswith(FAMILIES)}
BOTH = pytest.mark.parametrize("kernel", (False, True), ids=("reference", "kernel"))
EACH = pytest.mark.parametrize("name", MAKERS)
SEEDS = range(4)
# Long programs, or one a token: no large steps in the interpreter.
SLOW = ("sparse_attention", "top_blocks", "mrope", "mrope_kv_write_", "qsa_compress_", "qsa_scores", "logits_rows")


def seeds(name: str, kernel: bool) -> range:
    return range(2) if kernel and name.removeprefix("capwise::") in SLOW else SEEDS


@pytest.fixture
def sample(step, fla):
    """A call of an op on a random step with at least one token."""

    def make(name: str, seed: int) -> Sample:
        batch = next(b for b in map(step, range(seed, seed + 400, 4)) if b.tokens)
        generator = torch.Generator().manual_seed(seed)
        return Sample(OURS[name], MAKERS[name](batch, generator), batch.starts)

    return make


def _symbolic(axes: Axes) -> tuple[int, str] | None:
    return next(((d, a) for d, a in enumerate(axes.axes) if isinstance(a, str)), None)


def _padded(sample: Sample, junk, seed: int, stale: str = "") -> dict:
    """The call at padded extents, tails as the contract asks, and junk where it allows anything or in `stale`."""
    arguments = dict(sample.arguments)
    for i, (name, axes) in enumerate(sample.contract.arguments.items()):
        at = _symbolic(axes)
        if name not in arguments or at is None:
            continue
        live = arguments[name].movedim(at[0], 0)
        assert at[1] in SYMBOLS
        tail = live.new_empty((5 if at[1] == "T" else 3, *live.shape[1:]))
        if isinstance(axes.tail, Last) and name != stale:
            tail[:] = live[-1]
        elif isinstance(axes.tail, Fill) and name != stale:
            tail[:] = axes.tail.value
        else:
            assert name == stale or isinstance(axes.tail, Any)
            tail = junk(tail, seed + i)
        arguments[name] = torch.cat([live, tail]).movedim(0, at[0])
    return arguments


def _extent(sample: Sample, result: str) -> int:
    """How many live rows an output has: its first axis is tokens or requests."""
    by_request = sample.contract.arguments[result].axes[0] == "R"
    return len(sample.starts) - 1 if by_request else int(sample.starts[-1])


def _live(sample: Sample, results: dict) -> list[torch.Tensor]:
    """Live rows of the outputs, and owned state: all but the null slot."""
    return [v[1:] if n in sample.contract.state else v[: _extent(sample, n)] for n, v in results.items()]


def _promised(sample: Sample, results: dict) -> bool:
    """Whether padded rows of the outputs hold what the contract says of them."""
    tails = {n: sample.contract.arguments[n].tail for n in results if n not in sample.contract.state}
    said = {n: tail.value for n, tail in tails.items() if isinstance(tail, Fill)}
    return all(bool((results[n][_extent(sample, n) :] == value).all()) for n, value in said.items())


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(a, b))


def _is_tensor(kind) -> bool:
    return isinstance(kind.getElementType() if isinstance(kind, torch.OptionalType) else kind, torch.TensorType)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The values, or the bits where torch does not compare values of a format."""
    return tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def test_every_op_has_a_sample_and_names_every_tensor():
    assert sorted(OURS) == sorted(MAKERS)
    for op in OURS.values():
        tensors = {a.name for a in op._schema.arguments if _is_tensor(a.type)}
        returned = len(op._schema.returns)
        outs = {"out"} if returned == 1 else {f"out{i}" for i in range(returned)}
        assert set(declared(op).arguments) == tensors | outs, op
        written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        assert set(declared(op).state) == written, op


@BOTH
@EACH
def test_tails_that_a_contract_calls_harmless_are(name, kernel, sample, junk):
    for seed in seeds(name, kernel):
        call = sample(name, seed)
        exact = _live(call, call.call(call.arguments, kernel))
        padded = [call.call(_padded(call, junk, noise + seed), kernel) for noise in (0, 100)]
        one, other = (_live(call, results) for results in padded)
        assert _equal(one, other) and all(_promised(call, results) for results in padded), seed
        # torch sums rows in an order that depends on how many there are; the kernels do not.
        assert _equal(exact, one) if kernel else all(torch.allclose(a, b, atol=1e-6) for a, b in zip(exact, one)), seed


@BOTH
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (n, a)
        for n, op in OURS.items()
        for a, x in declared(op).arguments.items()
        if not isinstance(x.tail, Any) and not a.startswith("out")
    ],
)
def test_a_tail_that_a_contract_asks_for_is_needed(name, argument, kernel, sample, junk):
    """Without it live rows or state differ, or what is said of the result's padded rows does not hold."""
    for seed in range(60):
        call = sample(name, seed)
        exact = _live(call, call.call(call.arguments, kernel))
        stale = call.call(_padded(call, junk, seed, stale=argument), kernel)
        if not _equal(exact, _live(call, stale)) or not _promised(call, stale):
            return
    pytest.fail(f"{argument} may hold anything past its live rows: the contract asks for too much")


@EACH
def test_only_what_a_contract_says_is_written_is_written(name, sample):
    written = set()
    for seed in SEEDS:
        call = sample(name, seed)
        before = {n: v.clone() for n, v in call.arguments.items() if isinstance(v, torch.Tensor)}
        call.op(**call.arguments)
        changed = {n for n, v in before.items() if not torch.equal(_bits(v), _bits(call.arguments[n]))}
        assert changed <= set(call.contract.state), seed
        written |= changed
    assert written == set(call.contract.state)


@BOTH
@EACH
def test_rows_reach_no_further_than_the_locality(name, kernel, sample):
    """Another request's rows (for a row-local op: any other row) change, and rows after: this row does not.

    A result by request is asked for the row's request, which all of the request's rows may reach.
    """
    for seed in seeds(name, kernel):
        call = sample(name, seed)
        tokens, starts = int(call.starts[-1]), call.starts.tolist()
        row = seed % tokens
        first = max(s for s in starts if s <= row) if call.contract.locality == "segment" else row
        request = max(r for r, s in enumerate(starts) if s <= row)
        by_request = any(a.axes[:1] == ("R",) for n, a in call.contract.rows.items() if n.startswith("out"))
        reached = [r for r in range(tokens) if first <= r <= (starts[request + 1] - 1 if by_request else row)]
        others = torch.ones(tokens, dtype=torch.bool)
        others[reached] = False
        changed = dict(call.arguments)
        for argument, axes in call.contract.rows.items():
            if argument in changed and _symbolic(axes):
                changed[argument] = call.arguments[argument].clone()
                rows = changed[argument].movedim(_symbolic(axes)[0], 0)
                rows[others] = (rows[others] + 1) % 7
        outs = [n for n in call.call(call.arguments, kernel) if n.startswith("out")]
        one, other = call.call(call.arguments, kernel), call.call(changed, kernel)
        at = request if by_request else row
        assert all(torch.equal(one[n][at], other[n][at]) for n in outs), seed


@BOTH
@EACH
def test_strides_are_honoured_unless_the_contract_says_what_they_must_be(name, kernel, sample, strided):
    differs = False
    for seed in seeds(name, kernel):
        call = sample(name, seed)
        dense = call.call(call.arguments, kernel)
        views = {
            n: strided(v, seed + i) if isinstance(v, torch.Tensor) and n not in call.contract.state else v
            for i, (n, v) in enumerate(call.arguments.items())
        }
        needs = [n for n, s in call.contract.strides.items() if isinstance(s, Unit)]
        same = {n: call.arguments[n] for n in needs}
        assert _equal(list(dense.values()), list(call.call({**views, **same}, kernel).values())), seed
        if needs:
            table = {n: call.arguments[n][:, None].repeat(1, 3) for n in needs}
            column = {n: _column(t) for n, t in table.items()}
            differs |= not _equal(list(dense.values()), list(call.call({**views, **column}, kernel).values()))
    assert differs == bool(call.contract.strides)


def _column(table: torch.Tensor) -> torch.Tensor:
    """Column 0 of a table whose other columns name slots of nobody's."""
    table[:, 1:] = (table[:, 1:] + 5) % (SLOTS - 1) + 1
    return table[:, 0]
