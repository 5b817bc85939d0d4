"""One kernel on one target, as compiled: a row of the table that `capwise lower` prints."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field
from typing import Any

_PUBLIC = (
    "kernel",
    "target",
    "ok",
    "registers",
    "spills",
    "scratch",
    "shared",
    "wave",
    "matrix",
    "bytes",
    "codes",
    "error",
)


@dataclass(frozen=True)
class Launch:
    """What another process must know to launch the kernel.

    Attributes:
        symbol: the kernel's name in the binary.
        arguments: (name, Triton type) in order; types `*i8` named `global_scratch` and `profile_scratch` are Triton's.
        constants: what was compiled in.
        grid: three expressions at most, over T, R and the arguments.
        shared: bytes of dynamic shared memory.
        scratch: bytes of global scratch a block, and their alignment.
    """

    symbol: str
    arguments: tuple[tuple[str, str], ...]
    constants: dict[str, Any]
    grid: tuple[str, ...]
    num_warps: int
    wave: int
    shared: int
    num_ctas: int = 1
    cooperative: bool = False
    scratch: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class LowerRow:
    """A compiled kernel, or why it did not compile.

    Attributes:
        registers: vector registers a lane; spills: registers spilled; scratch: bytes a lane; shared: bytes a block.
        matrix: the matrix instructions in it.
        bytes: of machine code.
        codes, notes: CW601 where this target differs from others in results or resources, and how.
        asm: ttir, ttgir, llir, and ptx or amdgcn; `binary` the cubin or hsaco.
    """

    kernel: str
    target: str
    ok: bool
    registers: int = 0
    spills: int = 0
    scratch: int = 0
    shared: int = 0
    wave: int = 0
    matrix: tuple[str, ...] = ()
    bytes: int = 0
    codes: tuple[str, ...] = ()
    error: str | None = None
    notes: tuple[str, ...] = ()
    signature: dict[str, str] = field(default_factory=dict, repr=False)
    launch: Launch | None = field(default=None, repr=False)
    asm: dict[str, str] = field(default_factory=dict, repr=False)
    binary: Any = field(default=b"", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The row as `capwise lower --format json` prints it."""
        return {name: _plain(getattr(self, name)) for name in _PUBLIC}

    def dump(self) -> dict[str, Any]:
        """The whole row as JSON values, for the cache and between processes."""
        return {**asdict(self), "binary": base64.b64encode(self.binary).decode()}

    @staticmethod
    def load(saved: dict[str, Any]) -> LowerRow:
        """The row that `dump` saved; raises TypeError or KeyError for anything else."""
        launch = saved["launch"]
        if launch is not None:
            pairs = tuple((name, kind) for name, kind in launch["arguments"])
            tuples = {"arguments": pairs, "grid": tuple(launch["grid"]), "scratch": tuple(launch["scratch"])}
            launch = Launch(**{**launch, **tuples})
        lists = {name: tuple(saved[name]) for name in ("matrix", "codes", "notes")}
        return LowerRow(**{**saved, **lists, "launch": launch, "binary": base64.b64decode(saved["binary"])})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
