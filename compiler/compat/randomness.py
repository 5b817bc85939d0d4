"""Compiled code draws the random numbers that eager code draws."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def random_as_eager(draws: bool) -> Iterator[None]:
    """Inside, what Inductor compiles draws random numbers by ATen's kernels, from the same generator as eager does, not
    by its own."""
    if not draws:
        yield
        return
    from torch._inductor import config

    with config.patch(fallback_random=True):
        yield
