"""The compiler on one screen: the ordered lists of passes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from capwise.compilation import Compilation, CompilerPass
from capwise.passes.advice import Advice
from capwise.passes.annotate import Annotate
from capwise.passes.asynchronous import Asynchronous
from capwise.passes.capacity import Capacity
from capwise.passes.check import Check
from capwise.passes.contiguous import ContiguousCopy
from capwise.passes.copy_back import CopyBack
from capwise.passes.device_scalar import DeviceScalar
from capwise.passes.fill import Fill
from capwise.passes.finish import Finish
from capwise.passes.formats import Formats
from capwise.passes.hazards import Hazards
from capwise.passes.host_inputs import HostInputs
from capwise.passes.launches import Launches
from capwise.passes.layout import Layout
from capwise.passes.masked_write import MaskedWrite
from capwise.passes.mutation import Mutation
from capwise.passes.overlap import Overlap
from capwise.passes.padding import Padding
from capwise.passes.plan import Plan
from capwise.passes.provenance import Provenance
from capwise.passes.read_format import ReadFormat
from capwise.passes.split import Split
from capwise.passes.storage import Storage
from capwise.passes.temporary import Temporary
from capwise.passes.widen import Widen
from capwise.program import print_graph


def analysis() -> list[type[CompilerPass]]:
    facts: list[type[CompilerPass]] = [HostInputs, Annotate, Provenance, Capacity, Storage, Padding]
    return [*facts, Layout, Launches, Overlap, Mutation, Asynchronous, Formats, Hazards]


def repair() -> list[type[CompilerPass]]:
    changes = [MaskedWrite, ContiguousCopy, CopyBack, Finish, ReadFormat, Widen, DeviceScalar, Fill, Temporary]
    return [*changes, Annotate, Provenance, Check]


def planning() -> list[type[CompilerPass]]:
    return [Plan, Split, Advice]


def pipeline() -> list[type[CompilerPass]]:
    return [*analysis(), *repair(), *planning()]


def check_order(passes: Sequence[type[CompilerPass]]) -> None:
    """Raises ValueError where a pass needs a fact that no earlier pass gives."""
    given: set[str] = set()
    for one in passes:
        for need in one.needs:
            if need not in given:
                raise ValueError(f"pass {one.name!r} needs {need!r}, which no earlier pass gives")
        given |= set(one.gives)


def run(state: Compilation, passes: Sequence[type[CompilerPass]], keep_texts: bool = False) -> None:
    """Runs the passes over the traced graph; keeps the time of each, and the graph's text after it if asked to."""
    check_order(passes)
    for one in passes:
        start = time.perf_counter()
        one(state)(state.traced.graph)
        elapsed = time.perf_counter() - start
        state.report.timings.append((one.name, elapsed))
        if keep_texts:
            state.texts[one.name] = f"# after {one.name} ({elapsed * 1e3:.1f} ms)\n{print_graph(state.graph)}"
