"""What all tests share: their rules, one clean Dynamo each, and small models as Cases.

Outside `tests/gpu` nothing is skipped: a skip is a failure. Tests that need a device are left out where there is none.
"""

from __future__ import annotations

import inspect
import logging
import re
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
