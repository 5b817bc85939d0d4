"""Self-tests of a runtime: right recordings pass, and each way to replay wrongly is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from capwise.runtime import self_test, tape
from capwise.runtime.pool import Pool
from capwise.runtime.self_test import TESTS, failures


def _recorder(play: Callable[[Sequence[tape.Launch], int], None]):
    """Recordings whose n-th replay is `play(launches, n)`."""
    pool = Pool()

    def record(run):
        out, recording = tape.record(run, (), pool)
        count = iter(range(1000))
        return out, lambda: play(recording.launches, next(count))

    return record


def _all(launches, number):
    for launch in launches:
        launch.run()


def test_right_recordings_pass():
    assert failures(_recorder(_all)) == ()


def _backwards(launches, number):
    _all(launches[::-1], number)


def _nothing(launches, number):
    pass


def _sometimes_swapped(launches, number):
    _all(launches if number != 7 or len(launches) < 2 else [launches[1], launches[0], *launches[2:]], number)


def _first_dropped(launches, number):
    _all(launches[1:], number)


@pytest.mark.parametrize("play", (_backwards, _nothing, _sometimes_swapped, _first_dropped))
def test_wrong_replays_are_caught(play):
    assert failures(_recorder(play)) == tuple(TESTS)


def test_a_bad_runtime_is_refused(monkeypatch):
    monkeypatch.setattr(self_test, "_device_failures", lambda: ("order of nodes",))
    with pytest.raises(tape.CaptureError, match="order of nodes.*capture='off'"):
        self_test.refuse_bad_runtime()
    monkeypatch.setattr(self_test, "_device_failures", lambda: ())
    self_test.refuse_bad_runtime()
