"""ATen, one row an op family: the table is the documentation.

A row says how rows of an op see each other along its dimensions, and which value of a padded row changes nothing
(`neutral`). In-place and `out=` forms take the row of their functional op. An op that has no row, and whose tags and
schema tell nothing, is unknown: a seam.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

Family = Literal[
    "pointwise",  # every output element from the elements at its own place
    "view",  # no data moves; axes are re-dealt (which view: `how`)
    "reduce",  # mixes along `dim`; `neutral` rows change nothing
    "scan",  # along `dim`, row i from rows <= i: a tail at the end stays there
    "normalise",  # mixes along `dim`, keeps the shape
    "sort",  # orders along `dim`; `neutral` rows come last
    "contract",  # sums products over shared letters of `how`
    "gather",  # rows chosen by integer values
    "scatter",  # rows written at integer values; `neutral` source rows change nothing
    "search",  # position of values in a sorted sequence
    "join",  # concatenation along `dim`
    "factory",  # made from sizes and scalars
    "convolution",
    "attention",
    "inner",  # leading dimensions are rows; those that `how` or `dim` names mix, with no neutral value
    "channels",  # elementwise with one parameter a channel (dimension 1), unless it trains
    "solve",  # one triangular system a leading row, one right-hand side a free column
    "pairs",  # rows of two operands against each other
    "grouped",  # each row by the matrix of its group; `offs` says where groups end
    "bins",  # counts values in fixed bins; a value outside of them counts nowhere
    "patch",  # a copy of the first operand in which the second takes some places
    "data",  # output sizes, or what is read, only the data decides: always a seam
    "mix",  # mixes along `dim` (all where None); no neutral value exists
]


@dataclass(frozen=True)
class Row:
    """One family member.

    dim: name of the argument that holds the dimension(s); None for every dimension. neutral: value of a padded row
    that leaves the result alone, "-max"/"max" for the lowest and highest of the dtype, "last" for a copy of the last
    live row, None if there is none.
    how: what distinguishes members (the view's name, the letters of a contraction, what is done on collision).
    """

    family: Family
    dim: str | None = None
    neutral: float | int | bool | str | None = None
    how: str = ""


def _rows(names: str, row: Row) -> dict[str, Row]:
    return {name: row for name in names.split()}


TABLE: Mapping[str, Row] = {
    # -- elementwise beyond what the `pointwise` tag covers
    **_rows(
        "_to_copy clone lift_fresh_copy lift_fresh masked_fill where to contiguous type_as conj_physical "
        "floor_divide true_divide zero gelu silu mish hardswish softplus logit clamp_max clamp_min __and__ __or__ "
        "__xor__ relu6 hardtanh leaky_relu elu celu selu prelu _prelu_kernel addcmul addcdiv lerp copysign "
        "native_dropout bernoulli uniform normal exponential cauchy log_normal geometric random",
        Row("pointwise"),
    ),
    **_rows("copy fill", Row("pointwise", how="move")),  # what is written is what was read
    # -- views
    **{n: Row("view", how="reshape") for n in ("view", "_unsafe_view", "reshape", "_reshape_alias", "flatten")},
    **{n: Row("view", how=n) for n in ("permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select")},
    **{n: Row("view", how=n) for n in ("expand", "split", "split_with_sizes", "unbind", "as_strided", "diagonal")},
    **_rows("alias detach", Row("view", how="same")),
    **_rows("view_as", Row("view", how="reshape")),
    "unfold": Row("view", how="unfold"),
    **_rows("view_as_real view_as_complex", Row("view", how="complex")),
    # -- reductions
    **_rows("sum nansum count_nonzero", Row("reduce", "dim", 0)),
    **_rows("prod", Row("reduce", "dim", 1)),
    **_rows("amax max argmax", Row("reduce", "dim", "-max")),
    **_rows("amin min argmin", Row("reduce", "dim", "max")),
    **_rows("any", Row("reduce", "dim", False)),
    **_rows("all", Row("reduce", "dim", True)),
    **_rows("logsumexp", Row("reduce", "dim", -math.inf)),
    **_rows("norm linalg_vector_norm", Row("reduce", "dim", 0)),
    **_rows("aminmax", Row("reduce", "dim", "last")),
    **_rows("mean var std var_mean std_mean median nanmedian mode kthvalue dist", Row("reduce", "dim", None)),
    # -- along a dimension, in order
    **_rows("cumsum cumprod cummax cummin logcumsumexp _cummax_helper _cummin_helper", Row("scan", "dim")),
    # -- shape-keeping mixes
    **_rows("_softmax softmax _log_softmax log_softmax _safe_softmax", Row("normalise", "dim", -math.inf)),
    **_rows("native_layer_norm layer_norm rms_norm _fused_rms_norm", Row("normalise", "normalized_shape", None)),
    **_rows("native_group_norm", Row("inner", how="after 1")),
    **_rows("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training", Row("channels")),
    **_rows("renorm", Row("mix")),
    **_rows("flip", Row("mix", "dims")),
    **_rows("roll", Row("mix", "dims")),
    **_rows("rot90 bincount repeat_interleave _pdist_forward _embedding_bag", Row("mix")),
    **_rows("cdist _cdist_forward", Row("pairs")),
    **_rows("histc", Row("bins")),
    # Backward forms sum over what the forward form spread; they are not served.
    **_rows(
        "_adaptive_avg_pool2d_backward avg_pool2d_backward max_pool2d_with_indices_backward convolution_backward "
        "embedding_dense_backward native_group_norm_backward native_layer_norm_backward",
        Row("mix"),
    ),
    # -- order
    **_rows("sort", Row("sort", "dim", "by direction")),
    **_rows("argsort", Row("sort", "dim", "by direction")),
    **_rows("topk", Row("sort", "dim", "by direction")),
    # -- contractions: operands by position, then the result
    "mm": Row("contract", how="0:mk,1:kn->mn"),
    "bmm": Row("contract", how="0:bmk,1:bkn->bmn"),
    "addmm": Row("contract", how="1:mk,2:kn->mn"),
    "baddbmm": Row("contract", how="1:bmk,2:bkn->bmn"),
    "mv": Row("contract", how="0:mk,1:k->m"),
    "addmv": Row("contract", how="1:mk,2:k->m"),
    "dot": Row("contract", how="0:k,1:k->"),
    "linear": Row("contract", how="0:...k,1:nk->...n"),
    "_int_mm": Row("contract", how="0:mk,1:kn->mn"),
    "_grouped_mm": Row("grouped"),
    "linalg_solve_triangular": Row("solve"),
    # -- rows chosen and rows written
    **{n: Row("gather", how=n) for n in ("index", "index_select", "embedding", "gather", "take")},
    "_unsafe_index": Row("gather", how="index"),
    "index_put": Row("scatter", how="index_put"),
    "_unsafe_index_put": Row("scatter", how="index_put"),
    "index_add": Row("scatter", "dim", 0, "index_add"),
    "index_copy": Row("scatter", "dim", None, "index_copy"),
    "index_fill": Row("scatter", "dim", None, "index_fill"),
    "scatter": Row("scatter", "dim", None, "scatter"),
    "scatter_add": Row("scatter", "dim", 0, "scatter_add"),
    "scatter_reduce": Row("scatter", "dim", None, "scatter_reduce"),
    "index_reduce": Row("scatter", "dim", None, "index_reduce"),
    "slice_scatter": Row("patch", "dim", how="slice"),
    "select_scatter": Row("patch", "dim", how="select"),
    "masked_scatter": Row("patch", how="masked"),
    **_rows("diagonal_scatter as_strided_scatter", Row("patch", how="strange")),
    **_rows("nonzero masked_select unique_dim _unique2 unique_consecutive multinomial", Row("data")),
    "searchsorted": Row("search", how="searchsorted"),
    "bucketize": Row("search", how="bucketize"),
    # -- assembling
    **{n: Row("join", "dim", how=n) for n in ("cat", "stack", "constant_pad_nd", "repeat", "tril", "triu")},
    # -- from sizes
    **{n: Row("factory", how="zeros") for n in ("zeros", "new_zeros", "zeros_like")},
    **{n: Row("factory", how="ones") for n in ("ones", "new_ones", "ones_like")},
    **{n: Row("factory", how="full") for n in ("full", "new_full", "full_like")},
    **{
        n: Row("factory", how="empty")
        for n in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")
    },
    **{n: Row("factory", how=n) for n in ("arange", "scalar_tensor", "eye", "linspace")},
    **{n: Row("factory", how="random") for n in ("rand", "randn", "randint", "randperm", "rand_like", "randn_like")},
    # -- inner dimensions that mix, a sample a leading row
    **_rows(
        "avg_pool2d _adaptive_avg_pool2d max_pool2d_with_indices adaptive_max_pool2d upsample_nearest2d "
        "upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa "
        "_upsample_bicubic2d_aa reflection_pad2d replication_pad2d linalg_inv_ex linalg_cholesky_ex _linalg_solve_ex "
        "linalg_lu_factor_ex linalg_qr _linalg_det _linalg_eigh _linalg_svd",
        Row("inner", how="last 2"),
    ),
    **_rows(
        "avg_pool3d _adaptive_avg_pool3d max_pool3d_with_indices upsample_nearest3d upsample_trilinear3d "
        "reflection_pad3d replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle",
        Row("inner", how="last 3"),
    ),
    **_rows(
        "avg_pool1d adaptive_avg_pool1d max_pool1d_with_indices upsample_nearest1d upsample_linear1d reflection_pad1d "
        "replication_pad1d",
        Row("inner", how="last 1"),
    ),
    **_rows("grid_sampler_2d grid_sampler_3d im2col col2im", Row("inner", how="after 1")),
    **_rows("_fft_r2c _fft_c2r _fft_c2c linalg_cross", Row("inner", "dim")),
    # -- windows and attention
    **_rows("convolution conv1d conv2d conv3d", Row("convolution")),
    **_rows(
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_attention_math "
        "_scaled_dot_product_cudnn_attention scaled_dot_product_attention",
        Row("attention"),
    ),
}


_ABSENT = object()


# Schemas never change, and reading one crosses into C++: what is asked of an overload is asked once.
@functools.cache
def base_name(op: torch._ops.OpOverload) -> str:
    """The functional op's name: `add_`, `add.out` and `add.Tensor` are all `add`."""
    name = op._schema.name.split("::")[-1]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


@functools.cache
def row(op: torch._ops.OpOverload) -> Row | None:
    """The row of an ATen overload: from the table, else from its tags, else None (unknown)."""
    return _row(op, base_name(op)) if is_core(op) else None


def _row(op: torch._ops.OpOverload, name: str) -> Row | None:
    if name in TABLE:
        return TABLE[name]
    functional = getattr(torch.ops.aten, name, None)
    overloads = [op] if functional is None else [op, *(getattr(functional, o) for o in functional.overloads())]
    if any(torch.Tag.pointwise in o.tags for o in overloads):
        return Row("pointwise")
    if torch.Tag.reduction in op.tags:
        return Row("reduce", "dim", None)
    return None


def is_core(op: torch._ops.OpOverload) -> bool:
    """Whether PyTorch itself says what the op means."""
    return op.namespace in ("aten", "prims")


@functools.cache
def elementwise(op: torch._ops.OpOverload) -> Row | None:
    """The row of an op of which each element of a result comes from the elements at its own place; of a `_foreach` op,
    in the tensors at its own position of the lists. None of any other op."""
    one = _row(op, base_name(op).removeprefix("_foreach_")) if is_core(op) else None
    return one if one is not None and one.family == "pointwise" else None


@functools.cache
def overwritten(op: torch._ops.OpOverload) -> str | None:
    """The argument that the op's in-place form puts its result in, so that the `out=` form may be given it as `out`
    too; None where there is no such form."""
    in_place = getattr(torch.ops.aten, f"{base_name(op)}_", None) if is_core(op) else None
    return op._schema.arguments[0].name if in_place is not None else None


@functools.cache
def syncs(op: torch._ops.OpOverload) -> bool:
    """Whether the op reads a device value on the host, by its tags."""
    return torch.Tag.data_dependent_output in op.tags


@functools.cache
def is_random(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


@functools.cache
def _arguments(op: torch._ops.OpOverload) -> Mapping[str, tuple[int | None, Any]]:
    """Name -> position (None where it must be named) and default (_ABSENT where it has none)."""
    return {
        a.name: (None if a.kwarg_only else i, a.default_value if a.has_default_value() else _ABSENT)
        for i, a in enumerate(op._schema.arguments)
    }


def draws(op: torch._ops.OpOverload, args: tuple, kwargs: Mapping) -> bool:
    """Whether this call draws random numbers: a dropout that drops nothing does not."""
    off = {"dropout_p": (0, 0.0), "p": (0, 0.0), "train": (False,)}
    values = ((argument(op, args, kwargs, name, ()), none) for name, none in off.items())
    return is_random(op) and not any(value in none for value, none in values)


def argument(op: torch._ops.OpOverload, args: tuple, kwargs: Mapping, name: str, default=None):
    """The value of a schema argument in a call, its schema default where the call leaves it out."""
    place = _arguments(op).get(name)
    if place is None:
        return default
    if name in kwargs:
        return kwargs[name]
    position, value = place
    if position is not None and position < len(args):
        return args[position]
    return default if value is _ABSENT else value


def has_argument(op: torch._ops.OpOverload, name: str) -> bool:
    return name in _arguments(op)


_NOTED: dict[torch._ops.OpOverload, tuple[str, ...]] = {}


@functools.cache
def declared_written(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Names of the arguments that the schema says are written."""
    return tuple(a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


def note_written(op: torch._ops.OpOverload, names: tuple[str, ...]) -> None:
    """Notes arguments that an op writes though its schema does not say so."""
    _NOTED[op] = names
    written.cache_clear()


def undeclared_written(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Names of the arguments that are known to be written and that the schema does not name."""
    return _NOTED.get(op, ())


@functools.cache
def written(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Names of the arguments that are written: by the schema's word, and those that were noted."""
    return (*declared_written(op), *undeclared_written(op))
