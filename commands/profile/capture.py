"""neuron-profile capture: execute a NEFF with profiling, with the real tool's flags that make sense here."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from typing import TYPE_CHECKING

from neurontools.base.text import plural, printable
from neurontools.commands import console
from neurontools.commands.parsing import add_verb, positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.commands.parsing import Verbs
    from neurontools.xla.neff_executable import NeffRun

_WORKERS = {
    "-r": ("--collectives-workers-per-node", ("1",)),
    "--collectives-worker-count": ("", ("1",)),
    "--collectives-worker-start-id": ("", ("0",)),
    "-i": ("--collectives-profile-id", ("0", "all")),
    "-m": ("--multi-input", ()),
}
"""Flags for several workers: other spelling, and the values that mean this one."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "capture", "execute a NEFF with profiling", _capture)
    add = parser.add_argument
    add("-n", "--neff", default="file.neff", metavar="FILE", help="NEFF to execute (default: %(default)s)")
    add(
        "-s",
        "--session-file",
        default="profile.ntff",
        metavar="DIR",
        help="directory for the profile (default: %(default)s)",
    )
    add("--num-exec", type=positive, default=1, metavar="N", help="number of executions (default: 1)")
    add(
        "--profile-nth-exec",
        type=int,
        metavar="N",
        help="profile only this execution, into profile_exec_N.ntff; 0: none",
    )
    add("--disable-profile", action="store_true", help="execute only")
    add("--ignore-exec-errors", action="store_true", help="continue after an execution that fails")
    add(
        "--check-output-determinism",
        action="store_true",
        help="fail if two executions differ in their results",
    )
    add("--save-output", action="store_true", help="write the results as SLOT.bin")
    add("--save-output-npy", action="store_true", help="write the results as SLOT.npy")
    add(
        "-t",
        "--capture-type",
        choices=("profile", "systrace"),
        default="profile",
        metavar="TYPE",
        help="profile; systrace: without what the device does (default: profile)",
    )
    add(
        "--systrace-event-filter",
        action="append",
        metavar="NAME",
        help="record only these wall-clock events; may be repeated",
    )
    add(
        "--systrace-get-event-types", action="store_true", help="list the names of wall-clock events and exit"
    )
    # There is one way to execute, inputs are always separate, and DMA queues have names.
    add("--exec-mode", choices=("sync", "async", "async-wait"), metavar="MODE", help=argparse.SUPPRESS)
    add("--single-io-threshold", metavar="BYTES", help=argparse.SUPPRESS)
    for flag in ("--enable-dge-notifs", "--single-io"):
        add(flag, action="store_true", help=argparse.SUPPRESS)
    for flag, (long, _) in _WORKERS.items():
        add(flag, *([long] if long else []), dest=flag, metavar="N", help=argparse.SUPPRESS)
    add("inputs", nargs="*", metavar="NAME FILE", help="contents of inputs; the others are zeros")


def _capture(arguments: argparse.Namespace) -> int:
    from neurontools.errors import NeuronToolsError, UsageError
    from neurontools.runtime.status import NrtError

    if arguments.systrace_get_event_types:
        from neurontools.profiler.capture.settings import EVENT_NAMES

        console.out("\n".join(EVENT_NAMES))
        return 0
    given = vars(arguments)
    if any(given[flag] not in {None, *alone} for flag, (_, alone) in _WORKERS.items()):
        raise UsageError(
            "capture executes a NEFF in one process, without other workers",
            "profile the workers with neuron-run --profile DIR -- torchrun ...",
        )
    inputs = _inputs(arguments.inputs)
    with_profile = not arguments.disable_profile and arguments.profile_nth_exec != 0
    directory = _directory(arguments)
    if with_profile:
        _set_variables(arguments, directory)
    is_new = not os.path.lexists(directory)
    try:
        run = _execute(arguments, inputs)
    except NrtError:
        raise  # the profile shows the execution that failed
    except NeuronToolsError:
        if with_profile and is_new:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    _save(run, arguments)
    failed = f", {run.failures} failed" if run.failures else ""
    console.err(f"executed {printable(arguments.neff)} {plural(arguments.num_exec, 'time')}{failed}")
    if with_profile:
        console.err(
            f"profile in {printable(directory)}; next: neuron-profile view {printable(shlex.quote(directory))}"
        )
    return 0


def _inputs(words: list[str]) -> dict[str, bytes]:
    from neurontools.base.files import open_input
    from neurontools.errors import NeuronToolsError, UsageError

    if len(words) % 2:
        raise UsageError(f"input {words[-1]} has no file", "give pairs of NAME FILE")
    contents = {}
    for name, path in zip(words[::2], words[1::2], strict=True):
        try:
            with open_input(path) as file:
                contents[name] = file.read()
        except OSError as error:
            raise NeuronToolsError(
                f"cannot read {path}: {error.strerror}", f"it is for input {name}"
            ) from error
    return contents


def _directory(arguments: argparse.Namespace) -> str:
    """Return where the profile goes: as with the real tool, that of the Nth execution has the number in its name."""
    path: str = arguments.session_file
    if not arguments.profile_nth_exec:
        return path
    stem, ending = os.path.splitext(path.rstrip("/"))
    return f"{stem}_exec_{arguments.profile_nth_exec}{ending}"


def _set_variables(arguments: argparse.Namespace, directory: str) -> None:
    from neurontools import env
    from neurontools.errors import UsageError

    nth = arguments.profile_nth_exec
    if nth is not None and not 1 <= nth <= arguments.num_exec:
        raise UsageError(
            f"--profile-nth-exec {nth}: there is no such execution", f"--num-exec is {arguments.num_exec}"
        )
    os.environ["NEURON_RT_INSPECT_ENABLE"] = "1"
    os.environ["NEURON_RT_INSPECT_DEVICE_PROFILE"] = "0" if arguments.capture_type == "systrace" else "1"
    os.environ["NEURON_RT_INSPECT_OUTPUT_DIR"] = os.path.abspath(directory)
    if arguments.systrace_event_filter:
        os.environ["NEURON_RT_INSPECT_EVENT_FILTER_TYPE"] = ",".join(arguments.systrace_event_filter)
    if nth is not None:
        os.environ[env.PROFILE_STEPS] = str(nth)


def _execute(arguments: argparse.Namespace, inputs: Mapping[str, bytes]) -> NeffRun:
    from neurontools.base.files import open_input
    from neurontools.errors import NeuronToolsError
    from neurontools.xla import api
    from neurontools.xla.neff_executable import execute_neff

    try:
        with open_input(arguments.neff) as file:
            neff = file.read()
    except OSError as error:
        raise NeuronToolsError(
            f"cannot read {arguments.neff}: {error.strerror}", "name a NEFF with -n FILE"
        ) from error
    api.activate()
    try:
        return execute_neff(
            neff,
            inputs,
            executions=arguments.num_exec,
            ignore_errors=arguments.ignore_exec_errors,
            check_determinism=arguments.check_output_determinism,
            name=arguments.neff,
        )
    finally:
        api.shutdown()


def _save(run: NeffRun, arguments: argparse.Namespace) -> None:
    from neurontools.base.files import write_atomic
    from neurontools.errors import NeuronToolsError

    if not arguments.save_output and not arguments.save_output_npy:
        return
    from neurontools.xla.neff_executable import npy_bytes, raw_bytes

    form, data = (
        ("npy", npy_bytes(run.results)) if arguments.save_output_npy else ("bin", raw_bytes(run.results))
    )
    for name, content in data.items():
        path = f"{name}.{form}"
        try:
            write_atomic(path, content)
        except OSError as error:
            raise NeuronToolsError(
                f"cannot write {path}: {error.strerror}", "use another directory"
            ) from error
    names = ", ".join(f"{name}.{form}" for name in data)
    console.err(f"wrote {names}" if names else "the NEFF returns nothing")
