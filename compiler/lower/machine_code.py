"""What a compiled kernel uses, read off its assembly and its ELF file. Nothing here runs a compiler or needs a GPU."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

_CUDA_MATRIX = re.compile(r"\b((?:wgmma\.mma_async|mma\.sync|mma\.sp|tcgen05\.mma)[\w.:]*)")
_HIP_MATRIX = re.compile(r"\b(v_(?:mfma|smfmac|wmma|swmmac)_\w+)")


@dataclass(frozen=True)
class Resources:
    """Registers a lane, registers spilled, scratch bytes a lane, fixed shared memory bytes a block, lanes a wave."""

    registers: int
    spills: int
    scratch: int
    shared: int
    wave: int


def cuda_resources(ptxas_log: str) -> Resources:
    """From what `ptxas -v` says of one kernel. Spills are counted in 32-bit registers stored."""

    def number(pattern: str) -> int:
        found = re.search(pattern, ptxas_log)
        return int(found[1]) if found else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spills=number(r"(\d+) bytes spill stores") // 4,
        scratch=number(r"(\d+) bytes stack frame"),
        shared=number(r"(\d+) bytes smem"),
        wave=32,
    )


def hip_resources(amdgcn: str) -> Resources:
    """From the metadata at the end of AMDGPU assembly. Accumulation registers count as registers."""

    def number(field: str) -> int:
        found = re.search(rf"\.{field}:\s*(\d+)", amdgcn)
        return int(found[1]) if found else 0

    return Resources(
        registers=number("vgpr_count"),
        spills=number("vgpr_spill_count") + number("sgpr_spill_count"),
        scratch=number("private_segment_fixed_size"),
        shared=number("group_segment_fixed_size"),
        wave=number("wavefront_size"),
    )


def matrix_instructions(assembly: str) -> tuple[str, ...]:
    """The matrix instructions used, each once, sorted."""
    return tuple(sorted({*_CUDA_MATRIX.findall(assembly), *_HIP_MATRIX.findall(assembly)}))


def parameter_count(assembly: str) -> int:
    """How many parameters the kernel takes, those that Triton adds (scratch pointers) included."""
    entry = re.search(r"\.entry \S+?\((.*?)\)\s", assembly, re.DOTALL)
    if entry:
        return entry[1].count(".param")
    metadata = assembly[assembly.find(".amdgpu_metadata") :]
    return len(re.findall(r"\.value_kind:\s*(?:global_buffer|by_value)", metadata))


def code_size(elf: bytes) -> int:
    """Bytes of machine code in a cubin or hsaco: the executable sections of a 64-bit ELF file."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    total = 0
    for i in range(count):
        flags, length = (struct.unpack_from("<Q", elf, start + i * size + at)[0] for at in (0x08, 0x20))
        total += length if flags & 0x4 else 0
    return total
