"""Several ranks: the n-gram table and the head split by rows, put together by a sum; and how ranks run and fail.

Each rank holds a part of the rows. A token's n-gram is in one rank's part and reads as zeros in all others; a logit is
computed where its row is. So the sum over ranks is what one rank with everything would have.
"""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from capwise.models.qwen4_exp.decoder import Decoder
from capwise.models.qwen4_exp.ple import Shard


class RankError(RuntimeError):
    """A rank failed; the others were stopped. The message names the rank and why."""


def part(rows: int, rank: int, world: int) -> slice:
    """The rows of one rank: as many for each, fewer for the last.

    Raises:
        ValueError: a rank that does not exist.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank: expected 0 to {world - 1}; got {rank}")
    size = -(-rows // world)
    return slice(min(rank * size, rows), min((rank + 1) * size, rows))


def shard_(model: Decoder, rank: int, world: int, group: str) -> Decoder:
    """Keeps this rank's rows of the n-gram tables and of the head; the rest of the model stays whole.

    Args:
        group: name of the process group that the ranks form.
    """
    for layer in model.layers:
        if layer.ple is not None:
            mine = part(layer.ple.table.shape[0], rank, world)
            layer.ple.table = _rows(layer.ple.table, mine)
            layer.ple.shard = Shard(mine.start, mine.stop - mine.start, group)
    mine = part(model.head.shape[0], rank, world)
    model.head = _rows(model.head, mine)
    model.shard = Shard(mine.start, mine.stop - mine.start, group)
    return model


def _rows(weight: torch.nn.Parameter, rows: slice) -> torch.nn.Parameter:
    return torch.nn.Parameter(weight.detach()[rows].clone(), requires_grad=False)


def agree(batch: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Checks that every rank runs a step of the same extents, so that every rank picks the same recording: with
    another one, its collectives would wait for each other for ever.

    Raises:
        ValueError: on every rank, where they differ; names both extents.
    """
    mine = {"T": batch["input_ids"].shape[0], "R": batch["query_start_loc"].shape[0] - 1}
    both = torch.tensor([v for extent in mine.values() for v in (extent, -extent)], device=batch["input_ids"].device)
    dist.all_reduce(both, dist.ReduceOp.MAX, group)
    for i, (name, extent) in enumerate(mine.items()):
        most, least = int(both[2 * i]), -int(both[2 * i + 1])
        if most != least:
            raise ValueError(f"{name}: expected one extent on every rank; got {least} to {most}, here {extent}")


def run_ranks(
    target: Callable[..., Any], world: int, arguments: Sequence[Any] = (), backend: str = "gloo", seconds: float = 300.0
) -> list[Any]:
    """Runs `target(rank, world, *arguments)` in a process a rank, joined in one process group.

    Returns:
        what each rank returned, in order.

    Raises:
        RankError: the first rank that raised, died or took too long; all others were stopped.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results: Any = context.Queue()
        meeting = f"file://{Path(folder) / 'meeting'}"
        ranks = [
            context.Process(target=_rank, args=(rank, world, meeting, backend, target, tuple(arguments), results))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        try:
            return _collect(ranks, results, time.monotonic() + seconds)
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _collect(ranks: Sequence[Any], results: Any, until: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(ranks):
        try:
            rank, ok, value = results.get(timeout=0.2)
        except queue.Empty:
            _raise_for_dead(ranks, found)
            if time.monotonic() > until:
                late = sorted(set(range(len(ranks))) - set(found))
                raise RankError(f"rank {late[0]} of {len(ranks)}: no result in time") from None
            continue
        if not ok:
            # A rank that died says nothing; what others say of a broken connection is not the reason.
            time.sleep(1.0)
            _raise_for_dead(ranks, {**found, rank: value})
            raise RankError(f"rank {rank} of {len(ranks)}: {value}")
        found[rank] = value
    return [found[rank] for rank in range(len(ranks))]


def _raise_for_dead(ranks: Sequence[Any], heard: Mapping[int, Any]) -> None:
    for rank, process in enumerate(ranks):
        if process.exitcode not in (None, 0) and rank not in heard:
            raise RankError(f"rank {rank} of {len(ranks)}: ended with code {process.exitcode}")


def _rank(
    rank: int,
    world: int,
    meeting: str,
    backend: str,
    target: Callable[..., Any],
    arguments: Sequence[Any],
    results: Any,
) -> None:
    try:
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world)
        results.put((rank, True, target(rank, world, *arguments)))
        dist.barrier()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent says so once
        results.put((rank, False, f"{type(error).__name__}: {error}"))
    finally:
        results.close()
        results.join_thread()
