"""Reads what a compiler left behind: assembler logs, disassembly, metadata. Text in, numbers out."""

from __future__ import annotations

import itertools
import re
from collections import Counter

_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SASS = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_AMDGCN = re.compile(r"^\t([a-z]\w+)", re.MULTILINE)
_ORDERED = ("HGMMA", "WARPGROUP.DEPBAR", "MUFU.EX2")
# A named barrier with its number; those below 8 are Triton's own.
_BARRIER = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(BAR\.SYNC|BAR\.ARV)[A-Z0-9_.]*\s+0x([89a-f])\b")
_SASS_MEMORY = frozenset({"LDG", "STG", "LDGSTS", "LDL", "STL", "LDS", "STS", "LD", "ST"})
_SASS_WIDTHS = {"U8": "8", "S8": "8", "U16": "16", "S16": "16", "64": "64", "128": "128", "256": "256"}
_AMDGCN_ENCODING = re.compile(r"_(e32|e64|dpp|sdwa|e64_dpp)$")


def ptxas_resources(log: str) -> tuple[int, int, int]:
    """(registers, bytes spilled, bytes of stack) from the log of ``ptxas -v``; the largest where it has functions."""
    frames = [tuple(map(int, match)) for match in _SPILLS.findall(log)]
    registers = [int(number) for number in _REGISTERS.findall(log)]
    if not frames or not registers:
        raise ValueError(f"not a log of ptxas -v: {log[:200]!r}")
    return max(registers), max(stores + loads for _, stores, loads in frames), max(frame for frame, _, _ in frames)


def ptxas_warnings(log: str) -> tuple[str, ...]:
    """Lines in which ptxas warns, or names a loss of performance (its C75xx notes)."""
    lines = (line.strip() for line in log.splitlines())
    return tuple(line for line in lines if re.search(r"warning|Potential Performance Loss|\(C7\d{3}\)", line))


def sass_census(disassembly: str) -> tuple[tuple[str, int], ...]:
    """Count of each kind of instruction in the output of ``nvdisasm -c``.

    A kind is the opcode; memory instructions add the bits a thread moves (32 by
    default), ``MUFU`` its function: ``LDGSTS.128``, ``MUFU.EX2``.
    """
    return _sorted(Counter(map(_sass_kind, _SASS.findall(disassembly))))


def sass_order(disassembly: str) -> tuple[tuple[str, int], ...]:
    """Asynchronous matrix products, waits for them, exponentials and the kernel's own barriers, in the code's order.

    Runs of one kind are counted. A barrier's kind has its number, 8 to 15: ``BAR.SYNC 8``, ``BAR.ARV 9``.
    """
    kinds = (kind for line in disassembly.splitlines() if (kind := _ordered_kind(line)))
    return tuple((kind, sum(1 for _ in run)) for kind, run in itertools.groupby(kinds))


def _ordered_kind(line: str) -> str | None:
    if barrier := _BARRIER.match(line):
        return f"{barrier[1]} {int(barrier[2], 16)}"
    opcode = _SASS.match(line)
    return next((kind for kind in _ORDERED if opcode and opcode[1].startswith(kind)), None)


def _sass_kind(opcode: str) -> str:
    name, *modifiers = opcode.rstrip(".").split(".")
    if name in _SASS_MEMORY:
        widths = [_SASS_WIDTHS[modifier] for modifier in modifiers if modifier in _SASS_WIDTHS]
        # LDG.E.64 moves 64 bits; the widest named is the data, as "LDG.E.LTC128B" names only a hint.
        return f"{name}.{widths[-1] if widths else '32'}"
    if name == "MUFU":
        return f"{name}.{modifiers[0]}"
    return name


def amdgcn_census(assembly: str) -> tuple[tuple[str, int], ...]:
    """Count of each instruction in AMD assembly, without the suffix of its encoding: ``buffer_load_dwordx4``."""
    return _sorted(Counter(_AMDGCN_ENCODING.sub("", name) for name in _AMDGCN.findall(assembly)))


def amdgcn_metadata(assembly: str, field: str) -> int:
    """A number of the kernel's metadata (``vgpr_count``, ``vgpr_spill_count``, ``private_segment_fixed_size``)."""
    match = re.search(rf"^\s*(?:- )?\.{field}:\s+(\d+)$", assembly, re.MULTILINE)
    if match is None:
        raise ValueError(f"the assembly's metadata has no .{field}")
    return int(match.group(1))


def _sorted(census: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(census.items()))
