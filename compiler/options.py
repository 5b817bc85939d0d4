"""Options: one frozen dataclass; the same names in `options={}`, in [tool.capwise] and on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

Capture = Literal["auto", "graph", "tape", "off"]
Repair = Literal["auto", "split", "none"]
Lower = Literal["inductor", "eager"]
Outputs = Literal["view", "copy"]

# 1, 2, 4, then by 8 to 256, by 16 to 512: the sizes that serving engines record.
DEFAULT_CAPTURE_SIZES: tuple[int, ...] = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))

Key = tuple[str, ...]


class OptionError(ValueError):
    """An option that does not exist or cannot have that value; names the nearest valid one."""


@dataclass(frozen=True)
class Options:
    """How a model is compiled. See DESIGN of the options in the README."""

    inputs: Mapping[str, Any] | None = None
    key: tuple[Key, ...] = (("T",),)
    capacity: Mapping[str, int] = field(default_factory=dict)
    capture_sizes: tuple[int, ...] = DEFAULT_CAPTURE_SIZES
    capture: Capture = "auto"
    repair: Repair = "auto"
    lower: Lower = "inductor"
    outputs: Outputs = "view"
    guards: bool = True
    strict: bool = False
    dump: str | None = None

    @classmethod
    def make(cls, values: Mapping[str, Any] | None = None, **more: Any) -> Options:
        """Checks and normalises option values.

        Raises:
            OptionError: unknown option, or a value that the option cannot have.
        """
        given = {**(values or {}), **more}
        names = [f.name for f in fields(cls)]
        for name in given:
            if name not in names:
                raise OptionError(f"option {name!r}: expected one of {', '.join(names)}{nearest(name, names)}")
        normalise = {"key": _key, "capture_sizes": _sizes, "capacity": _capacity}
        checked: dict[str, Any] = {n: normalise[n](v) if n in normalise else v for n, v in given.items()}
        for name, choices in (("capture", Capture), ("repair", Repair), ("lower", Lower), ("outputs", Outputs)):
            if name in checked:
                _choice(name, checked[name], get_args(choices))
        for name in ("guards", "strict"):
            if name in checked and not isinstance(checked[name], bool):
                raise OptionError(f"option {name!r}: expected True or False; got {checked[name]!r}")
        return cls(**checked)


def nearest(name: object, choices: Sequence[str]) -> str:
    """ "; did you mean 'x'?" for the closest choice, or nothing."""
    close = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def _choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise OptionError(
            f"option {name!r}: expected one of {', '.join(choices)}; got {value!r}{nearest(value, choices)}"
        )


def _key(value: Any) -> tuple[Key, ...]:
    keys = [value] if isinstance(value, (tuple, str)) else value
    if not isinstance(keys, (list, tuple)) or not keys:
        raise OptionError(f"option 'key': expected a tuple of symbols or a list of such tuples; got {value!r}")
    normal = tuple((k,) if isinstance(k, str) else tuple(k) for k in keys)
    for key in normal:
        if not all(isinstance(s, str) and s.isidentifier() for s in key):
            raise OptionError(f"option 'key': expected symbol names such as 'T'; got {key!r}")
    return normal


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(s, int) and s > 0 for s in value):
        raise OptionError(f"option 'capture_sizes': expected a list of positive ints; got {value!r}")
    return tuple(sorted(set(value)))


def _capacity(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping) or not all(isinstance(v, int) and v > 0 for v in value.values()):
        raise OptionError(f"option 'capacity': expected symbol -> positive int; got {value!r}")
    return dict(value)
