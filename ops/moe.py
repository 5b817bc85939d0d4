"""Mixture of experts: routing, and the routed experts as two grouped GEMMs.

Routing, in float32 over E experts, rounded to the dtype of the logits at the end:

    p = softmax(logits)        the k largest logits, the lower index first where two are equal, largest first
    weight_i = p_i / sum of the k chosen p

Experts, for token t and its choice j, e = experts[t, j]; rnd: rounded to u's dtype (nothing in float32), float32 sums:

    [gate | up] = rnd(u_t gate_up_e^T)
    a   = rnd(rnd(silu(gate)) * up)
    y   = rnd(rnd(a down_e^T) * weights[t, j])
    out = rnd(sum over j of y)                      a choice outside [0, E) adds nothing

Pairs of token and choice are sorted by expert, which mixes the rows of a batch, padded ones too; yet each pair meets
only its own row: as one block the op is row-local.

The sort is a counting sort on the device: a program an expert counts its pairs, then puts them where the counts of the
experts before it say, and enters its tiles in a plan. The GEMMs have a program for as many tiles as the captured number
of tokens could fill; those past the plan's length do nothing.
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, contract
from capwise.ops.launch import block, jit, on_triton, power_of_two, tl


def route_reference(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    # What is no number counts as least: padded rows then still name experts.
    plain = torch.where(logits.isnan(), float("-inf"), logits.float())
    experts = plain.sort(dim=1, descending=True, stable=True).indices[:, :k]
    chosen = torch.softmax(plain, 1).gather(1, experts)
    return (chosen / chosen.sum(1, keepdim=True)).to(logits.dtype), experts.int()


def experts_reference(
    u: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Expert after expert over all rows, the rows of other experts masked: no row count is asked of the device."""
    dtype, inner = u.dtype, down.shape[2]
    # Dense copies: what a product rounds to must not depend on how its arguments lie.
    plain = u.float().contiguous()

    def rnd(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).float()

    parts = torch.zeros(*experts.shape, u.shape[1], device=u.device)
    for e in range(gate_up.shape[0]):
        both = rnd(plain @ gate_up[e].float().contiguous().T)
        gate, up = both[:, :inner], both[:, inner:]
        act = rnd(rnd(gate / (1.0 + torch.exp(-gate))) * up)
        y = rnd(act @ down[e].float().contiguous().T)
        mine = experts == e
        parts = torch.where(mine[..., None], rnd(y[:, None] * weights.float()[..., None]), parts)
    return parts.sum(1).to(dtype)


@jit
def _moe_route_kernel(
    logits_ptr, weights_ptr, experts_ptr,
    tokens, number, logits_row, logits_column,
    K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None].to(tl.int64)
    e = tl.arange(0, BLOCK_E)[None, :]
    logits_at = token * logits_row + e * logits_column
    inside = (token < tokens) & (e < number)
    x = tl.load(logits_ptr + logits_at, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    p = tl.exp(x - tl.max(x, 1)[:, None])
    p = p / tl.sum(p, 1)[:, None]
    # Floats as integers of the same order, so that what was chosen can lie below minus infinity. 0 for both zeros.
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    rank = tl.where(e < number, bits ^ ((bits >> 31) & 0x7FFFFFFF), -2147483648)
    place = tl.arange(0, BLOCK_K)[None, :]
    chosen = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
    experts = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.int32)
    for j in tl.static_range(K):
        best = tl.argmax(rank, 1, tie_break_left=True)[:, None]
        weight = tl.sum(tl.where(e == best, p, 0.0), 1)[:, None]
        chosen = tl.where(place == j, weight, chosen)
        experts = tl.where(place == j, best, experts)
        rank = tl.where(e == best, -2147483648, rank)
    weights = chosen / tl.sum(chosen, 1)[:, None]
    out = (token < tokens) & (place < K)
    tl.store(weights_ptr + token * K + place, weights.to(weights_ptr.dtype.element_ty), mask=out)
    tl.store(experts_ptr + token * K + place, experts, mask=out)


@jit
def _chosen(pair, experts_ptr, tokens, experts_row, experts_column, K: tl.constexpr):
    """The expert of some pairs, int64 [N]; -1 past the last."""
    at = (pair // K) * experts_row + (pair % K) * experts_column
    return tl.load(experts_ptr + at, mask=pair < tokens.to(tl.int64) * K, other=-1)


@jit
def _moe_count_kernel(
    experts_ptr, counts_ptr,
    tokens, experts_row, experts_column,
    K: tl.constexpr, BLOCK: tl.constexpr,
):
    """How many pairs name the expert that this program is of."""
    expert = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, tokens * K, BLOCK):
        pair = first + tl.arange(0, BLOCK).to(tl.int64)
        total += (_chosen(pair, experts_ptr, tokens, experts_row, experts_column, K) == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(total, 0))


@jit
def _moe_place_kernel(
    experts_ptr, counts_ptr, sorted_ptr, plan_ptr,
    tokens, number, experts_row, experts_column,
    K: tl.constexpr, TILE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK: tl.constexpr,
):
    """Puts the pairs of one expert behind those of the experts before it, in order, and its tiles into the plan: their
    number, and expert, first place and places of each."""
    expert = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    counts = tl.load(counts_ptr + e, mask=e < number, other=0)
    tiles = (counts + TILE - 1) // TILE
    start = tl.sum(tl.where(e < expert, counts, 0), 0)
    count = tl.sum(tl.where(e == expert, counts, 0), 0)
    first_tile = tl.sum(tl.where(e < expert, tiles, 0), 0)
    if expert == 0:
        tl.store(plan_ptr, tl.sum(tiles, 0))
    for first in range(0, (count + TILE - 1) // TILE, BLOCK):
        tile = first + tl.arange(0, BLOCK)
        at = plan_ptr + 1 + 3 * (first_tile + tile)
        mine = tile * TILE < count
        tl.store(at, expert + tile * 0, mask=mine)
        tl.store(at + 1, start + tile * TILE, mask=mine)
        tl.store(at + 2, tl.minimum(count - tile * TILE, TILE), mask=mine)
    for first in range(0, tokens * K, BLOCK):
        pair = first + tl.arange(0, BLOCK).to(tl.int64)
        mine = _chosen(pair, experts_ptr, tokens, experts_row, experts_column, K) == expert
        place = start + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(sorted_ptr + place, pair.to(tl.int32), mask=mine)
        start += tl.sum(mine.to(tl.int32), 0)


@jit
def _product(a, b, total):
    """total + a b; exact products of float32, which tensor cores would shorten."""
    return tl.dot(a, b, total, input_precision="ieee")


@jit
def _moe_gate_up_kernel(
    u_ptr, gate_up_ptr, sorted_ptr, plan_ptr, act_ptr,
    hidden, inner, u_row, u_column, gate_up_expert, gate_up_row, gate_up_column,
    K: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr,
):
    """act [places, I] of the pairs in one tile of the plan."""
    tile = tl.program_id(0)
    if tile < tl.load(plan_ptr):
        expert = tl.load(plan_ptr + 1 + 3 * tile).to(tl.int64)
        place = tl.load(plan_ptr + 2 + 3 * tile).to(tl.int64) + tl.arange(0, TILE)
        there = (tl.arange(0, TILE) < tl.load(plan_ptr + 3 + 3 * tile))[:, None]
        token = tl.load(sorted_ptr + place[:, None], mask=there, other=0).to(tl.int64) // K
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        gate_at = gate_up_ptr + expert * gate_up_expert + n.to(tl.int64) * gate_up_row
        up_at = gate_at + inner.to(tl.int64) * gate_up_row
        gate = tl.zeros((TILE, BLOCK_N), dtype=tl.float32)
        up = tl.zeros((TILE, BLOCK_N), dtype=tl.float32)
        for first in range(0, hidden, BLOCK_H):
            h = first + tl.arange(0, BLOCK_H)
            u = tl.load(u_ptr + token * u_row + h[None, :] * u_column, mask=there & (h < hidden)[None, :], other=0.0)
            inside = (h < hidden)[:, None] & (n < inner)
            gate = _product(u, tl.load(gate_at + h[:, None] * gate_up_column, mask=inside, other=0.0), gate)
            up = _product(u, tl.load(up_at + h[:, None] * gate_up_column, mask=inside, other=0.0), up)
        dtype = act_ptr.dtype.element_ty
        gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
        act = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up
        tl.store(act_ptr + place[:, None] * inner + n, act.to(dtype), mask=there & (n < inner))


@jit
def _moe_down_kernel(
    act_ptr, down_ptr, weights_ptr, sorted_ptr, plan_ptr, y_ptr,
    hidden, inner, weights_row, weights_column, down_expert, down_row, down_column,
    K: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_I: tl.constexpr,
):
    """Weighted y [pairs, H] of the pairs in one tile of the plan."""
    tile = tl.program_id(0)
    if tile < tl.load(plan_ptr):
        expert = tl.load(plan_ptr + 1 + 3 * tile).to(tl.int64)
        place = tl.load(plan_ptr + 2 + 3 * tile).to(tl.int64) + tl.arange(0, TILE)
        there = (tl.arange(0, TILE) < tl.load(plan_ptr + 3 + 3 * tile))[:, None]
        pair = tl.load(sorted_ptr + place[:, None], mask=there, other=0).to(tl.int64)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        down_at = down_ptr + expert * down_expert + n.to(tl.int64) * down_row
        y = tl.zeros((TILE, BLOCK_N), dtype=tl.float32)
        for first in range(0, inner, BLOCK_I):
            i = first + tl.arange(0, BLOCK_I)
            act = tl.load(act_ptr + place[:, None] * inner + i[None, :], mask=there & (i < inner)[None, :], other=0.0)
            inside = (i < inner)[:, None] & (n < hidden)
            y = _product(act, tl.load(down_at + i[:, None] * down_column, mask=inside, other=0.0), y)
        weight_at = (pair // K) * weights_row + (pair % K) * weights_column
        weight = tl.load(weights_ptr + weight_at, mask=there, other=0.0).to(tl.float32)
        dtype = y_ptr.dtype.element_ty
        y = y.to(dtype).to(tl.float32) * weight
        tl.store(y_ptr + pair * hidden + n, y.to(dtype), mask=there & (n < hidden))


@jit
def _moe_sum_kernel(
    y_ptr, experts_ptr, out_ptr,
    tokens, number, hidden, experts_row, experts_column,
    K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None].to(tl.int64)
    h = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    total = tl.zeros((BLOCK_T, BLOCK), dtype=tl.float32)
    for j in tl.static_range(K):
        expert_at = token * experts_row + j * experts_column
        expert = tl.load(experts_ptr + expert_at, mask=token < tokens, other=-1)
        there = (expert >= 0) & (expert < number) & (h < hidden)
        total += tl.load(y_ptr + (token * K + j) * hidden + h, mask=there, other=0.0).to(tl.float32)
    inside = (token < tokens) & (h < hidden)
    tl.store(out_ptr + token * hidden + h, total.to(out_ptr.dtype.element_ty), mask=inside)


def _launch_route(logits, weights, experts) -> None:
    (tokens, number), k = logits.shape, weights.shape[1]
    block_t = block(tokens, logits, gpu=4, cpu=64)
    _moe_route_kernel[(-(-tokens // block_t),)](
        logits,
        weights,
        experts,
        tokens,
        number,
        *logits.stride(),
        K=k,
        BLOCK_K=power_of_two(k),
        BLOCK_T=block_t,
        BLOCK_E=power_of_two(number),
    )


def tile_rows(pairs: int, number: int, most: int = 128) -> int:
    """Rows of a tile: about what an expert has if the pairs spread evenly; 16 is the least that a product takes."""
    return min(max(power_of_two(-(-pairs // number)), 16), most)


def _launch_experts(u, weights, experts, gate_up, down, out) -> None:
    (tokens, k), (number, hidden, inner) = experts.shape, down.shape
    pairs = tokens * k
    # Not all targets have matrix instructions for float32: what is unrolled in their place is kept small.
    most, edge = (128, 64) if u.dtype != torch.float32 else (16, 32)
    tile = tile_rows(pairs, number, most)
    # Every expert may have a tile that is not full, and a tile has at least one pair.
    tiles = min(pairs // tile + number, pairs)
    places = u.new_empty(pairs, dtype=torch.int32)
    counts, plan = u.new_empty(number, dtype=torch.int32), u.new_empty(1 + 3 * tiles, dtype=torch.int32)
    act, y = u.new_empty(pairs, inner), u.new_empty(pairs, hidden)
    scan = block(pairs, u, gpu=1024, cpu=64)
    strides = experts.stride()
    _moe_count_kernel[(number,)](experts, counts, tokens, *strides, K=k, BLOCK=scan)
    _moe_place_kernel[(number,)](
        experts,
        counts,
        places,
        plan,
        tokens,
        number,
        *strides,
        K=k,
        TILE=tile,
        BLOCK_E=power_of_two(number),
        BLOCK=scan,
    )
    edges = {"TILE": tile, "num_warps": 8 if tile > 64 else 4}
    block_n, block_k = max(16, block(inner, u, gpu=edge, cpu=256)), max(16, block(hidden, u, gpu=edge, cpu=256))
    _moe_gate_up_kernel[(tiles, -(-inner // block_n))](
        u,
        gate_up,
        places,
        plan,
        act,
        hidden,
        inner,
        *u.stride(),
        *gate_up.stride(),
        K=k,
        BLOCK_N=block_n,
        BLOCK_H=block_k,
        **edges,
    )
    block_n, block_k = max(16, block(hidden, u, gpu=2 * edge, cpu=256)), max(16, block(inner, u, gpu=edge, cpu=256))
    _moe_down_kernel[(tiles, -(-hidden // block_n))](
        act,
        down,
        weights,
        places,
        plan,
        y,
        hidden,
        inner,
        *weights.stride(),
        *down.stride(),
        K=k,
        BLOCK_N=block_n,
        BLOCK_I=block_k,
        **edges,
    )
    block_t, block_h = block(tokens, u, gpu=2, cpu=64), block(hidden, u, gpu=1024, cpu=4096)
    _moe_sum_kernel[(-(-tokens // block_t), -(-hidden // block_h))](
        y, experts, out, tokens, number, hidden, *strides, K=k, BLOCK_T=block_t, BLOCK=block_h
    )


@torch.library.custom_op("capwise::moe_route", mutates_args=())
def moe_route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k experts of each token and their weights.

    Args:
        logits: [T, E], any strides. k: at most E.

    Returns:
        weights [T, k] in the dtype of the logits and experts int32 [T, k], dense, the largest weight first.

    Raises:
        ValueError: k is not in 1..E.
    """
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"moe_route: k: expected 1 to {logits.shape[1]}, the number of experts; got {k}")
    if not on_triton(logits):
        return route_reference(logits, k)
    shape = (logits.shape[0], k)
    weights, experts = logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int32)
    if shape[0]:
        _launch_route(logits, weights, experts)
    return weights, experts


@moe_route.register_fake
def _(logits, k):
    shape = (logits.shape[0], k)
    return logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int32)


def _check(u, weights, experts, gate_up, down) -> None:
    """Raises ValueError where the shapes of one call contradict each other."""
    number, hidden, inner = down.shape
    k = experts.shape[1]
    for name, tensor, shape in (
        ("u", u, (u.shape[0], hidden)),
        ("weights", weights, (u.shape[0], k)),
        ("experts", experts, (u.shape[0], k)),
        ("gate_up", gate_up, (number, 2 * inner, hidden)),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"moe_experts: {name}: expected {shape}; got {tuple(tensor.shape)}")


@torch.library.custom_op("capwise::moe_experts", mutates_args=())
def moe_experts(
    u: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """What the routed experts give, weighted and summed.

    Args:
        u: [T, H]. weights: [T, k]. experts: int32 [T, k]. Any strides.
        gate_up: [E, 2*I, H], gate rows before up rows. down: [E, H, I]. Any strides.

    Returns:
        [T, H] in u's dtype, dense.

    Raises:
        ValueError: shapes that contradict each other.
    """
    _check(u, weights, experts, gate_up, down)
    if not on_triton(u):
        return experts_reference(u, weights, experts, gate_up, down)
    out = u.new_empty(u.shape)
    if out.numel():
        _launch_experts(u, weights, experts, gate_up, down, out)
    return out


@moe_experts.register_fake
def _(u, weights, experts, gate_up, down):
    return u.new_empty(u.shape)


@contract("capwise::moe_route")
def route_contract() -> Contract:
    return Contract(
        rows={
            "logits": Rows("T", None, tail=Any()),
            "out0": Rows("T", None, write=True),
            "out1": Rows("T", None, write=True),
        },
        locality="row",
    )


@contract("capwise::moe_experts")
def experts_contract() -> Contract:
    """Row-local as a block: a padded row moves the tiles of others about, and no value of theirs."""
    return Contract(
        rows={
            "u": Rows("T", None, tail=Any()),
            "weights": Rows("T", None, tail=Any()),
            "experts": Rows("T", None, tail=Any()),
            "gate_up": Axes((None, None, None)),
            "down": Axes((None, None, None)),
            "out": Rows("T", None, write=True),
        },
        locality="row",
    )
