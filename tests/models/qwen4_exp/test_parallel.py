"""Two ranks over gloo: the split decoder is the whole one, and a rank that fails ends all with one error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from capwise.models.qwen4_exp.parallel import part

SCRIPT = Path(__file__).with_name("two_ranks.py")


def _ranks(trouble: str):
    done = subprocess.run([sys.executable, str(SCRIPT), trouble], capture_output=True, text=True, timeout=400)
    assert done.stdout.strip(), done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_two_ranks_give_what_one_gives_and_pick_the_same_buckets():
    first, second = _ranks("none")
    assert max(first["far"], second["far"]) <= 1e-5
    assert first["buckets"] == second["buckets"] and first["buckets"] != "[[]]"
    expected = "T: expected one extent on every rank; got 4 to 8, here"
    assert (first["apart"], second["apart"]) == (f"{expected} 4", f"{expected} 8")
    assert first["steps"] == second["steps"] == ["piece"] and not first["misses"] + second["misses"]
    assert (first["table"] + second["table"], first["head"] + second["head"]) == (424, 97)


def test_a_rank_that_dies_ends_all_with_one_error():
    assert _ranks("dies")["error"] == "rank 1 of 2: ended with code 7"


def test_parts_cover_the_rows_once():
    parts = [part(10, rank, 4) for rank in range(4)]
    assert [list(range(10)[p]) for p in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    with pytest.raises(ValueError, match="rank: expected 0 to 3; got 4"):
        part(10, 4, 4)
