"""The trial run of a user's program with graphs extracted and nothing compiled, and its analysis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools import __version__, env
from neurontools.cache import layouts
from neurontools.cache.entries import read_stored_flags
from neurontools.cache.entry_io import read_failure
from neurontools.cache.extraction import EXTRACT_VARIABLE, ExtractionRecord, RecordKind, read_records
from neurontools.compat import launch
from neurontools.compiler.graph import Graph, GraphError, graph_from_bytes
from neurontools.compiler.limits import type_error
from neurontools.compiler.options import COMPILER_VERSION, device_of
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType


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


RESULT = "result.json"
LOWERING = "Lowering to HLO"
COMPILER = "neuronx-cc"
_QUIET = 1
_ATEN = "aten"


@dataclass(frozen=True, slots=True)
class UnsupportedOperator:
    """An operator that the device does not support; `graph` is the text of its graph, "" if it is in none."""

    kind: str
    failure_at: str
    call: str
    graph: str = ""


@dataclass(frozen=True, slots=True)
class OperatorAnalysis:
    """The operators that a program calls on the device, with counts, and those not supported."""

    supported: tuple[tuple[str, int], ...]
    unsupported: tuple[UnsupportedOperator, ...]

    @property
    def percentage(self) -> float:
        """The share of the kinds of operators that are supported; 100 for a program without any."""
        bad = {item.kind for item in self.unsupported}
        good = {name for name, _ in self.supported} - bad
        return 100.0 * len(good) / len(good | bad) if good | bad else 100.0


def analyze(collected: TrialRun) -> OperatorAnalysis:
    """Return which of the operators that a trial run recorded are supported.

    Raises:
        NeuronToolsError: a graph of the run cannot be read.
    """
    counts: Counter[str] = Counter()
    unsupported = [
        UnsupportedOperator(note.text, LOWERING, f"{note.text} ({note.source})" if note.source else note.text)
        for note in collected.on_cpu
    ]
    for entry in collected.entries:
        graph = _read(entry)
        counts.update(_kind(node.op) for node in graph.nodes)
        unsupported += _find_unsupported(entry, graph)
    bad = {item.kind for item in unsupported}
    supported = sorted((name, count) for name, count in counts.items() if name not in bad)
    return OperatorAnalysis(tuple(supported), tuple(unsupported))


def write_result(analysis: OperatorAnalysis, directory: str, verbosity: int) -> str:
    """Write `result.json` to a directory, which is created if it does not exist, and return its path.

    Args:
        analysis: the result of `analyze`.
        directory: the target.
        verbosity: 2 includes the graph of each unsupported operator.

    Raises:
        NeuronToolsError: it cannot be written.
    """
    path = os.path.join(directory, RESULT)
    try:
        os.makedirs(directory, exist_ok=True)
        with open(path, "w", encoding="utf-8") as result:
            json.dump(result_json(analysis, verbosity), result, indent=4)
            result.write("\n")
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write {path}: {error.strerror}", "use another directory with --analyze-output"
        ) from error
    return path


def format_summary(analysis: OperatorAnalysis, path: str) -> tuple[str, ...]:
    """Return the summary: the share, each unsupported operator, the path of the result."""
    kinds = len({name for name, _ in analysis.supported})
    return (
        f"{analysis.percentage:.2f}% of the operators are supported ({kinds} kinds)",
        *(f"not supported at {item.failure_at}: {item.call}" for item in analysis.unsupported),
        f"The result is in {path}",
    )


def result_json(analysis: OperatorAnalysis, verbosity: int) -> dict[str, Any]:
    """Return the contents of `result.json`."""
    return {
        "torch_neuronx_version": f"neurontools {__version__}",
        "neuronx_cc_version": COMPILER_VERSION,
        "support_percentage": f"{analysis.percentage:.2f}%",
        "supported_operators": {
            space: {name: count for name, count in analysis.supported if _space(name) == space}
            for space in _spaces(name for name, _ in analysis.supported)
        },
        "unsupported_operators": {
            space: [
                _unsupported_json(item, verbosity)
                for item in analysis.unsupported
                if _space(item.kind) == space
            ]
            for space in _spaces(item.kind for item in analysis.unsupported)
        },
    }


def _unsupported_json(item: UnsupportedOperator, verbosity: int) -> dict[str, str]:
    found = {"kind": item.kind, "failureAt": item.failure_at, "call": item.call}
    return found if verbosity <= _QUIET else {**found, "opGraph": item.graph}


def _spaces(names: Iterable[str]) -> tuple[str, ...]:
    """Return the namespaces of operators, torch's own always among them."""
    return tuple(sorted({_ATEN, *map(_space, names)}))


def _space(name: str) -> str:
    return name.partition("::")[0]


def _read(entry: str) -> Graph:
    try:
        with layouts.open_entry(entry) as directory:
            return graph_from_bytes(directory.read(layouts.GRAPH))
    except OSError as error:
        raise NeuronToolsError(
            f"cannot read a graph of this run: {error.filename}: {error.strerror}", "run the analysis again"
        ) from error
    except GraphError as error:
        raise NeuronToolsError(f"{entry}: {error.message}", "run the analysis again") from error


def _find_unsupported(entry: str, graph: Graph) -> list[UnsupportedOperator]:
    flags = read_stored_flags(entry) or ()
    device = device_of(flags)
    found = [
        UnsupportedOperator(_kind(node.op), COMPILER, error.message, graph.to_text())
        for node in graph.nodes
        if (error := type_error(node, device, flags)) is not None
    ]
    failure = read_failure(entry)
    if failure is None or found:
        return found
    return [UnsupportedOperator(f"{_ATEN}::graph", COMPILER, failure.message, graph.to_text())]


def _kind(operator: str) -> str:
    namespace, _, rest = operator.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}"
