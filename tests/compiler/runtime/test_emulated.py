"""The tape with its Triton launches run as the ROCm code they compile to."""

from __future__ import annotations

import pytest
import torch

import capwise
from capwise import compat
from capwise.cli import main
from capwise.lower.recorded import op_launches
from capwise.models.demo_cases import s1_golden, s2_golden
from capwise.ops.samples import SMALL, sample
from capwise.runtime import tape
from capwise.runtime.emulated import as_argument, emulated


def test_a_tape_runs_its_kernels_by_what_it_is_given():
    call, seen = sample("ple_table_gather", (3, 2), SMALL), []

    def run(kernel, grid, **bound):
        seen.append(kernel.fn.__name__)
        compat.run_interpreted(kernel, grid, **bound)

    gather = torch.ops.capwise.ple_table_gather
    with tape.kernels_run_by(run):
        out, recording = tape.record(lambda *args: gather(*args), [call["ids"], call["table"]])
        recording.replay()
    recording.replay()
    assert seen == ["_table_gather_kernel"] * 2 and torch.equal(out, gather(**call))


def test_the_executor_is_put_back_when_the_body_raises():
    before = tape._EXECUTOR.get()
    with pytest.raises(RuntimeError), tape.kernels_run_by(print):
        raise RuntimeError
    assert tape._EXECUTOR.get() is before


def test_each_launch_has_an_order_of_its_own(monkeypatch):
    seeds = []
    monkeypatch.setattr("capwise.runtime.emulated.run_launch", lambda *args, seed, **more: seeds.append(seed))
    (launch,) = op_launches("ple_table_gather", (3,), SMALL)
    execute = emulated(seed=10)
    for _ in range(3):
        execute(launch.kernel, launch.grid, **launch.bound)
    assert seeds == [11, 12, 13]


def test_formats_that_numpy_lacks_go_as_integers_over_the_same_memory():
    for dtype, size in ((torch.bfloat16, 2), (torch.bool, 1), (torch.float8_e4m3fn, 1)):
        value = torch.zeros(4, 6).to(dtype)[:, ::2]
        array = as_argument(value)
        assert (array.itemsize, array.shape) == (size, (4, 3)) and array.strides == (6 * size, 2 * size)
        array[1, 2] = 1
        assert value[1, 2] != 0
    assert as_argument(3.5) == 3.5


def test_a_kernel_that_does_not_compile_says_so():
    (launch,) = op_launches("ple_table_gather", (3,), SMALL)
    with pytest.raises(RuntimeError, match="_table_gather_kernel for hip:gfx942: "):
        emulated()(launch.kernel, launch.grid, **{**launch.bound, "BLOCK_N": 3})


@pytest.mark.parametrize("make", (s1_golden, lambda: s2_golden(4, "unit")))
def test_the_seed_faults_replay_right_as_rocm_code(make):
    result = capwise.verify(make(), device="hip-emulated")
    assert result.ok and result.misses == 0, str(result)


def test_stale_boundaries_show_on_the_emulated_device_too():
    assert not capwise.verify(s1_golden(), device="hip-emulated", unsafe=True).ok


def test_the_command_line(capsys):
    naive = ["verify", "capwise.models.naive_shift:naive", "--device", "hip-emulated"]
    assert main(naive) == 1
    assert "naive shift: 3 steps, replay differs" in capsys.readouterr().out
    assert main([*naive, "--gfx", "gfx940"]) == 2
    assert "option '--gfx': expected one of gfx942, gfx1201; got 'gfx940'" in capsys.readouterr().err
