"""8-bit float formats behind plain bytes."""

from __future__ import annotations

import torch
from torch import nn

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


class Cache(nn.Module):
    """Reads slots of a byte cache in one format, and writes them in another only after that."""

    def __init__(self, wrote, reads) -> None:
        super().__init__()
        self.wrote, self.reads = wrote, reads
        self.register_buffer("cache", torch.zeros(16, 4, dtype=torch.uint8))
        self.register_buffer("slots", torch.tensor([3, 5]))

    def forward(self, x):
        old = self.cache[self.slots].view(self.reads).to(torch.float32)
        self.cache.index_copy_(0, self.slots, torch.ones(2, 4).to(self.wrote).view(torch.uint8))
        return old, x + 1


class Both(nn.Module):
    """Some bytes are written in one format and some in the other: no reader is right for all."""

    def forward(self, x):
        rows = torch.cat([torch.ones(1, 4).to(FN).view(torch.uint8), torch.ones(1, 4).to(FNUZ).view(torch.uint8)])
        return rows.view(FN).to(torch.float32), x + 1


class Converts(nn.Module):
    """A conversion is no reinterpretation."""

    def forward(self, x):
        return torch.ones(2, 4).to(FN).to(FNUZ).to(torch.float32), x + 1


def _found(program):
    return [(d.verdict, d.repair) for d in program.report if d.code == "CW601"]


def test_what_the_last_step_wrote_is_read_in_its_own_format(make_case, program_of, replays, differs):
    def case():
        made = make_case(Cache(FN, FNUZ))
        made.reference = Cache(FN, FN)
        return made

    assert _found(program_of(case())) == [("refuted", "read as float8_e4m3fn")]
    differs(case())
    replays(case())


def test_bytes_of_two_formats_have_no_right_reader(make_case, program_of):
    assert _found(program_of(make_case(Both()))) == [("refuted", None)]


def test_one_format_and_conversions_have_no_finding(make_case, program_of):
    for model in (Cache(FN, FN), Cache(FNUZ, FNUZ), Converts()):
        assert _found(program_of(make_case(model))) == []


def test_before_and_after(make_case, around):
    before, after = around(make_case(Cache(FN, FNUZ)), "read_format")
    assert "float8_e4m3fnuz" in before and "float8_e4m3fnuz" not in after
    before, after = around(make_case(Cache(FN, FN)), "read_format")
    assert before == after
