"""Shifts and copies of cached state: every relation of source and destination, compared by physical slot."""

from __future__ import annotations

import random

import pytest
import torch

from capwise import compat
from capwise.ops.align_cache import align_state_copy_, align_state_shift_
from capwise.ops.contract import declared

SLOTS, CHANNELS, REQUESTS = 12, 5, 6
RELATIONS = (
    "same slot", "other slots", "one source", "swapped", "chained", "null source", "null destination", "nowhere",
)  # fmt: skip
BOTH = pytest.mark.parametrize("kernel", (False, True), ids=("reference", "kernel"))


def slots_of(relation: str, rng: random.Random) -> tuple[list[int], list[int]]:
    """Sources and destinations; destinations differ, but for the null slot."""
    destinations = rng.sample(range(1, SLOTS), REQUESTS)
    if relation == "same slot":
        return list(destinations), destinations
    if relation == "other slots":
        return [rng.choice([s for s in range(1, SLOTS) if s not in destinations]) for _ in destinations], destinations
    if relation == "one source":
        return [rng.randrange(1, SLOTS)] * REQUESTS, destinations
    if relation == "swapped":
        return [destinations[i ^ 1] for i in range(REQUESTS)], destinations
    if relation == "chained":
        return [rng.randrange(1, SLOTS), *destinations[:-1]], destinations
    wrong = rng.choice((-1, SLOTS, 2**31 - 1)) if relation == "nowhere" else 0
    sources = [rng.randrange(1, SLOTS) for _ in destinations]
    if relation != "null destination":
        sources[::2] = [wrong] * (REQUESTS // 2)
    if relation != "null source":
        destinations[1::3] = [wrong] * (REQUESTS // 3)
    return sources, destinations


def moved(state: torch.Tensor, sources: list[int], destinations: list[int], biases: list[int]) -> torch.Tensor:
    """What must be in every physical slot afterwards, one element run at a time out of the state before."""
    after, width = state.clone(), state.shape[-1]
    for source, destination, bias in zip(sources, destinations, biases):
        if 0 < source < SLOTS and 0 < destination < SLOTS and 0 <= bias < width:
            after[destination, ..., : width - bias] = state[source, ..., bias:]
    return after


def on(kernel: bool):
    return compat.interpreted() if kernel else torch.no_grad()


@BOTH
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_shift_moves_the_columns_past_the_accepted_tokens(relation, kernel, strided):
    for seed in range(12):
        rng = random.Random(f"{relation}/{seed}")
        width = rng.randrange(3, 13)
        state = torch.randn(SLOTS, CHANNELS, width, generator=torch.Generator().manual_seed(seed))
        sources, destinations = slots_of(relation, rng)
        biases = [rng.randrange(0, width) for _ in sources]  # accepted tokens less one
        if seed % 4 == 3:
            biases[0], biases[1] = width, -1
        right = moved(state, sources, destinations, biases)
        given = strided(state, seed) if seed % 2 else state.clone()
        dtype = rng.choice((torch.int32, torch.int64))
        slots = [strided(torch.tensor(v, dtype=dtype), seed + i) for i, v in enumerate((sources, destinations, biases))]
        with on(kernel):
            align_state_shift_(given, *slots)
        assert torch.equal(given, right), (seed, sources, destinations, biases)


@BOTH
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("shape", ((7,), (3, 4, 5)))
def test_a_copy_moves_whole_slots(relation, shape, kernel):
    for seed in range(6):
        rng = random.Random(f"{relation}/{seed}")
        room = torch.full((SLOTS, torch.Size(shape).numel() + 3 * (seed % 2)), float("nan"))
        state = room[:, : torch.Size(shape).numel()].unflatten(1, shape)
        state.copy_(torch.randn(state.shape, generator=torch.Generator().manual_seed(seed)))
        sources, destinations = slots_of(relation, rng)
        right = moved(state.flatten(1).clone(), sources, destinations, [0] * REQUESTS).view(state.shape)
        with on(kernel):
            align_state_copy_(state, torch.tensor(sources), torch.tensor(destinations))
        assert torch.equal(state, right), (seed, sources, destinations)


@BOTH
def test_the_published_examples(kernel):
    """Five columns and two accepted tokens past the last one; the widest overlap of twelve columns."""
    for width, right in ((5, [2, 3, 4, 3, 4]), (12, [*range(2, 12), 10, 11])):
        state = torch.arange(width, dtype=torch.float32).repeat(2, 3, 1)
        one, two = torch.tensor([1]), torch.tensor([2])
        with on(kernel):
            align_state_shift_(state, one, one, two)
        assert state[1].tolist() == [right] * 3


@BOTH
def test_tails_as_the_contract_says(kernel, junk):
    """A padded request has the null destination; its source and bias may be anything. Any destination would do harm."""
    for op, names in (
        (torch.ops.capwise.align_state_shift_, ("sources", "destinations", "biases")),
        (torch.ops.capwise.align_state_copy_, ("sources", "destinations")),
    ):
        harmed = 0
        for seed in range(20):
            rng = random.Random(seed)
            state = torch.randn(SLOTS, CHANNELS, 4)
            sources, destinations = slots_of("other slots", rng)
            live = dict(zip(names, (torch.tensor(sources), torch.tensor(destinations), torch.tensor([1] * REQUESTS))))
            exact, padded, stale = state.clone(), state.clone(), state.clone()
            noise = {n: torch.cat([v, junk(v, seed + i)]) for i, (n, v) in enumerate(live.items())}
            filled = {**noise, "destinations": torch.cat([live["destinations"], torch.zeros(REQUESTS).long()])}
            with on(kernel):
                op(exact, **live)
                op(padded, **filled)
                op(stale, **noise)
            assert torch.equal(padded, exact)
            harmed += not torch.equal(stale, exact)
        assert harmed


def test_only_the_state_is_written_and_the_contracts_say_so():
    for op in (torch.ops.capwise.align_state_shift_.default, torch.ops.capwise.align_state_copy_.default):
        contract = declared(op)
        written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        assert written == set(contract.state) == {"state"}
        assert set(contract.arguments) == {a.name for a in op._schema.arguments}
        assert contract.overlap is False and not contract.allocates and not contract.syncs


@BOTH
def test_no_requests(kernel):
    state, none = torch.randn(SLOTS, CHANNELS, 4), torch.zeros(0, dtype=torch.int32)
    before = state.clone()
    with on(kernel):
        align_state_shift_(state, none, none, none)
        align_state_copy_(state, none, none)
    assert torch.equal(state, before)


def test_contradicting_extents_are_refused(raises):
    state, two, one = torch.randn(SLOTS, CHANNELS, 4), torch.tensor([1, 2]), torch.tensor([1])
    with raises("align_state_shift_: sources, biases: expected [R] each; got (2,) and (1,)"):
        align_state_shift_(state, two, two, one)
    with raises("align_state_shift_: state: expected [slots, C, W]; got (12, 20)"):
        align_state_shift_(state.flatten(1), two, two, two)
    with raises("align_state_copy_: state: expected slots of evenly spaced elements; got (12, 4, 5)"):
        align_state_copy_(state.transpose(1, 2), two, two)
