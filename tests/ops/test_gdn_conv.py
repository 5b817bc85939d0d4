"""The convolution of the gated delta net: against torch's own, its roundings, and verify rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from capwise import compat
from capwise.ops.gdn_conv import gdn_conv, gdn_conv_state_

CHANNELS, TAPS = 6, 4
REQUEST = {"query_start_loc": torch.tensor([0, 7]), "state_indices": torch.tensor([1])}
PLAIN = {"num_accepted": torch.tensor([1]), "is_spec": torch.tensor([False])}


def test_bfloat16_rounds_the_sum_and_then_the_activation():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(7, CHANNELS, generator=generator).bfloat16()
    weight = torch.randn(CHANNELS, TAPS, generator=generator).bfloat16()
    state = torch.full((2, CHANNELS, TAPS - 1), float("nan"), dtype=torch.bfloat16)
    got = gdn_conv(x, weight, state, **REQUEST, has_initial=torch.tensor([False]), **PLAIN)
    before = F.pad(x.T, (TAPS - 1, 0)).float()
    want = F.silu(F.conv1d(before[None], weight.float()[:, None], groups=CHANNELS)[0].bfloat16()).T
    assert torch.equal(got, want)


def test_a_verify_chunk_reads_from_the_last_accepted_token():
    """Three of the four tokens of the step before stay: the history is the state's columns 2 to 4."""
    generator = torch.Generator().manual_seed(4)
    x, weight = torch.randn(2, CHANNELS, generator=generator), torch.randn(CHANNELS, TAPS, generator=generator)
    state = torch.randn(2, CHANNELS, TAPS - 1 + 3, generator=generator)
    request = torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([True])
    verify = torch.tensor([3]), torch.tensor([True])
    whole = torch.cat([state[1, :, 2:5], x.T], 1)
    want = F.silu(F.conv1d(whole[None], weight[:, None], groups=CHANNELS)[0].T)
    for context in (compat.interpreted(), torch.no_grad()):
        with context:
            after = state.clone()
            assert torch.allclose(gdn_conv(x, weight, state, *request, *verify), want, atol=1e-6)
            gdn_conv_state_(x, after, *request, *verify, TAPS - 1)
            assert torch.equal(after[1, :, :4], whole[:, 1:]) and torch.equal(after[1, :, 4:], state[1, :, 4:])


def test_a_step_must_say_who_verifies(raises):
    x, weight, state = torch.randn(7, CHANNELS), torch.randn(CHANNELS, TAPS), torch.randn(2, CHANNELS, TAPS - 1)
    with raises("num_accepted: expected [R] = (1,); got (2,)"):
        gdn_conv(
            x, weight, state, **REQUEST, has_initial=torch.tensor([True]), **{**PLAIN, "num_accepted": torch.ones(2)}
        )
