"""Every kernel of the package as the ROCm code it compiles to, executed on this CPU, against its torch reference.

The inputs are what a replay brings: empty requests, null slots, tails that hold noise. Compiled plain they are strided
views with noise in the gaps; compiled as a launch would specialise them (aligned addresses, 32-bit offsets) they are
dense. The serial schedule runs one wavefront at a time between barriers, in random order.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import capwise.ops
from capwise import emulate
from capwise.kernel_access import rows, summarize
from capwise.lower.launches import spec_of
from capwise.lower.recorded import Recorded, launches_of, op_launches
from capwise.models import naive_shift
from capwise.ops.contract import Fill, Last, declared
from capwise.ops.ple_gate import _ple_gate_kernel
from capwise.ops.samples import CALLS, SMALL, sample
from capwise.runtime.emulated import DeviceFault, as_argument, compiled, emulated, run_launch

LENGTHS = (3, 0, 5, 1, 0, 4)
FEW = (3, 0, 2)
LONG = ("sparse_attention", "mrope_kv_write_", "top_blocks", "qsa_compress_")  # few tokens, a schedule a mode
ONE_SCHEDULE = (*LONG, "gdn_scan_", "moe_experts")  # a mode
SCHEDULES = ("lockstep", "serial")
MODES = ("plain", "specialised")
BOTH = pytest.mark.parametrize("gfx", ("gfx942", "gfx1201"))
EACH = pytest.mark.parametrize("name", CALLS)


def overload(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.capwise, name).default


def lengths_of(name: str) -> tuple[int, ...]:
    return FEW if name in LONG else LENGTHS


def padded(name: str, junk, seed: int) -> dict:
    """A call with rows past the live ones: as the contract asks where it asks, noise elsewhere."""
    call = sample(name, lengths_of(name), SMALL, seed)
    for i, (argument, axes) in enumerate(declared(overload(name)).arguments.items()):
        dim = next((d for d, symbol in enumerate(axes.axes) if isinstance(symbol, str)), None)
        if argument not in call or dim is None:
            continue
        live = call[argument].movedim(dim, 0)
        tail = live.new_empty((3 if axes.axes[dim] == "T" else 2, *live.shape[1:]))
        if isinstance(axes.tail, Last):
            tail[:] = live[-1]
        else:
            tail = tail.fill_(axes.tail.value) if isinstance(axes.tail, Fill) else junk(tail, seed + i)
        call[argument] = torch.cat([live, tail]).movedim(0, dim)
    return call


def views(name: str, call: dict, strided, seed: int) -> dict:
    """The same values as strided views. A state's slots lie apart; its own elements must lie evenly for a copy."""
    seen, states = {}, declared(overload(name)).state
    for i, (argument, value) in enumerate(call.items()):
        seen[argument] = value
        if argument in states or argument == "state":
            room = junk_of(value, value.shape[0], value[0].numel() + 5)
            seen[argument] = room[:, : value[0].numel()].unflatten(1, value.shape[1:]).copy_(value)
        elif isinstance(value, torch.Tensor):
            seen[argument] = strided(value, seed + i)
    return seen


def results(name: str, call: dict, run=None) -> list[torch.Tensor]:
    """Live rows of what a call returns, and the state it leaves; by the reference, or with `run` for each launch."""
    states = declared(overload(name)).state
    call = {n: _clone(v) if n in states else v for n, v in call.items()}
    outs = []
    if run is None:
        outs.append(overload(name)(**call))
    else:
        for launch in launches_of(lambda: outs.append(overload(name)(**call)), {}):
            run(launch)
    leaves = [o for out in outs for o in (out if isinstance(out, tuple) else (out,)) if o is not None]
    outs = [axes for n, axes in declared(overload(name)).arguments.items() if n.startswith("out")]
    live = {"T": sum(lengths_of(name)), "R": len(lengths_of(name))}
    return [o[: live[axes.axes[0]]] for o, axes in zip(leaves, outs, strict=True)] + [call[n] for n in states]


def junk_of(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan") if like.dtype.is_floating_point else -12345, dtype=like.dtype)


def _clone(state: torch.Tensor) -> torch.Tensor:
    """A copy that lies as the state does."""
    room = junk_of(state, state.shape[0], state.stride(0))
    return room.as_strided(state.shape, state.stride()).copy_(state)


# Sums of hundreds of products, or states that many tokens have gone through.
LOOSER = {"moe_experts": 5e-5, "gdn_scan_": 1e-5}


def check(name: str, call: dict, gfx: str, sched: str, specialise: bool) -> None:
    ran = []

    def run(launch: Recorded) -> None:
        ran.append(launch.name)
        run_launch(launch.kernel, launch.grid, dict(launch.bound), gfx=gfx, sched=sched, seed=1, specialise=specialise)

    within = LOOSER.get(name, 2e-6)
    for right, got in zip(results(name, call), results(name, call, run), strict=True):
        torch.testing.assert_close(got, right, rtol=within, atol=within, equal_nan=True)
    assert ran


@BOTH
@EACH
@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_computes_what_its_reference_does(name, gfx, mode, junk, strided):
    call = padded(name, junk, 3)
    if mode == "plain":
        call = views(name, call, strided, 5)
    for sched in SCHEDULES if name not in ONE_SCHEDULE else SCHEDULES[mode == "plain" :][:1]:
        check(name, call, gfx, sched, specialise=mode == "specialised")


@pytest.mark.parametrize("name", ("ple_short_conv", "align_state_shift_"))
def test_strided_views_with_32_bit_offsets(name, junk, strided):
    check(name, views(name, padded(name, junk, 7), strided, 9), "gfx942", "serial", specialise=True)


@BOTH
@pytest.mark.parametrize(("name", "sched"), [*(("ple_gate", s) for s in SCHEDULES), ("hc_norm", "serial")])
def test_norms_over_rows_that_several_wavefronts_hold(gfx, name, sched):
    """As at the released width: a row is several tiles, and partial sums meet in LDS, which takes barriers."""
    call = sample(name, (2,), replace(SMALL, hidden=600, streams=1))

    def run(launch: Recorded) -> None:
        made = compiled(spec_of(launch.kernel, launch.bound), gfx)
        assert made.launch.shared and "s_barrier" in made.asm["amdgcn"]
        run_launch(launch.kernel, launch.grid, dict(launch.bound), gfx=gfx, sched=sched, seed=2)

    for right, got in zip(results(name, call), results(name, call, run), strict=True):
        torch.testing.assert_close(got, right, rtol=5e-6, atol=5e-6)


# Tables and choices so long that what a token sees is split.
SPLIT = replace(SMALL, attention=replace(SMALL.attention, chosen=80, table=40, pages=41))


@BOTH
@pytest.mark.parametrize("sched", SCHEDULES)
def test_what_a_token_sees_in_parts_is_joined(gfx, sched):
    call = sample("sparse_attention", (1,), SPLIT, 10)
    assert int(call["logical_pos"]) > 130
    parts = []

    def run(launch: Recorded) -> None:
        parts.append(launch.grid[-1])
        run_launch(launch.kernel, launch.grid, dict(launch.bound), gfx=gfx, sched=sched, seed=2)

    out = torch.ops.capwise.sparse_attention(**call)
    made = []
    for launch in launches_of(lambda: made.append(torch.ops.capwise.sparse_attention(**call)), {}):
        run(launch)
    torch.testing.assert_close(made[0], out, rtol=2e-6, atol=2e-6)
    assert parts == [1, 3, 4]  # the slots, the splits, the heads that are joined


def test_every_kernel_is_launched_by_some_sample():
    modules = [getattr(capwise.ops, m) for m in capwise.ops.__all__]
    there = {n for m in modules for n, v in vars(m).items() if n.endswith("_kernel") and hasattr(v, "arg_names")}
    launched = {launch.name for op in CALLS for sizes in (SMALL, SPLIT) for launch in op_launches(op, LENGTHS, sizes)}
    assert launched == there and len(there) > 20


# ------------------------------------------------------------------------------------------------ far from the base
FAR = {
    # op -> (argument that lies far, its stride parameter, the row that is used)
    "ple_short_conv_state_": ("state", "slot_stride", 11),
    "ple_short_conv": ("state", "slot_stride", 11),
    "gdn_scan_": ("state", "state_slot", 11),
    "moe_experts": ("gate_up", "gate_up_expert", 5),
    "ple_table_gather_fp8": ("table", "table_row", 31),
    "align_state_shift_": ("state", "state_slot", 11),
    "align_state_copy_": ("state", "state_slot", 11),
    "ple_table_gather": ("table", "table_row", 31),
    "ple_ngram_ids": ("ngram_context", "context_stride_row", 5),
    "ple_predecessors": ("ngram_context", "context_stride_row", 5),
}


FAR_STEPS = [(n, (0, 0, 0, 0, 0, 6) if at[0] == "ngram_context" else (6,)) for n, at in FAR.items()]
FAR_STEPS.append(("gdn_scan_", (3,)))


def _one_row(name: str, lengths: tuple[int, ...], row: int) -> dict:
    """A call in which every access to the far argument is to one row of it."""
    call = sample(name, lengths, SMALL, 2)
    chosen = {"biases": 2, **dict.fromkeys(("state_indices", "state_table", "sources", "destinations"), row)}
    chosen |= {"ids": row, "experts": row}
    return {n: torch.full_like(v, chosen[n]) if n in chosen else v for n, v in call.items()}


@BOTH
@pytest.mark.parametrize(("name", "lengths"), FAR_STEPS)
def test_offsets_past_two_to_the_thirty_first(name, lengths, gfx):
    """The row lies more than 2**31 elements past the pointer, and nothing else of the argument exists."""
    far(name, _one_row(name, lengths, FAR[name][2]), *FAR[name], gfx)


def far(name: str, call: dict, argument: str, parameter: str, row: int, gfx: str) -> None:
    right = results(name, call)
    stride = (1 << 31) // row + 48

    call = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    outs: list = []
    for launch in launches_of(lambda: outs.append(overload(name)(**call)), {}):
        bound = {n: stride if n == parameter else v for n, v in launch.bound.items()}
        spec = spec_of(launch.kernel, bound, specialise=False)
        made, values = compiled(spec, gfx), {n: as_argument(bound[n]) for n in spec.signature}
        for pointer in (n for n, v in bound.items() if _same(v, call[argument])):
            values[pointer] = emulate.Sparse(row * stride * call[argument].itemsize, as_argument(call[argument][row]))
        emulate.run(made.asm["amdgcn"], launch.grid, values, shared=made.launch.shared)
    got = [o for o in outs if o is not None] + [call[n] for n in declared(overload(name)).state]
    within = LOOSER.get(name, 2e-6)
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True)


PAGE, SLOT = 11, 11
FAR_ATTENTION = [
    # an argument that lies far, its stride parameter, the row that is used, and what makes a call use no other
    ("mrope_kv_write_", "kv_cache", "cache_page", PAGE, {"slot_mapping": [47, 44, -1, 45]}),
    ("qsa_compress_", "block_keys", "keys_page", PAGE, {}),
    ("qsa_compress_", "ring", "ring_slot", SLOT, {}),
    ("qsa_compress_", "ring_positions", "ring_positions_slot", SLOT, {}),
    ("qsa_commit_", "ring", "ring_slot", SLOT, {}),
    ("qsa_commit_", "ring_positions", "ring_positions_slot", SLOT, {}),
    ("qsa_scores", "block_keys", "keys_page", PAGE, {}),
    ("sparse_attention", "kv_cache", "cache_page", PAGE, {}),
    ("slot_mapping", "block_table", "table_row", 3, {"token_to_req": [3] * 4}),
    ("logits_rows", "hidden", "hidden_row", 3, {"is_spec": [False]}),
]


@BOTH
@pytest.mark.parametrize(("name", "argument", "parameter", "row", "use"), FAR_ATTENTION)
def test_attention_past_two_to_the_thirty_first(name, argument, parameter, row, use, gfx):
    """Four tokens at the positions 5..8: a block that begins in the ring, and one of this chunk alone."""
    call = sample(name, (0, 0, 0, 4) if name == "slot_mapping" else (4,), SMALL, 2)
    use = {"seq_lens": [9], "state_indices": [SLOT], "block_table": [[PAGE] * 5], "logical_pos": [5, 6, 7, 8], **use}
    changed = {n: torch.tensor(v, dtype=call[n].dtype).expand(call[n].shape) for n, v in use.items() if n in call}
    far(name, {**call, **changed}, argument, parameter, row, gfx)


def _same(value: object, tensor: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.data_ptr() == tensor.data_ptr() and value.numel() > 0


def test_what_reads_every_row_multiplies_rows_in_64_bits():
    """The gate reads all rows of its arguments, so none can lie apart: that its row offsets are wide is in its text."""
    narrow = [h["needs"] for row in rows(summarize(_ple_gate_kernel)) for h in row["hazards"] if h["code"] == "CW403"]
    assert narrow and not [n for n in narrow if "_row" in n or "tokens" in n]


# -------------------------------------------------------------------------------------------------- matrix instructions
@pytest.mark.parametrize(
    ("name", "sizes", "instruction"),
    [
        ("moe_experts", {"hidden": 16, "inner": 16, "experts": 2, "top_k": 1}, "f32"),
        ("gdn_scan_", {"key_width": 16, "value_width": 16}, "f32"),
        ("w8a8_linear", {"hidden": 40}, "i32"),
        ("qsa_scores", {}, "f32"),
        ("sparse_attention", {}, "f32"),
    ],
)
@BOTH
def test_products_of_bfloat16_and_of_bytes_by_matrix_instructions(name, sizes, instruction, gfx):
    lengths = (2,) if name in LONG else (6,)
    call = sample(name, lengths, replace(SMALL, dtype=torch.bfloat16, **sizes), 4)
    used = set()

    def run(launch: Recorded) -> None:
        used.update(compiled(spec_of(launch.kernel, launch.bound), gfx).matrix)
        run_launch(launch.kernel, launch.grid, dict(launch.bound), gfx=gfx, sched="serial", seed=3)

    for right, got in zip(results(name, call), results(name, call, run), strict=True):
        scale = right.float().nan_to_num(0.0, 0.0, 0.0).abs().amax()
        assert ((got - right).nan_to_num().abs() <= 0.02 * scale).all()
    assert used and all(u.startswith(("v_mfma_" + instruction, "v_wmma_" + instruction)) for u in used)


# ------------------------------------------------------------------------------------------------ overlapping shifts
def shifted(op, gfx: str, seed: int) -> bool:
    """Whether a shift of a slot within itself is right in this order of wavefronts."""
    state = torch.arange(4 * 12 * 64, dtype=torch.float32).view(4, 12, 64)
    right = state.clone()
    right[2, :10] = state[2, 2:]
    slots = [torch.tensor([n], dtype=torch.int32) for n in (2, 2, 2)]
    for launch in launches_of(lambda: op(state, *slots), {}):
        emulated(gfx, seed=seed)(launch.kernel, launch.grid, **launch.bound)
    return torch.equal(state, right)


@BOTH
def test_a_shift_without_an_order_is_wrong_and_the_repaired_ones_are_not(gfx):
    def ours(state, *slots):
        torch.ops.capwise.align_state_shift_(state.transpose(1, 2), *slots)

    seeds = range(4)
    assert not all(shifted(torch.ops.footgun.naive_shift_, gfx, seed) for seed in seeds)
    assert all(shifted(torch.ops.footgun.barrier_shift_, gfx, seed) for seed in seeds)
    assert all(shifted(ours, gfx, seed) for seed in seeds)


@BOTH
def test_slots_that_change_places_do_so_in_any_order(gfx):
    """Requests that different wavefronts hold: one's destination is another's source."""
    destinations = torch.arange(1, 9, dtype=torch.int32)
    for op, more in (("align_state_copy_", {}), ("align_state_shift_", {"biases": torch.zeros_like(destinations)})):
        for seed in range(3):
            state = torch.arange(9 * 6 * 20, dtype=torch.float32).view(9, 6, 20)
            right = torch.cat([state[:1], state[1:].flip(0)])
            call = {"state": state, "sources": destinations.flip(0), "destinations": destinations, **more}
            for launch in launches_of(lambda op=op, call=call: overload(op)(**call), {}):
                emulated(gfx, seed=seed)(launch.kernel, launch.grid, **launch.bound)
            assert torch.equal(state, right), (op, seed)


def test_lockstep_does_not_show_the_missing_order():
    state = torch.arange(4 * 12 * 64, dtype=torch.float32).view(4, 12, 64)
    right = state[2, 2:].clone()
    slots = [torch.tensor([n], dtype=torch.int32) for n in (2, 2, 2)]
    for launch in launches_of(lambda: torch.ops.footgun.naive_shift_(state, *slots), {}):
        run_launch(launch.kernel, launch.grid, dict(launch.bound), gfx="gfx942", sched="lockstep", seed=0)
    assert torch.equal(state[2, :10], right)


def test_an_access_outside_the_arguments_is_a_fault():
    (launch,) = op_launches("ple_table_gather", (4,), replace(SMALL, table_rows=8))
    bound = {**launch.bound, "table_ptr": launch.bound["table_ptr"][:2], "rows": 8}
    with pytest.raises(DeviceFault, match="_table_gather_kernel on gfx942"):
        run_launch(launch.kernel, launch.grid, bound, gfx="gfx942", sched="lockstep", seed=0)


def test_the_naive_shift_says_that_it_overlaps():
    assert declared(torch.ops.footgun.naive_shift_.default).overlap
    assert not declared(torch.ops.footgun.barrier_shift_.default).overlap
    assert not declared(overload("align_state_shift_")).overlap
    found = {h["code"] for row in rows(summarize(naive_shift._window_copy_kernel)) for h in row["hazards"]}
    assert "CW304" in found
