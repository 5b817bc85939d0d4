"""Weights of a checkpoint, or of the transformers model, into ours, and back.

Each name that a checkpoint may hold goes to a region of one of our parameters. Several names may lead to one region
(projections stored apart or fused, experts one by one or stacked, the n-gram table whole or in parts): whatever comes,
every region must be filled exactly once. Names and shapes are checked before the first byte is copied.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.decoder import Decoder, DecoderLayer
from capwise.models.qwen4_exp.layers import Experts, GatedDeltaNet, HyperConnection, IndexedAttention
from capwise.models.qwen4_exp.ple import PLE

INDEX = "model.safetensors.index.json"
# Longest first. What stands before a text model's own names, by who wrote the checkpoint.
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
_VISION = re.compile(r"^(model\.)?visual\.")
_SHOWN = 6


class LoadError(ValueError):
    """A checkpoint that does not fit: names that are missing, unexpected, or of another shape. Nothing was loaded."""


@dataclass(frozen=True)
class Target:
    """Where one tensor of a checkpoint goes: rows of one of our parameters, in the shape that the checkpoint has.

    constant: the values that a buffer of the checkpoint must have; nothing is copied.
    """

    name: str
    place: torch.Tensor | None
    shape: tuple[int, ...]
    constant: tuple[int, ...] | None = None
    canonical: bool = True


Source = Mapping[str, torch.Tensor] | str | PathLike


def load_state_dict(model: Decoder, source: Source, mtp: nn.Module | None = None) -> None:
    """Fills a decoder, and draft layers where given.

    Args:
        source: a transformers `state_dict()` or the tensors of a released checkpoint; a .safetensors file; a folder
            with one, or with a sharded index. Text-only and vision-language names are taken; the vision part is left
            out, and so is `mtp.*` where no `mtp` is given.

    Raises:
        LoadError: names what is missing, unexpected or mis-shaped, or a constant of the n-gram hash that differs.
    """
    with _opened(source) as tensors:
        targets = {target.name: target for target in _targets(model, mtp)}
        found, unexpected = _matched(tensors, targets, mtp is not None)
        _check(tensors, targets, found, unexpected)
        with torch.no_grad():
            for key, name in found.items():
                place = targets[name].place
                if place is not None:
                    place.copy_(tensors.read(key).reshape(place.shape))


def to_transformers(model: Decoder, mtp: nn.Module | None = None) -> dict[str, torch.Tensor]:
    """The weights under the names of the transformers model (`model.`, `lm_head.`; draft layers as `mtp.`), copied."""
    result: dict[str, torch.Tensor] = {}
    for target in _targets(model, mtp):
        if not target.canonical:
            continue
        top = target.name.startswith(("lm_head.", "mtp."))
        value = torch.tensor(target.constant) if target.place is None else target.place.detach().clone()
        result[target.name if top else f"model.{target.name}"] = value.reshape(target.shape)
    return result


# ------------------------------------------------------------------------------------------------------------ sources
class _Tensors:
    """Names and shapes at once, values one by one."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._readers: dict[str, Callable[[], torch.Tensor]] = {}

    def add(self, key: str, shape: Any, read: Callable[[], torch.Tensor]) -> None:
        self.shapes[key] = tuple(shape)
        self._readers[key] = read

    def read(self, key: str) -> torch.Tensor:
        return self._readers[key]()


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[_Tensors]:
    tensors = _Tensors()
    if isinstance(source, Mapping):
        for key, value in source.items():
            tensors.add(key, value.shape, lambda value=value: value)
        yield tensors
        return
    from safetensors import safe_open

    with contextlib.ExitStack() as stack:
        for path in _files(Path(source)):
            file = stack.enter_context(safe_open(str(path), framework="pt"))
            for key in file.keys():
                shape = file.get_slice(key).get_shape()
                tensors.add(key, shape, lambda file=file, key=key: file.get_tensor(key))
        yield tensors


def _files(path: Path) -> list[Path]:
    if path.is_file() and path.suffix == ".safetensors":
        return [path]
    index = path / INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        absent = [name for name in names if not (path / name).is_file()]
        if absent:
            raise LoadError(f"source: expected the {len(names)} files of {index}; missing {', '.join(absent[:_SHOWN])}")
        return [path / name for name in names]
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if not files:
        raise LoadError(f"source: expected a .safetensors file or a folder that holds one; got {path}")
    return files


# ----------------------------------------------------------------------------------------------------------- matching
def _plain(key: str) -> str:
    """A checkpoint's name without what stands before the text model's own names."""
    if key.startswith("mtp."):
        return key
    for prefix in _PREFIXES:
        if key.startswith(prefix):
            key = key[len(prefix) :]
            break
    return key


def _matched(
    tensors: _Tensors, targets: Mapping[str, Target], drafts: bool
) -> tuple[dict[str, str], list[str]]:
    """Keys of the checkpoint -> names of targets; and keys that no target has."""
    found, unexpected = {}, []
    for key in tensors.shapes:
        if _VISION.match(key) or (key.startswith("mtp.") and not drafts):
            continue
        if (name := _plain(key)) in targets:
            found[key] = name
        else:
            unexpected.append(key)
    return found, unexpected


def _check(
    tensors: _Tensors, targets: Mapping[str, Target], found: Mapping[str, str], unexpected: list[str]
) -> None:
    shapes = [
        f"{key} {list(tensors.shapes[key])}, expected {list(targets[name].shape)}"
        for key, name in found.items()
        if tensors.shapes[key] != targets[name].shape
    ]
    missing, overlapping = _coverage(targets, list(found.values()))
    wrong = []
    if not (unexpected or shapes or missing or overlapping):
        wrong = [
            f"{key} {tensors.read(key).tolist()}, expected {list(targets[name].constant or ())}"
            for key, name in found.items()
            if targets[name].constant is not None and tuple(tensors.read(key).tolist()) != targets[name].constant
        ]
    parts = (
        ("missing", missing), ("unexpected", unexpected), ("given twice", overlapping), ("mis-shaped", shapes),
        ("another hash", wrong),
    )  # fmt: skip
    said = [f"{what}: {_listed(names)}" for what, names in parts if names]
    if said:
        raise LoadError("checkpoint does not fit the model; " + "; ".join(said))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _coverage(targets: Mapping[str, Target], given: list[str]) -> tuple[list[str], list[str]]:
    """Canonical names whose region nothing fills; names that fill a region which another one fills too."""
    held: dict[int, list[tuple[int, int, str]]] = {}
    for name in given:
        if (span := _span(targets[name])) is not None:
            held.setdefault(span[0], []).append((span[1], span[2], name))
    overlapping = []
    for spans in held.values():
        spans.sort()
        overlapping += [b[2] for a, b in zip(spans, spans[1:]) if b[0] < a[1]]
    missing = []
    for target in targets.values():
        span = _span(target)
        if target.canonical and span is not None and not _filled(span, held.get(span[0], [])):
            missing.append(target.name)
    return missing, overlapping


def _span(target: Target) -> tuple[int, int, int] | None:
    """A region: which storage, from which element to which. Every region is dense."""
    if target.place is None:
        return None
    start, size = target.place.storage_offset(), target.place.numel()
    return target.place.untyped_storage()._cdata, start, start + size


def _filled(span: tuple[int, int, int], held: list[tuple[int, int, str]]) -> bool:
    at = span[1]
    for start, end, _ in held:
        if start <= at < end:
            at = end
    return at >= span[2]


# ------------------------------------------------------------------------------------------------------------ targets
def _targets(model: Decoder, mtp: nn.Module | None) -> Iterator[Target]:
    config = model.config
    yield _whole("embed_tokens.weight", model.embed)
    yield _whole("lm_head.weight", model.head)
    for i, layer in enumerate(model.layers):
        yield from _layer(f"layers.{i}.", layer, config)
    yield from _connection("hyper_connection_mixer.", model.final)
    if mtp is None:
        return
    for name in ("fc_embedding", "fc_hidden"):
        yield _whole(f"mtp.{name}.weight", getattr(mtp, name))
    for name in ("norm_embedding", "norm_hidden"):
        yield _whole(f"mtp.pre_fc_{name}.weight", getattr(mtp, name))
    yield from _layer("mtp.layers.0.", mtp.layer, config)
    yield from _connection("mtp.hyper_connection_mixer.", mtp.final)


def _whole(name: str, place: torch.Tensor, shape: tuple[int, ...] | None = None, canonical: bool = True) -> Target:
    return Target(name, place.detach(), tuple(place.shape) if shape is None else shape, canonical=canonical)


def _rows(prefix: str, place: torch.Tensor, parts: Mapping[str, int], fused: str | None = None) -> Iterator[Target]:
    """Rows of one projection under a name each, and all of them under the fused name where there is one."""
    at = 0
    for name, count in parts.items():
        yield _whole(f"{prefix}{name}.weight", place[at : at + count])
        at += count
    if fused is not None:
        yield _whole(f"{prefix}{fused}.weight", place[:at], canonical=False)


def _layer(prefix: str, layer: DecoderLayer, config: Config) -> Iterator[Target]:
    if isinstance(layer.mixer, GatedDeltaNet):
        yield from _linear(f"{prefix}linear_attn.", layer.mixer, config)
    else:
        yield from _attention(f"{prefix}self_attn.", layer.mixer)
    if layer.ple is not None:
        yield from _ngrams(f"{prefix}ple.", layer.ple, config)
    yield from _connection(f"{prefix}attn_hyper_connection.", layer.mixer_connection)
    yield from _connection(f"{prefix}mlp_hyper_connection.", layer.experts_connection)
    yield from _experts(f"{prefix}mlp.", layer.experts)


def _connection(prefix: str, module: HyperConnection) -> Iterator[Target]:
    yield _whole(f"{prefix}hc_norm.weight", module.norm)
    yield _whole(f"{prefix}input_mix_weight_up.weight", module.up)
    parts = {"input_mix_weight_down": module.lowrank}
    if module.injects:
        parts["block_inject_weight"] = module.hc
    yield from _rows(prefix, module.down, parts)


def _linear(prefix: str, module: GatedDeltaNet, config: Config) -> Iterator[Target]:
    qkv, z, b, a = module.widths
    yield from _rows(prefix, module.in_proj, {"in_proj_qkv": qkv, "in_proj_z": z}, "in_proj_qkvz")
    yield from _rows(prefix, module.in_proj[qkv + z :], {"in_proj_b": b, "in_proj_a": a}, "in_proj_ba")
    channels, taps = module.conv_weight.shape
    yield _whole(f"{prefix}conv1d.weight", module.conv_weight, (channels, 1, taps))
    yield _whole(f"{prefix}A_log", module.A_log)
    yield _whole(f"{prefix}dt_bias", module.dt_bias)
    yield _whole(f"{prefix}norm.weight", module.norm)
    yield _whole(f"{prefix}out_proj.weight", module.out_proj)


def _attention(prefix: str, module: IndexedAttention) -> Iterator[Target]:
    q, k, v, index_q, index_k = module.widths
    yield from _rows(prefix, module.in_proj, {"q_proj": q, "k_proj": k, "v_proj": v}, "qkv_proj")
    yield from _rows(prefix, module.in_proj[q + k + v :], {"indexer.index_qk_proj": index_q + index_k})
    yield _whole(f"{prefix}q_norm.weight", module.q_norm)
    yield _whole(f"{prefix}k_norm.weight", module.k_norm)
    yield _whole(f"{prefix}indexer.q_layernorm.weight", module.index_q_norm)
    yield _whole(f"{prefix}indexer.k_layernorm.weight", module.index_k_norm)
    yield _whole(f"{prefix}o_proj.weight", module.out_proj)


def _experts(prefix: str, module: Experts) -> Iterator[Target]:
    inner, width = module.down.shape[2], module.shared_width
    yield _whole(f"{prefix}gate.weight", module.router)
    yield _whole(f"{prefix}experts.gate_up_proj", module.gate_up)
    yield _whole(f"{prefix}experts.down_proj", module.down)
    for e in range(module.gate_up.shape[0]):
        one = f"{prefix}experts.{e}."
        yield _whole(f"{one}gate_proj.weight", module.gate_up[e, :inner], canonical=False)
        yield _whole(f"{one}up_proj.weight", module.gate_up[e, inner:], canonical=False)
        yield _whole(f"{one}down_proj.weight", module.down[e], canonical=False)
    parts = {"gate_proj": width, "up_proj": width}
    yield from _rows(f"{prefix}shared_expert.", module.shared_in, parts, "gate_up_proj")
    yield _whole(f"{prefix}shared_expert.down_proj.weight", module.shared_down)
    yield _whole(f"{prefix}shared_expert_gate.weight", module.shared_in[2 * width :])


def _ngrams(prefix: str, module: PLE, config: Config) -> Iterator[Target]:
    table, embedding = module.table, f"{prefix}ple_embedding."
    for name, buffer in (
        ("layer_multipliers", module.ids.multipliers),
        ("ngram_heads_vocab_sizes", module.ids.sizes),
        ("ngram_heads_offsets", module.ids.offsets),
    ):
        values = tuple(buffer.tolist())
        yield Target(f"{embedding}{name}", None, (len(values),), values)
    yield _whole(f"{embedding}ngram_embedding.weight", table)
    step = -(-table.shape[0] // config.split_ngram_parts)
    for number, start in enumerate(range(0, table.shape[0], step)):
        rows = table[start : start + step]
        yield _whole(f"{embedding}ngram_embedding.shard_{number}.weight", rows, canonical=False)
    parts = {"key_proj": config.width, "value_proj": config.hidden_size}
    yield from _rows(prefix, module.key_value.weight, parts)
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield _whole(f"{prefix}{name}.weight", getattr(module, name))
    channels, taps = module.short_conv.weight.shape
    yield _whole(f"{prefix}conv1d.weight", module.short_conv.weight, (channels, 1, taps))
