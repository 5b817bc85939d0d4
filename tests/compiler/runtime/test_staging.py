"""Staging: every value in its place and nothing else written, on a CPU, and by the kernel in Triton's interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

from capwise import compat
from capwise.lower.triton_aot import TARGETS, KernelSpec, compile_many
from capwise.runtime import staging
from capwise.runtime.ring import HostRing
from capwise.runtime.staging import BLOCK, COPIES, WIDTH, Packing, Staging, row, stage_kernel, table_of


class Event:
    def record(self) -> None: ...

    def synchronize(self) -> None: ...


def _no_ring() -> HostRing:
    raise AssertionError("nothing comes from host memory")


def _samples() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(place, value): every width, dense and strided on either side, several blocks, no rows, a number."""
    torch.manual_seed(0)
    block = torch.randint(0, 99, (40, 4), dtype=torch.int32)
    return [
        (torch.zeros(4 * BLOCK, dtype=torch.int32)[: 3 * BLOCK + 5], torch.arange(3 * BLOCK + 5, dtype=torch.int32)),
        (torch.zeros(3, 9, dtype=torch.int64)[:, :7], torch.arange(21).view(3, 7)),
        (torch.zeros(8, dtype=torch.bool)[:6], torch.rand(6) > 0.5),
        (torch.zeros(5, 3, 2, 4, dtype=torch.bfloat16), torch.randn(2, 3, 4, 5).bfloat16().permute(3, 1, 0, 2)),
        (torch.zeros(4, 3)[:0], torch.zeros(0, 3)),
        (torch.zeros(64, dtype=torch.int32)[:40], block[:, 1]),
        (torch.zeros(64, 4, dtype=torch.int32)[:40], block),
        (torch.zeros(1, 5, dtype=torch.float64), torch.randn(1, 5, dtype=torch.float64)),
        (torch.zeros(()), torch.tensor(2.5)),
    ]


def _whole(place: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=place.dtype).set_(place.untyped_storage())


def _check(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for place, value in pairs:
        assert torch.equal(place, value)
        assert int(_whole(place).count_nonzero()) == int(value.count_nonzero())


def test_values_and_extents_are_copied() -> None:
    pairs, live = _samples(), torch.zeros((), dtype=torch.int64)
    places, values = map(list, zip(*pairs))
    stage = Staging(places, [torch.zeros_like(v) for v in values], [(live, 7)], _no_ring)
    live.fill_(3)
    stage(values)
    _check(pairs)
    assert int(live) == 7
    Staging([], [], [], _no_ring)([])


@pytest.mark.parametrize("as_argument", [True, False])
def test_the_kernel_copies_the_same(as_argument: bool) -> None:
    pairs = _samples()
    entries, blocks = table_of([row(p, v, 0 if as_argument else v.data_ptr()) for p, v in pairs])
    table = torch.tensor(entries)
    addresses = [v.data_ptr() if as_argument else 0 for _, v in pairs]
    addresses += [0] * (COPIES - len(addresses))
    compat.run_interpreted(
        stage_kernel, (blocks,), table=table.data_ptr(),
        **{f"a{i}": a for i, a in enumerate(addresses)}, COPIES=COPIES, WIDTH=WIDTH, BLOCK=BLOCK,
    )  # fmt: skip
    _check(pairs)


def test_the_kernel_compiles_for_every_target() -> None:
    signature = dict.fromkeys(stage_kernel.arg_names[: 1 + COPIES], "i64")
    constants = {"COPIES": COPIES, "WIDTH": WIDTH, "BLOCK": BLOCK}
    rows = compile_many(
        [KernelSpec(stage_kernel, signature, constants)], [t for t in TARGETS if t.name in ("cuda:90", "hip:gfx942")]
    )
    assert len(rows) == 2 and all(r.ok and not r.spills for r in rows), rows


def test_what_the_kernel_cannot_copy_is_known() -> None:
    assert all(staging.is_plain(place, value) for place, value in _samples())
    wide = torch.zeros(4, 2, 4, 2, 4, 2)[:, :1, :, :1, :, :1].expand(4, 2, 4, 2, 4, 2)
    for place, value in [
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
        (torch.zeros(3, dtype=torch.complex64), torch.zeros(3, dtype=torch.complex64)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.complex64).conj().imag),
        (torch.zeros_like(wide), wide),
    ]:
        assert not staging.is_plain(place, value)


def test_host_values_of_all_kinds_cross_in_one_buffer() -> None:
    made: list[torch.Tensor] = []

    def pinned(size: int) -> torch.Tensor:
        made.append(torch.empty(size, dtype=torch.uint8))
        return made[-1]

    ring = HostRing(1, pinned, Event)
    values = [torch.arange(5, dtype=torch.int32), torch.rand(5, 2), torch.tensor(True), torch.rand(2, 3).t()]
    turned = torch.rand(4, dtype=torch.complex64).conj()
    values += [turned, turned.imag, torch._neg_view(torch.rand(3))]
    packing = Packing(values, torch.device("cpu"), ring)
    for _ in range(2):
        values[1] = values[1] + values[1]
        packing(values)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(packing.landed, values))
    assert len(made) == 1 and len({t.untyped_storage()._cdata for t in packing.landed}) == 1


def test_more_copies_than_a_launch_takes_are_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []

    def launcher(device: torch.device, blocks: int) -> Callable[..., None]:
        def launch(*arguments: int) -> None:
            launches.append(blocks)
            compat.run_interpreted(stage_kernel, (blocks,), **dict(zip(stage_kernel.arg_names, arguments)))

        return launch

    monkeypatch.setattr(staging, "_launcher", launcher)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    pairs = [*_samples(), *_samples()]
    landed, live = pairs[3][1], [torch.zeros((), dtype=torch.int64) for _ in range(2)]
    copied = [(p, v, landed if i == 3 else i) for i, (p, v) in enumerate(pairs)]
    fused = staging.Fused(copied, [(live[0], 5), (live[1], 1 << 40)])
    fused([torch.zeros(1) if i == 3 else v for i, (_, v) in enumerate(pairs)])
    _check(pairs)
    assert [int(n) for n in live] == [5, 1 << 40] and len(launches) == 2
    for _, value in pairs:
        value.zero_()
    fused([v for _, v in pairs])
    _check(pairs)
