"""The machines kernels are compiled for, and what differs between them that a kernel can notice."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

# fp8 formats by Triton's names: OCP's (CUDA from sm_89, gfx950, gfx12), and those without a negative zero (gfx942).
OCP = frozenset({"fp8e4nv", "fp8e5"})
FNUZ = frozenset({"fp8e4b8", "fp8e5b16"})


@dataclass(frozen=True)
class Target:
    """One machine.

    Attributes:
        name: as on the command line, `cuda:90` or `hip:gfx942`.
        arch: 90, or "gfx942".
        wave: lanes that run in lockstep.
        shared: the most shared memory (LDS) a block can have, in bytes.
        fp8: the fp8 formats its conversions and matrix instructions take, by Triton's names.
    """

    name: str
    backend: str
    arch: int | str
    wave: int
    shared: int
    fp8: frozenset[str]

    @staticmethod
    def parse(name: str) -> Target:
        """The target of that name; ValueError, naming the nearest valid one, for any other."""
        found = next((t for t in TARGETS if t.name == name), None)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, [t.name for t in TARGETS], n=1, cutoff=0.0)
        raise ValueError(
            f"target: expected one of {', '.join(t.name for t in TARGETS)}; got {name!r}; nearest {near[0]}"
        )


TARGETS: tuple[Target, ...] = (
    Target("cuda:80", "cuda", 80, 32, 163 * 1024, frozenset()),
    Target("cuda:90", "cuda", 90, 32, 227 * 1024, OCP),
    Target("cuda:100", "cuda", 100, 32, 227 * 1024, OCP),
    Target("hip:gfx942", "hip", "gfx942", 64, 64 * 1024, FNUZ),
    Target("hip:gfx950", "hip", "gfx950", 64, 160 * 1024, OCP),
    Target("hip:gfx1201", "hip", "gfx1201", 32, 64 * 1024, OCP),
)
