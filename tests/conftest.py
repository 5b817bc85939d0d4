"""What all tests share: their rules, one clean Dynamo each, and small models as Cases.

Outside `tests/gpu` nothing is skipped: a skip is a failure. Tests that need a device are left out where there is none.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
logging.getLogger("torch.__trace").propagate = False  # a record a traced line, for nobody
settings.register_profile("capwise", derandomize=True, max_examples=40, deadline=None, database=None, print_blob=False)
settings.load_profile("capwise")

HERE = Path(__file__).parent
WIDTH = 4


# ---------------------------------------------------------------------------------------------------------- rules
def _needs_device(item: pytest.Item) -> bool:
    return item.get_closest_marker("gpu") is not None or _in_gpu_folder(item)


def _in_gpu_folder(node: pytest.Item | pytest.Collector) -> bool:
    return HERE / "gpu" in [node.path, *node.path.parents]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects, rather than skips, what needs a device."""
    if torch.cuda.is_available():
        return
    config.hook.pytest_deselected(items=[i for i in items if _needs_device(i)])
    items[:] = [i for i in items if not _needs_device(i)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    return report if _in_gpu_folder(item) else _no_skip(report)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    return report if _in_gpu_folder(collector) else _no_skip(report)


def _no_skip(report: Any) -> Any:
    """A skipped (or expected to fail) test outside tests/gpu is a failed one."""
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"a test outside tests/gpu must not be skipped: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    """No graph, mark or guard of one test reaches the next."""
    yield
    torch._dynamo.reset()


# ---------------------------------------------------------------------------------------------------------- cases
def _rows(tokens: int, sign: int = 1) -> torch.Tensor:
    return torch.arange(1, tokens * WIDTH + 1, dtype=torch.float32).view(tokens, WIDTH) * sign / 8


def _steps() -> list[dict[str, torch.Tensor]]:
    """Six tokens, then five, then three: the later steps find a tail of the earlier ones."""
    return [{"x": _rows(6)}, {"x": _rows(5, -1)}, {"x": _rows(3)}]


def _make_case(
    model: Callable[..., Any],
    batches: Sequence[Mapping[str, Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    from capwise import Case

    return Case(
        model=model,
        batches=batches or _steps(),
        inputs={"x": ("T", WIDTH), **(inputs or {})},
        capacity={"T": 16, "R": 4},
        options={"capture_sizes": (8, 16), **options},
        name="case",
    )


def _body(text: str) -> str:
    """A pass's text without its header line, which holds a time; the trace's own name of the token count is T."""
    head, _, rest = text.partition("\n")
    assert head.startswith("# after "), head
    return re.sub(r"\bu\d+\b", "T", rest)


def _around(case: Any, name: str, **options: Any) -> tuple[str, str]:
    """The one program of a case, just before and just after a pass."""
    from capwise.backend import programs_of

    (program,) = programs_of(case, **options)
    names = list(program.texts)
    before = names[names.index(name) - 1]
    return _body(program.text(after=before)), _body(program.text(after=name))


def _replays(case: Any, **options: Any) -> Any:
    """Replay must equal eager over the case's history, whatever stands in the tails."""
    import capwise

    result = capwise.verify(case, **options)
    assert result.ok, str(result)
    assert result.steps == len(case.batches) and result.misses == 0
    return result


def _differs(case: Any, **options: Any) -> Any:
    """What a naive engine does with this case must be wrong: else the test that it is repaired shows nothing."""
    import capwise

    result = capwise.verify(case, unsafe=True, **options)
    assert not result.ok
    return result


@pytest.fixture(scope="session")
def rows() -> Callable[..., torch.Tensor]:
    """rows(tokens, sign) -> float32 [tokens, 4], all values different."""
    return _rows


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Any]:
    return _make_case


@pytest.fixture(scope="session")
def around() -> Callable[..., tuple[str, str]]:
    return _around


@pytest.fixture(scope="session")
def program_of() -> Callable[..., Any]:
    """program_of(case, **options) -> its one Program."""
    from capwise.backend import programs_of

    def only(case: Any, **options: Any) -> Any:
        (program,) = programs_of(case, **options)
        return program

    return only


@pytest.fixture(scope="session")
def text() -> Callable[[str], str]:
    """An indented literal as it should print."""
    return lambda literal: inspect.cleandoc(literal)


@pytest.fixture(scope="session")
def replays() -> Callable[..., Any]:
    return _replays


@pytest.fixture(scope="session")
def differs() -> Callable[..., Any]:
    return _differs


# ---------------------------------------------------------------------------------------------------------- libraries
@pytest.fixture
def fla(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """A stand-in for flash-linear-attention, which no CPU runs: `chunk_gated_delta_rule` as its documentation has it,
    strict about every argument. Returns the lengths of the sequences of each call so far."""
    calls: list[list[int]] = []
    # As the library does: what was made of boundaries is found again by the identity of the tensors, of the last four.
    tables: deque[tuple[torch.Tensor, torch.Tensor, list[int]]] = deque(maxlen=4)

    def boundaries(on_device: torch.Tensor, on_host: torch.Tensor) -> list[int]:
        for one, other, table in tables:
            if one is on_device and other is on_host:
                return table
        tables.append((on_device, on_host, on_host.tolist()))
        return tables[-1][2]

    def chunk_gated_delta_rule(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        scale: float | None = None,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False,
        state_v_first: bool = False,
        cu_seqlens: torch.Tensor | None = None,
        cu_seqlens_cpu: torch.Tensor | None = None,
        cp_context: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert not (use_beta_sigmoid_in_kernel or allow_neg_eigval or state_v_first) and cp_context is None
        assert cu_seqlens is not None and cu_seqlens_cpu is not None and initial_state is not None
        assert use_qk_l2norm_in_kernel and output_final_state
        (one, tokens, heads, key), (value_heads, value) = k.shape, v.shape[2:]
        assert one == 1 and value_heads % heads == 0 and key <= 256 and scale == key**-0.5
        assert cu_seqlens.dtype == cu_seqlens_cpu.dtype == torch.int64 and cu_seqlens_cpu.device.type == "cpu"
        assert torch.equal(cu_seqlens.cpu(), cu_seqlens_cpu)
        starts = boundaries(cu_seqlens, cu_seqlens_cpu)
        lengths = [end - start for start, end in zip(starts, starts[1:])]
        assert starts[0] == 0 and starts[-1] == tokens and min(lengths) > 0
        for tensor, shape in (
            (q, k.shape),
            (v, (1, tokens, value_heads, value)),
            (g, (1, tokens, value_heads)),
            (beta, (1, tokens, value_heads)),
            (initial_state, (len(lengths), value_heads, key, value)),
        ):
            assert tuple(tensor.shape) == tuple(shape) and tensor.is_contiguous() and tensor.device == v.device
        assert q.dtype == k.dtype == v.dtype and g.dtype == beta.dtype == initial_state.dtype == torch.float32
        calls.append(lengths)
        unit = [x[0] * torch.rsqrt(x[0].float().square().sum(-1, keepdim=True) + 1e-6) for x in (q, k)]
        queries, keys = (x.repeat_interleave(value_heads // heads, 1) for x in unit)
        out, states = torch.empty_like(v), initial_state.clone()
        for state, start, end in zip(states, starts, starts[1:]):
            for t in range(start, end):
                state *= g[0, t].exp()[:, None, None]
                read = torch.einsum("hkv,hk->hv", state, keys[t])
                change = beta[0, t][:, None] * (v[0, t].float() - read)
                state += torch.einsum("hk,hv->hkv", keys[t], change)
                out[0, t] = torch.einsum("hkv,hk->hv", state, queries[t]) * scale
        return out, states

    module = types.ModuleType("fla.ops.gated_delta_rule")
    vars(module)["chunk_gated_delta_rule"] = chunk_gated_delta_rule
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls
