"""Whose code a segment is: its own line, or for a header's function that was inlined, the line that it was inlined into."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

from neurontools.customop.backtrace import path_and_line, short_path
from neurontools.customop.bench.assembly import ADDRESSES
from neurontools.customop.building.toolchain import INCLUDE, SOURCE
from neurontools.customop.elf import section
from neurontools.customop.memfile import executable_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.customop.bench.assembly import Segment
    from neurontools.customop.bench.counting_library import CountingLibrary

_TIMEOUT_S = 30.0
_OURS = (f"{INCLUDE}/", f"{SOURCE}/")


class SegmentPlaces:
    """Finds the places of segments.

    Args:
        library: the counting library that they are of.
    """

    def __init__(self, library: CountingLibrary) -> None:
        self._kernel = library.package.parts.kernel
        self._sources = {entry.path for entry in library.package.manifest.sources}
        table = section(self._kernel, ADDRESSES)
        self._addresses = struct.unpack(f"<{len(table) // 8}Q", table)
        self._found: dict[int, str] = {}

    def look_up(self, segments: Iterable[Segment]) -> None:
        """Find where code of headers was inlined; what is not found counts at its own line."""
        wanted = [segment for segment in segments if segment.number not in self._found]
        if not wanted:
            return
        self._found.update((segment.number, _own_place(segment)) for segment in wanted)
        for segment, frames in zip(wanted, self._frames(wanted), strict=False):
            self._found[segment.number] = self._place(segment, frames)

    def is_own(self, segment: Segment) -> bool:
        """Return whether a segment is the user's: not of our headers, inlined or not."""
        return self._found.get(segment.number) != ""

    def location(self, segment: Segment) -> str:
        """Return `file:line`."""
        return self._found.get(segment.number) or _own_place(segment)

    def _place(self, segment: Segment, frames: Sequence[str]) -> str:
        for frame in frames:
            path, number = path_and_line(frame)
            if path in self._sources:
                return f"{short_path(path)}:{number}"
            if path.startswith(_OURS):
                return ""
        return _own_place(segment)

    def _frames(self, segments: Sequence[Segment]) -> list[list[str]]:
        """Return the inlined frames at each segment's address, innermost first; nothing without addr2line."""
        tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
        if tool is None:
            return []
        fd = executable_file("neuron-customop-symbols", self._kernel)
        try:
            answer = subprocess.run(
                [tool, "-i", "-a", "-e", f"/proc/self/fd/{fd}"],
                input="".join(f"{self._addresses[segment.number]:#x}\n" for segment in segments),
                pass_fds=(fd,),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
        finally:
            os.close(fd)
        groups: list[list[str]] = []
        for line in answer.stdout.splitlines():
            if line.startswith("0x"):
                groups.append([])
            elif groups:
                groups[-1].append(line)
        return groups


def _own_place(segment: Segment) -> str:
    return f"{short_path(segment.path)}:{segment.line}" if segment.path else "?"
