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
class TrialRun:
    """The result of a trial run.

    Args:
        code: exit code of the program, 128 plus the number of the signal that ended it.
        roots: the caches that it used.
        entries: directories of the graphs' entries in the order of their first use, each once.
        on_cpu: operators that ran on the CPU, with the user's line.
    """

    code: int
    roots: tuple[str, ...]
    entries: tuple[str, ...]
    on_cpu: tuple[ExtractionRecord, ...]


def default_workdir() -> str:
    """Return the real tool's directory for intermediate files of trial runs."""
    import getpass
    import tempfile

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "no-user"
    return os.path.join(tempfile.gettempdir(), user, "parallel_compile_workdir")


def collect(
    command: tuple[str, ...], workdir: str, environ: Mapping[str, str], stdout: int | None = None
) -> TrialRun:
    """Run a program with graph extraction on and return what it extracted.

    Args:
        command: the program and its arguments.
        workdir: directory of an intermediate file.
        environ: the environment to start from.
        stdout: descriptor for the program's output, None to inherit.

    Raises:
        NeuronToolsError: the program cannot be started, or the work directory cannot be written.
    """
    log = _create_log(workdir)
    try:
        code = _run(command, {**environ, EXTRACT_VARIABLE: "1", env.EXTRACTION_LOG: log}, stdout)
        found = tuple(read_records(log))
    finally:
        os.unlink(log)
    records = {kind: tuple(dict.fromkeys(item for item in found if item.kind is kind)) for kind in RecordKind}
    return TrialRun(
        code=code,
        roots=tuple(item.text for item in records[RecordKind.ROOT]),
        entries=tuple(item.text for item in records[RecordKind.GRAPH]),
        on_cpu=records[RecordKind.ON_CPU],
    )


def check_exit_code(collected: TrialRun, environ: Mapping[str, str]) -> str:
    """Return a warning about a failed trial run whose graphs are compiled anyway, "" for a successful one.

    Raises:
        TrialRunError: it failed, and the environment does not allow that.
    """
    if collected.code == 0:
        return ""
    text = f"the program ended with exit code {collected.code} while its graphs were collected"
    if environ.get(IGNORE_ERROR_VARIABLE, "").lower() not in {"1", "true"}:
        raise TrialRunError(
            f"{text}; {len(collected.entries)} graphs were collected and none compiled",
            f"fix the program, or set {IGNORE_ERROR_VARIABLE}=1 to compile the collected graphs anyway",
        )
    return text


def _create_log(workdir: str) -> str:
    import tempfile

    try:
        os.makedirs(workdir, mode=0o700, exist_ok=True)
        # A killed run leaves its file, and in containers the next run has the same pid.
        descriptor, path = tempfile.mkstemp(".jsonl", f"extracted_pid{os.getpid()}_", workdir)
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write to the work directory {workdir}: {error.strerror}",
            "use another directory with --parallel_compile_workdir",
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
    """Forward signals to the program; Ctrl-C reaches it through the terminal."""

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
