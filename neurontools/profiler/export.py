"""Exporting a trace to a file of another program."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.profiler.meta import ProfileError

if TYPE_CHECKING:
    from neurontools.profiler.export_rows import Progress
    from neurontools.profiler.trace import Trace


class TraceFormat(StrEnum):
    """Formats of trace files."""

    JSON = "json"
    CHROME = "chrome"
    PERFETTO = "perfetto"


DEFAULT_FILES = {
    TraceFormat.JSON: "ntff.json",
    TraceFormat.CHROME: "ntff.trace.json",
    TraceFormat.PERFETTO: "ntff.pftrace",
}


def export(trace: Trace, form: TraceFormat, path: str, progress: Progress | None = None) -> None:
    """Write a trace to a file; an existing one is replaced when the new one is complete.

    What is no regular file (a pipe, a device) is written to and never replaced; a link stays and leads to the file.

    Args:
        trace: the events.
        form: the format.
        path: the file.
        progress: called now and then with the events written and their number.

    Raises:
        ProfileError: the file cannot be written.
    """
    try:
        target = os.path.realpath(path)
        if os.path.exists(target) and not os.path.isfile(target):
            _write(trace, form, path, progress)
            return
        part = target + ".part"
        try:
            _write(trace, form, part, progress)
            os.replace(part, target)
        except BaseException:
            if os.path.exists(part):
                os.unlink(part)
            raise
    except OSError as error:
        raise ProfileError(
            f"cannot write {path}: {error.strerror}", "choose another with --output-file"
        ) from error


def _write(trace: Trace, form: TraceFormat, path: str, progress: Progress | None) -> None:
    from neurontools.profiler.export_chrome import write_chrome
    from neurontools.profiler.export_json import write_json
    from neurontools.profiler.export_perfetto import write_perfetto

    if form is TraceFormat.PERFETTO:
        with open(path, "wb") as binary:
            write_perfetto(trace, binary, progress)
        return
    write = write_chrome if form is TraceFormat.CHROME else write_json
    with open(path, "w", encoding="utf-8", buffering=1 << 20) as file:
        write(trace, file, progress)


def write_text(path: str, text: str) -> None:
    """Write a text file; an existing one is replaced.

    Raises:
        ProfileError: the file cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ProfileError(
            f"cannot write {path}: {error.strerror}", "choose another with --output-file"
        ) from error
