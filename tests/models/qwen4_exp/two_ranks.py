"""Run by test_parallel.py, in a process of its own: prints what two ranks found, or the one error."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

import capwise
from capwise.models.qwen4_exp import Config, Decoder, input_axes, serving_cases
from capwise.models.qwen4_exp.parallel import RankError, agree, run_ranks, shard_

SMALL = Config.tiny(num_hidden_layers=1, layer_types=("linear_attention",), ple_layer_ids=(1,))
SIZES = (serving_cases.SLOTS, serving_cases.BLOCKS, serving_cases.PAGE, serving_cases.NUM_SPEC)


def _model() -> Decoder:
    torch.manual_seed(0)
    made = Decoder(SMALL, *SIZES)
    made.fill_state_(torch.Generator().manual_seed(0))
    return made


def serve(rank: int, world: int, trouble: str) -> dict:
    """A few steps of the split decoder beside the whole one; on the tape where nothing is to go wrong."""
    torch.set_num_threads(1)
    capwise.ops.launch.triton = None  # torch bodies: what is asked here is how ranks work together
    batches = [step.batch for step in serving_cases.steps(4)]
    whole, mine = _model(), shard_(_model(), rank, world, dist.group.WORLD.group_name)
    run = mine
    if trouble == "none":
        run = capwise.compile(
            mine, inputs=input_axes(SMALL, serving_cases.NUM_SPEC), capacity={"R": 4, "T": 16}, capture_sizes=(4, 16),
            capture="tape", lower="eager",
        )  # fmt: skip
    far = 0.0
    for number, batch in enumerate(batches):
        if rank == 1 and number == 2 and trouble == "dies":
            os._exit(7)
        agree(batch)
        with torch.no_grad():
            want = whole(**batch)
            far = max(far, *(float((a - b).abs().max()) for a, b in zip(want, run(**batch))))
    found = {"far": far, "table": mine.layers[0].ple.table.shape[0], "head": mine.head.shape[0]}
    if trouble == "none":
        found["buckets"] = str([sorted(one.bound) for v in run.variants.values() for one in v.executors])
        found["steps"] = [step.kind for program in run.programs for step in program.steps]
        found["misses"] = run.misses
        try:
            agree(batches[rank])
        except ValueError as error:
            found["apart"] = str(error)
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(run_ranks(serve, 2, [sys.argv[1]], seconds=240)))
    except RankError as error:
        print(json.dumps({"error": str(error)}))
