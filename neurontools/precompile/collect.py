"""The trial run: the user's program with graphs extracted and nothing compiled."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.cache.extraction import EXTRACT_VARIABLE, RecordKind, read_records
from neurontools.compat import launch
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from neurontools.cache.extraction import ExtractionRecord

IGNORE_ERROR_VARIABLE = "NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE"
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class TrialRunError(NeuronToolsError):
    """The program failed while its graphs were collected."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a trial run told.

    Args:
        code: exit code of the program, 128 and the signal's number where one ended it.
        roots: the caches that it used: programs may name one themselves.
        entries: directories of the graphs' entries in the order of their first use, each once.
        on_cpu: operators that ran on the CPU, with the user's line.
    """

    code: int
    roots: tuple[str, ...]
    entries: tuple[str, ...]
    on_cpu: tuple[ExtractionRecord, ...]


def default_workdir() -> str:
    """Return where the real tool keeps the notes of its trial runs (compile-runtime.md section 1.3)."""
    import getpass
    import tempfile

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "no-user"
    return os.path.join(tempfile.gettempdir(), user, "parallel_compile_workdir")


def collect(
    command: tuple[str, ...], workdir: str, environ: Mapping[str, str], stdout: int | None = None
) -> Collected:
    """Run a program with graph extraction on and return what it extracted.

    Args:
        command: the program and its arguments.
        workdir: gets a file for the time of the run.
        environ: the environment to start from.
        stdout: descriptor for what the program prints, None for ours.

    Raises:
        NeuronToolsError: the program cannot be started, or the work directory not be written to.
    """
    notes = _notes_file(workdir)
    try:
        code = _run(command, {**environ, EXTRACT_VARIABLE: "1", env.EXTRACTION_LOG: notes}, stdout)
        found = tuple(read_records(notes))
    finally:
        os.unlink(notes)
    noted = {kind: tuple(dict.fromkeys(note for note in found if note.kind is kind)) for kind in RecordKind}
    return Collected(
        code=code,
        roots=tuple(note.text for note in noted[RecordKind.ROOT]),
        entries=tuple(note.text for note in noted[RecordKind.GRAPH]),
        on_cpu=noted[RecordKind.ON_CPU],
    )


def check(collected: Collected, environ: Mapping[str, str]) -> str:
    """Return a warning about a failed trial run whose graphs are compiled all the same, "" for a good one.

    Raises:
        TrialRunError: it failed, and nothing says that this is to be ignored.
    """
    if collected.code == 0:
        return ""
    text = f"the program ended with exit code {collected.code} while its graphs were collected"
    if environ.get(IGNORE_ERROR_VARIABLE, "").lower() not in {"1", "true"}:
        raise TrialRunError(
            f"{text}; {len(collected.entries)} graphs were collected and none compiled",
            f"mend the program, or compile what was collected with {IGNORE_ERROR_VARIABLE}=1",
        )
    return text


def _notes_file(workdir: str) -> str:
    import tempfile

    try:
        os.makedirs(workdir, mode=0o700, exist_ok=True)
        # A killed run leaves its file, and in containers the next one has the same number.
        descriptor, path = tempfile.mkstemp(".jsonl", f"extracted_pid{os.getpid()}_", workdir)
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write to the work directory {workdir}: {error.strerror}",
            "name another with --parallel_compile_workdir",
        ) from error
    os.close(descriptor)
    return path


def _run(command: tuple[str, ...], environ: Mapping[str, str], stdout: int | None) -> int:
    options = launch.RunOptions(command)
    values = dict(environ) if env.RUN in environ else launch.environment(options, environ)
    program = launch.find_program(command[0], values["PATH"])
    try:
        process = subprocess.Popen(command, executable=program, env=values, stdout=stdout)
    except OSError as error:
        raise launch.CommandNotExecutableError(
            f"cannot run {program}: {error.strerror}", "check its format and its first line"
        ) from error
    with _forwarding(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals that would end us on to the program, which decides; Ctrl-C reaches it through the terminal."""

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    except KeyboardInterrupt:
        process.wait()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
