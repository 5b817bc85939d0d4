"""Right or wrong, step by step: the tape's word on every history of the seed faults, and a device's beside it.

python benchmarks/verdicts.py --write tests/gpu/tape_verdicts.json        on a CPU: what the tape says
python benchmarks/verdicts.py --compare tests/gpu/tape_verdicts.json      on a GPU: does the device agree
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from capwise.backend import CompiledModel, case_options
from capwise.case import Case
from capwise.models import demo_cases
from capwise.verify import moved


def histories() -> Iterator[Case]:
    yield demo_cases.s1_golden()
    yield demo_cases.s1()
    yield demo_cases.s1_before_after()
    yield demo_cases.s1_controls()
    for stride in (1, 2, 4):
        for kernel in ("ours", "unit"):
            yield demo_cases.s2_golden(stride, kernel)
            yield demo_cases.s2(stride, kernel, channels=256)


def verdicts(case: Case, unsafe: bool, device: str) -> list[bool]:
    """For each step, whether live outputs and all state are right. No noise: tails hold what earlier steps left."""
    options: dict[str, Any] = {"capture": "graph" if device == "cuda" else "tape", "lower": "eager"}
    if unsafe:
        options["repair"] = "none"
    model = copy.deepcopy(case.model).to(device)
    reference = copy.deepcopy(case.reference if case.reference is not None else case.model).to(device)
    compiled = CompiledModel(model, case_options(case, **options))
    found = []
    for batch in case.batches:
        mine, theirs = ({k: moved(v, torch.device(device)) for k, v in batch.items()} for _ in range(2))
        with torch.no_grad():
            expected = reference(**theirs)
        got = compiled(**mine)
        pairs = [(expected, got), *zip(reference.buffers(), model.buffers())]
        found.append(all(torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-4) for a, b in pairs))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path)
    args = parser.parse_args()
    device = "cuda" if args.compare else "cpu"
    said = {
        f"{case.name} [{number}] {'unsafe' if unsafe else 'capwise'}": verdicts(case, unsafe, device)
        for number, case in enumerate(histories())
        for unsafe in (True, False)
    }
    if args.write:
        args.write.write_text(json.dumps(said, indent=1) + "\n")
        print(f"{len(said)} histories written")
        return
    tape = json.loads(args.compare.read_text())
    differing = {name for name in tape if tape[name] != said.get(name)}
    for name in tape:
        print(f"{'DIFFERS' if name in differing else 'agrees '} {sum(tape[name])} of {len(tape[name])} right: {name}")
    print(f"{len(tape) - len(differing)} of {len(tape)} histories agree, {sum(map(len, tape.values()))} steps")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
