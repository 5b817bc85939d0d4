"""This device's runtime replays what it records."""

from __future__ import annotations

from capwise.runtime import self_test


def test_the_runtime_passes_its_self_tests():
    self_test.refuse_bad_runtime()
    assert self_test._device_failures() == ()
