"""Export a trace to files of other programs."""

from __future__ import annotations

import csv
import errno
import io
import os
import shutil
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, TypeAlias

from neurontools.base.files import atomic_file, temporary_name
from neurontools.profiler.analysis.operators import top_operators
from neurontools.profiler.capture.format import ProfileError
from neurontools.profiler.exchange.export_timeline import write_chrome
from neurontools.profiler.exchange.html_report import write_html
from neurontools.profiler.exchange.parquet import write_parquet
from neurontools.profiler.exchange.perfetto import write_perfetto, write_tensorboard
from neurontools.profiler.exchange.stacks import write_folded, write_speedscope
from neurontools.profiler.formats import TraceFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from neurontools.profiler.exchange.export_timeline import Progress
    from neurontools.profiler.trace.trace import Trace

    TextWriter: TypeAlias = Callable[[Trace, IO[str]], None]

_DIRECTORIES = {TraceFormat.PARQUET: write_parquet, TraceFormat.TENSORBOARD: write_tensorboard}


def export(trace: Trace, form: TraceFormat, path: str, progress: Progress | None = None) -> None:
    """Write a trace to a file or, for some formats, a directory; a file is replaced when the new one is complete.

    A pipe or a device is written to and never replaced; a link is kept, and its target is replaced.

    Args:
        trace: the events.
        form: the format.
        path: the file or directory.
        progress: called with the number of events written and of all.

    Raises:
        ProfileError: the file cannot be written.
        MissingDependencyError: the format needs a library that is not installed.
    """
    with _write_errors(path):
        if form in _DIRECTORIES:
            with _atomic_directory(path) as directory:
                _DIRECTORIES[form](trace, directory, progress)
            return
        with _replaced(path) as file:
            _write(trace, form, file, progress)


def _replaced(path: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file that takes the place of `path` when it is complete; a pipe or a device stays."""
    target = os.path.realpath(path)
    is_special = os.path.exists(target) and not os.path.isfile(target)
    return open(path, "wb") if is_special else atomic_file(target, sync=False)


def write_text(path: str, text: str) -> None:
    """Write a text file; an existing one is replaced.

    Raises:
        ProfileError: the file cannot be written.
    """
    with _write_errors(path), _replaced(path) as file:
        file.write(text.encode())


def _write(trace: Trace, form: TraceFormat, file: IO[bytes], progress: Progress | None) -> None:
    if form is TraceFormat.PERFETTO:
        write_perfetto(trace, file, progress)
        return
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="", write_through=True)
    if form is TraceFormat.CHROME:
        write_chrome(trace, text, progress)
    else:
        _WHOLE[form](trace, text)
        if progress is not None:
            progress(trace.event_count, trace.event_count)
    text.detach()


def write_csv(trace: Trace, file: IO[str]) -> None:
    """Write a line an operator, those with most time first; times are nanoseconds."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("name", "opcode", "engine", "count", "total_ns", "share", "flops", "bytes_moved"))
    for each in top_operators(trace, None):
        writer.writerow((
            each.name, each.opcode, each.engine, each.count, each.total_ns, f"{each.share:.6f}", each.flops,
            each.bytes_moved,
        ))  # fmt: skip


_WHOLE: dict[TraceFormat, TextWriter] = {
    TraceFormat.CSV: write_csv,
    TraceFormat.FOLDED: write_folded,
    TraceFormat.HTML: write_html,
    TraceFormat.SPEEDSCOPE: write_speedscope,
}


@contextmanager
def _write_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProfileError(
            f"cannot write {path}: {error.strerror}", "use another file with --output-file"
        ) from error


@contextmanager
def _atomic_directory(path: str) -> Iterator[str]:
    """Give a new directory whose content is in `path`, a new or an existing directory, when the block ends well.

    Raises:
        OSError: something cannot be written; `path` is as before.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isdir(target):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    parent = os.path.dirname(target)
    made = _make_missing(parent)
    temporary = temporary_name(parent)
    try:
        os.mkdir(temporary)
        yield temporary
        if os.path.isdir(target):
            _move_into(temporary, target)
        else:
            os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for directory in reversed(made):
            with suppress(OSError):
                os.rmdir(directory)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


def _make_missing(directory: str) -> list[str]:
    """Make a directory and those above it that are missing; return the new ones."""
    missing: list[str] = []
    while not os.path.isdir(directory):
        missing.insert(0, directory)
        directory = os.path.dirname(directory)
    for path in missing:
        os.mkdir(path)
    return missing


def _move_into(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            moved = f"{target}/{entry.name}"
            if entry.is_dir(follow_symlinks=False) and os.path.isdir(moved):
                _move_into(entry.path, moved)
            else:
                os.replace(entry.path, moved)
