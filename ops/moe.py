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
"""

from __future__ import annotations

import torch

from capwise.ops.contract import Any, Axes, Contract, Rows, contract


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
    return route_reference(logits, k)


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
    return experts_reference(u, weights, experts, gate_up, down)


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
