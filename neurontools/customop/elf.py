"""What an ELF file tells of itself: whether it is a shared library for this processor, and whole; its sections."""

from __future__ import annotations

import platform
import struct

_MACHINES = {"x86_64": 62, "aarch64": 183}
_NAMES = {62: "x86_64", 183: "aarch64", 40: "arm", 243: "riscv", 3: "i386"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHARED_LIBRARY = 3


def is_elf(data: bytes) -> bool:
    """Return whether data begins as an ELF file does."""
    return data.startswith(b"\x7fELF")


def shared_library_problem(data: bytes) -> str:
    """Return what keeps data from being a 64-bit shared library for this processor, "" when nothing does."""
    if not is_elf(data):
        return "it is not an ELF file"
    if len(data) < _HEADER.size:
        return "it is truncated"
    (
        ident,
        kind,
        machine,
        _,
        _,
        program_at,
        section_at,
        _,
        _,
        program_size,
        programs,
        section_size,
        sections,
        _,
    ) = _HEADER.unpack_from(data)
    if ident[4] != 2 or ident[5] != 1:
        return "it is not a 64-bit little-endian ELF file"
    if machine != _MACHINES.get(platform.machine()):
        return f"it is for {_NAMES.get(machine, f'machine {machine}')}, this computer is {platform.machine()}"
    if kind != _SHARED_LIBRARY:
        return "it is not a shared library"
    if max(program_at + programs * program_size, section_at + sections * section_size) > len(data):
        return "it is truncated"
    return ""


def section(data: bytes, name: str) -> bytes:
    """Return the contents of a section of a 64-bit ELF file, nothing when it has none of that name."""
    header = _HEADER.unpack_from(data)
    at, size, count, names = header[6], header[11], header[12], header[13]
    entries = [_SECTION.unpack_from(data, at + index * size) for index in range(count)]
    strings = entries[names][4]
    for entry in entries:
        begin = strings + entry[0]
        if data[begin : data.index(b"\0", begin)] == name.encode():
            return data[entry[4] : entry[4] + entry[5]]
    return b""
