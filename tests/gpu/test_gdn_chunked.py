"""Long chunks by flash-linear-attention on a device, against the reference on the CPU and beside our own kernels."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import islice

import pytest
import torch

import capwise
from capwise.models.qwen4_exp import Config, Decoder, Pool, Schedule, input_axes
from capwise.models.qwen4_exp.oracle import random_texts
from capwise.ops import gdn_chunked
from capwise.ops.gdn_scan import gdn_scan_reference
from capwise.ops.samples import Sizes, sample

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("fla") is None, reason="needs pip install 'capwise[fla]'"),
]

# Released widths, few heads: the reference runs on the CPU.
MIDDLE = Sizes(slots=64, filled=True, key_heads=2, value_heads=6)
MIXES = {
    "decode": (1,) * 17,
    "one": (300,),
    "many": (65, 128, 64, 200, 66),
    "mixed": (1, 200, 0, 4, 65, 3, 1, 130, 64, 2),
}


def _call(lengths, dtype, seed):
    """State of who has none is NaN; the decay is slow, so that old tokens count."""
    call = sample("gdn_scan_", lengths, replace(MIDDLE, dtype=dtype), seed)
    call["g"] *= 0.2
    fresh = call["state_table"][~(call["has_initial"] | call["is_spec"]), 0].long()
    call["state"][fresh[fresh > 0]] = float("nan")
    del call["chunk"]
    return call


def _moved(call):
    """On the device; q, k and v stay parts of one row."""
    whole = call["q"]._base.cuda()
    parts = {n: whole.as_strided(v.shape, v.stride(), v.storage_offset()) for n, v in call.items() if n in "qkv"}
    return {n: parts.get(n, v.cuda()) for n, v in call.items()}


def _close(got, want, within):
    for a, b in zip(got, want, strict=True):
        a, b = a.cpu().float(), b.cpu().float()
        size = float(b.nan_to_num().abs().amax())
        torch.testing.assert_close(a, b, rtol=within, atol=within * size, equal_nan=True)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_values_and_states(dtype, mix):
    call = _call(MIXES[mix], dtype, 5)
    there = _moved(call)
    got = torch.ops.capwise.gdn_chunked_(**there)
    _close((got, there["state"]), (gdn_scan_reference(**call), call["state"]), 2e-2)


@pytest.mark.parametrize("mix", ("many", "mixed"))
def test_near_our_own_kernels(mix):
    call = _moved(_call(MIXES[mix], torch.bfloat16, 6))
    other = {**call, "state": call["state"].clone()}
    got, own = torch.ops.capwise.gdn_chunked_(**call), torch.ops.capwise.gdn_scan_(**other)
    _close((got, call["state"]), (own, other["state"]), 2e-2)


def test_boundaries_that_are_written_in_place_are_read_again():
    """The library keeps tables of chunks by the identity of a tensor."""
    first, then = (_call(lengths, torch.bfloat16, 7) for lengths in ((200, 70), (70, 200)))
    there, later = _moved(first), _moved(then)
    torch.ops.capwise.gdn_chunked_(**there)
    there["query_start_loc"].copy_(later["query_start_loc"])
    later["query_start_loc"] = there["query_start_loc"]
    got = torch.ops.capwise.gdn_chunked_(**later)
    _close((got, later["state"]), (gdn_scan_reference(**then), then["state"]), 2e-2)


def test_a_neighbour_changes_no_bit():
    alone = _moved(_call((130,), torch.bfloat16, 8))
    alone["state_table"][:] = torch.tensor([[5, 6, 7, 8]])
    alone["is_spec"][:], alone["has_initial"][:], alone["state"][5] = False, True, 0.25
    both = _moved(_call((70, 130), torch.bfloat16, 9))
    for name in ("q", "k", "v", "g", "beta", "state_table", "has_initial", "num_accepted", "is_spec"):
        both[name][-alone[name].shape[0] :] = alone[name]
    both["state_table"][0], both["state"][5] = torch.tensor([1, 2, 3, 4]), 0.25
    want, got = (torch.ops.capwise.gdn_chunked_(**call) for call in (alone, both))
    assert torch.equal(got[70:], want) and torch.equal(both["state"][5], alone["state"][5])


def _decoder_case():
    """Two linear layers over prompt chunks of up to 150 tokens, decodes and verify chunks."""
    config = Config.tiny(num_hidden_layers=2, linear_key_head_dim=64, linear_value_head_dim=64)
    torch.manual_seed(0)
    model = Decoder(config, slots=13, blocks=201, page_size=8, num_spec=2, prefill="fla")
    model.fill_state_(torch.Generator().manual_seed(0))
    steps = Schedule(
        config, random_texts(config, 12, 400, 1), Pool(201, 13, 8, 2), 2, max_requests=4, max_tokens=256, max_blocks=50,
        chunks=(1, 40, 70, 110, 150),
    )  # fmt: skip
    batches = [step.batch for step in islice(steps, 8)]
    return capwise.Case(
        model, batches, input_axes(config, 2), {"R": 4, "T": 256}, ("T",),
        {"capture_sizes": (4, 64, 256), "lower": "eager"}, name="a decoder with prefill by flash-linear-attention",
    )  # fmt: skip


def test_a_decoder_runs_it_between_graphs(monkeypatch):
    """Two seams, found by themselves; steps with long chunks and steps without."""
    calls, real = [], gdn_chunked.library()

    def counted(*args, **kwargs):
        calls.append(kwargs["cu_seqlens_cpu"].diff().tolist())
        return real(*args, **kwargs)

    monkeypatch.setattr(gdn_chunked, "library", lambda: counted)
    result = capwise.verify(_decoder_case(), device="cuda")
    assert result.ok and result.steps == 8 and not result.misses, str(result)
    assert {(s.op, s.code) for s in result.report.seams} == {("capwise.gdn_chunked_.default", "CW002")}
    assert {(65,), (85,), (70,)} == {tuple(sequences) for sequences in calls}
