"""The sum of a tensor over the ranks of a process group.

    out = sum over ranks of x        every rank gives the same extents

x [N, ...] -> out [N, ...]. Row-local on each rank: row i of the sum needs row i of every rank, and padded rows of all
ranks meet each other only. A graph holds it like any launch, provided that every rank replays the same one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist  # noqa: F401  registers the collectives, where torch has any

from capwise.ops.contract import Any, Contract, Rows, contract


def all_reduce(x: torch.Tensor, group: str) -> torch.Tensor:
    """The sum over a process group.

    Args:
        x: [N, ...], the same extents on every rank.
        group: name of the process group (`ProcessGroup.group_name`).

    Returns:
        a new tensor of x's shape and dtype, dense.
    """
    collectives = torch.ops._c10d_functional
    return collectives.wait_tensor(collectives.all_reduce(x.contiguous(), "sum", group))


# One op and not a composition: a recording of the parts would replay the sum and not the wait for it.
_LIBRARY = torch.library.Library("capwise", "FRAGMENT")
_LIBRARY.define("all_reduce(Tensor x, str group) -> Tensor")
_LIBRARY.impl("all_reduce", all_reduce, "CompositeExplicitAutograd")


@torch.library.register_fake("capwise::all_reduce", lib=_LIBRARY)
def _(x, group):
    return x.new_empty(x.shape)


@contract("capwise::all_reduce")
def all_reduce_contract() -> Contract:
    return Contract(
        rows={"x": Rows("T", None, tail=Any()), "out": Rows("T", None, write=True)},
        locality="row",
    )
