"""What a batch may be: names, dtypes, extents and bounds, checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from capwise.labels import InputError, Spec, bind_extents, check_names, infer, normalise
from capwise.options import Key, Options, nearest
from capwise.trace import argument_names, ordered

DEFAULT_CAPACITY = {"T": 8192}
OTHER_CAPACITY = 64


class Admission:
    """Describes a model's inputs at its first batch, then admits or refuses batches.

    Attributes:
        specs: argument -> description. bounds, capacity: symbol -> (least, most), most. keys: usable keys, most
        specific first. strided: staged inputs that came with a stride. assumptions: what nobody said, in words.
    """

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        self.options = options
        self.specs: dict[str, Spec] = {}
        self.bounds: dict[str, tuple[int, int]] = {}
        self.capacity: dict[str, int] = {}
        self.keys: list[Key] = []
        self.strided: set[str] = set()
        self.assumptions: list[str] = []
        self._described = False
        self._kinds: dict[str, tuple[torch.dtype, torch.device]] = {}
        self._boundaries: list[str] = []
        self._defaults: list[str] = []
        self._names = argument_names(model)
        target = model.forward if isinstance(model, torch.nn.Module) else model
        self._signature = inspect.signature(target)
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = self._signature.parameters.items()
        self._order = list(self._signature.parameters)
        self._needed = [n for n, p in parameters if p.kind in plain and p.default is p.empty]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """A call as argument name -> value; an absent optional is left out."""
        given = self._signature.bind(*args, **kwargs).arguments if args else kwargs
        batch = {name: value for name, value in given.items() if value is not None}
        return self.with_defaults(batch) if self._defaults else batch

    def with_defaults(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with its absent optionals that have a default, once their dtype and device are known; in the order
        of the model's arguments, as a batch that brings them."""
        absent = [n for n in self._defaults if n not in batch and n in self._kinds]
        extents = bind_extents(self.specs, batch) if absent else {}
        for name in absent:
            spec, (dtype, device) = self.specs[name], self._kinds[name]
            if all(s in extents for s in spec.symbols):
                shape = [d.extent(extents) for d in spec.dims]
                batch[name] = torch.full(shape, spec.default, dtype=dtype, device=device)  # type: ignore[arg-type]
        return {n: batch[n] for n in self._order if n in batch} | batch

    def admit(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """The extents of a batch.

        Raises:
            InputError: an argument that contradicts the description, or an extent over its capacity.
        """
        self._check_arguments(batch)
        if not self._described:
            self._describe(batch)
        extents = bind_extents(self.specs, batch)
        for symbol, extent in extents.items():
            low, high = self.bounds[symbol]
            if not low <= extent <= high:
                raise InputError(f"{symbol}: expected an extent from {low} to its capacity {high}; got {extent}")
        self._check_kinds(batch)
        self.check_values(batch)
        for name in self._kinds:
            value = batch.get(name)
            if value is not None and not value.is_contiguous():
                self.strided.add(name)
        return extents

    def _check_arguments(self, batch: Mapping[str, Any]) -> None:
        """Raises InputError for an argument that the model does not take, or one that it needs and that is absent."""
        if self._names is not None:
            for name in batch:
                if name not in self._names:
                    close = nearest(name, self._names)
                    raise InputError(f"{name}: expected an argument of the model: {', '.join(self._names)}{close}")
        for name in self._needed:
            if name not in batch:
                raise InputError(f"{name}: expected a value; got none")

    def check_values(self, batch: Mapping[str, Any]) -> None:
        """What can be checked of values without a sync: boundaries on the host must not decrease.

        Raises:
            InputError: boundaries that decrease.
        """
        for name in self._boundaries:
            value = batch.get(name)
            if value is None or value.device.type != "cpu":
                continue
            starts = value.numpy()
            if (starts[1:] < starts[:-1]).any():
                raise InputError(f"{name}: expected boundaries that do not decrease; got a decrease")

    def signature(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        """What one program serves: the arguments present, their kinds, and what nobody named."""
        return tuple(self._part(name, value) for name, value in batch.items())

    def _part(self, name: str, value: Any) -> tuple[Any, ...]:
        spec = self.specs.get(name)
        if isinstance(value, torch.Tensor):
            fixed = () if spec is not None else (tuple(value.shape), value.stride())
            return (name, value.dtype, value.device, value.dim(), fixed)
        return (name, None if spec is not None and spec.kind in ("int", "live") else value)

    def largest(self) -> dict[str, int]:
        """The largest captured extent of every symbol."""
        largest = dict(self.capacity)
        key = self.keys[0]
        if key:
            largest[key[0]] = max(self.sizes(key), default=largest[key[0]])
        return largest

    def sizes(self, key: Key) -> list[int]:
        """The buckets of a key's first symbol."""
        return [s for s in self.options.capture_sizes if s <= self.capacity[key[0]]] if key else []

    def _describe(self, batch: Mapping[str, Any]) -> None:
        inputs = self.options.inputs
        if inputs is None:
            inputs, said = infer(batch)
            self.assumptions.extend(said)
        specs = ordered(normalise(inputs))
        if self._names is not None:
            check_names(specs, self._names)
        extents = bind_extents(specs, batch)
        symbols = {s for spec in specs.values() for s in spec.symbols}
        for symbol in sorted(symbols):
            self.capacity[symbol] = self._capacity_of(symbol, extents.get(symbol, 0))
            is_int = any(s.kind == "int" and symbol in s.symbols for s in specs.values())
            self.bounds[symbol] = (0 if is_int else 1, self.capacity[symbol])
        self.specs = specs
        self.keys = self._usable_keys(symbols)
        self._defaults = [n for n, s in specs.items() if s.default is not None]
        self._boundaries = [n for n, s in specs.items() if _is_boundary_list(s)]
        self._described = True

    def _capacity_of(self, symbol: str, extent: int) -> int:
        if symbol in self.options.capacity:
            return self.options.capacity[symbol]
        usual = DEFAULT_CAPACITY.get(symbol, OTHER_CAPACITY)
        if extent <= usual:
            return usual
        raised: int = 1 << (extent - 1).bit_length()
        self.assumptions.append(f"capacity of {symbol} was raised to {raised}")
        return raised

    def _usable_keys(self, symbols: set[str]) -> list[Key]:
        """Keys with the symbols that some input carries; a dropped one is noted."""
        keys: list[Key] = []
        for key in self.options.key:
            kept = tuple(s for s in key if s in symbols)
            for symbol in sorted(set(key) - set(kept)):
                self.assumptions.append(f"key symbol {symbol} is carried by no input: dropped")
            if kept not in keys:
                keys.append(kept)
        return keys

    def _check_kinds(self, batch: Mapping[str, Any]) -> None:
        """A described input keeps the dtype and device of its first batch: buffers and recordings have them."""
        for name, spec in self.specs.items():
            value = batch.get(name)
            if not isinstance(value, torch.Tensor) or spec.kind == "int":
                continue
            dtype, device = self._kinds.setdefault(name, (value.dtype, value.device))
            if value.dtype != dtype:
                raise InputError(f"{name}: expected dtype {dtype}, as in the first batch; got {value.dtype}")
            if value.device != device:
                raise InputError(f"{name}: expected device {device}, as in the first batch; got {value.device}")


def _is_boundary_list(spec: Spec) -> bool:
    return len(spec.dims) == 1 and spec.dims[0].symbol is not None and spec.dims[0].offset == 1
