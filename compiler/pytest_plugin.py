"""The pytest fixture `assert_replay_sound`: `pytest_plugins = ["capwise.pytest_plugin"]` in a conftest brings it.

It is no entry point: every pytest run of an environment that has capwise would import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def assert_replay_sound() -> Callable[..., Any]:
    """assert_replay_sound(case, **options) or (model, batches, inputs=..., capacity=..., **options) -> VerifyResult.

    Fails where replay differs from eager under any adversary of `capwise.verify`, and says the first differing node
    and the shortest history. Options are those of `capwise.verify` (histories, seed, ...) and of `capwise.compile`.
    """

    def check(case: Any, batches: Any = None, **options: Any) -> Any:
        import capwise

        if batches is not None:
            named = {n: options.pop(n) for n in ("inputs", "capacity", "key", "reference") if n in options}
            case = capwise.Case(case, batches, **named)
        result = capwise.verify(case, **options)
        assert result.ok, str(result)
        return result

    return check
