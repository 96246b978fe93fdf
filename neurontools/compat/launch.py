"""What `neuron-run` does before it becomes the user's program: environment, machine, shims."""

from __future__ import annotations

import os
import re
import sys
import time

from neurontools import env
from neurontools.compat import host_files
from neurontools.errors import NeuronToolsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class CommandNotExecutableError(NeuronToolsError):
    """The program exists but cannot be executed (exit code 126, as in shells)."""

    exit_code = 126


class CommandNotFoundError(NeuronToolsError):
    """The program does not exist (exit code 127, as in shells)."""

    exit_code = 127


class RunOptions:
    """How to run a program on the simulated machine. No dataclass: importing that takes a tenth of neuron-run's time.

    Args:
        command: the program and its arguments.
        instance: instance type of a private machine that ends with the program; None uses the shared machine.
        machine: name of the shared machine; None for the default machine.
        profile: directory that gets a profile of the run, None for no profile.
        steps: the training steps to profile, such as `10-20`; None for all.
        stacks: whether the profile has the program's call stacks.
        cache: compile cache root; None for the default root.
        explain: whether each compile is explained when it happens.
        force: whether the device `neuron` is allowed on any instance type.
    """

    __slots__ = (
        "cache",
        "command",
        "explain",
        "force",
        "instance",
        "machine",
        "profile",
        "stacks",
        "steps",
    )

    def __init__(
        self,
        command: tuple[str, ...],
        *,
        instance: str | None = None,
        machine: str | None = None,
        profile: str | None = None,
        steps: str | None = None,
        stacks: bool = False,
        cache: str | None = None,
        explain: bool = False,
        force: bool = False,
    ) -> None:
        self.command = command
        self.instance = instance
        self.machine = machine
        self.profile = profile
        self.steps = steps
        self.stacks = stacks
        self.cache = cache
        self.explain = explain
        self.force = force


def environment(options: RunOptions, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program: shims on the path, machine, profile and cache settings.

    Programs are looked up next to this Python first, so that `neuron-run -- python train.py` finds the Python that
    has neurontools without an activated virtual environment.
    """
    site = os.path.join(os.path.dirname(__file__), "site")
    values = dict(base)
    values[env.RUN] = "1"
    values.update(host_files.variables(base, sys.executable))
    values["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), base.get("PATH", os.defpath)])
    values["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [base.get("PYTHONPATH")])])
    if options.machine:
        values[env.MACHINE] = options.machine
    if options.cache:
        from neurontools.cache.location import URL_VARIABLE, resolve

        values[URL_VARIABLE] = resolve(base, options.cache).root
    if options.explain:
        values[env.EXPLAIN] = "1"
    if options.force:
        values[env.NATIVE_ANY_INSTANCE] = "1"
    if options.profile:
        values["NEURON_RT_INSPECT_ENABLE"] = "1"
        values["NEURON_RT_INSPECT_DEVICE_PROFILE"] = base.get("NEURON_RT_INSPECT_DEVICE_PROFILE") or "1"
        values["NEURON_RT_INSPECT_OUTPUT_DIR"] = os.path.abspath(options.profile)
        if options.steps:
            values[env.PROFILE_STEPS] = options.steps
        if options.stacks:
            values[env.PROFILE_STACKS] = "1"
        values[env.PROFILE_SESSION] = f"{time.time_ns()}-{os.getpid()}"
    return values


def run(options: RunOptions, on_notice: Callable[[str], None] | None = None) -> None:
    """Replace this process by the program. Returns only by raising.

    The process id stays the same, so signals and the exit code are the program's own, and a private machine, which
    watches this process id, ends with the program.

    Raises:
        CommandNotFoundError: the program does not exist.
        CommandNotExecutableError: it exists but cannot be executed.
        NoMachineError: the named machine does not run.
        NeuronToolsError: the private machine cannot be started, or the profile cannot be written.
    """
    values = environment(options, os.environ)
    program = find_program(options.command[0], values["PATH"])
    if options.profile:
        _check_profile_directory(options.profile)
    if options.machine:
        _check_machine(options.machine)
    if options.instance:
        values[env.MACHINE] = _private_machine(options.instance)
        if on_notice:
            on_notice(f"private machine {values[env.MACHINE]} ({options.instance}) ends with this run")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, options.command, values)  # noqa: S606
    except OSError as error:
        raise CommandNotExecutableError(
            f"cannot run {program}: {error.strerror}", "check its format and its first line"
        ) from error


def hiding_flag(command: Sequence[str]) -> str:
    """Return the flag of a Python command that hides the simulated packages, or "".

    -E and -I ignore PYTHONPATH, by which Python finds the packages, and -S leaves out the module that shows them.
    """
    if not os.path.basename(command[0]).startswith("python"):
        return ""
    for position, word in enumerate(command[1:], 1):
        takes_value = command[position - 1] in {"-W", "-X"}
        if takes_value:
            continue
        if not word.startswith("-") or word == "-":
            return ""
        flags = re.match(r"-([A-Za-z]*)", word)
        for letter in flags[1] if flags else "":
            if letter in "EIS":
                return f"-{letter}"
            if letter in "cmWX":  # the rest is its value
                break
        if re.match(r"-[A-Za-z]*[cm]", word):
            return ""
    return ""


def find_program(name: str, path: str) -> str:
    """Return the path of a program.

    Args:
        name: as the user gave it.
        path: directories to look in, in the form of PATH.

    Raises:
        CommandNotFoundError: the program does not exist.
        CommandNotExecutableError: it exists but cannot be executed.
    """
    import shutil

    program = shutil.which(name, path=path)
    if program is not None:
        return program
    if os.path.isdir(name):
        raise CommandNotExecutableError(f"cannot run {name}: it is a directory", "name a program")
    if os.path.isfile(name):
        remedy = f"neuron-run -- python {name}" if name.endswith(".py") else f"chmod +x {name}"
        raise CommandNotExecutableError(f"cannot run {name}: it is not executable", remedy)
    raise CommandNotFoundError(f"cannot run {name}: program not found", "check the name and PATH")


def _check_profile_directory(path: str) -> None:
    # Checked before the program starts: otherwise it would fail at its first use of the device, perhaps after minutes.
    # What is made for it goes again: the capture makes its directory, and a program that never gets there leaves none.
    import tempfile
    from contextlib import suppress

    made: list[str] = []
    missing = os.path.abspath(path)
    while not os.path.lexists(missing):
        made.append(missing)
        missing = os.path.dirname(missing)
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(1 << 16))  # more than the first files of a profile take
            file.flush()
    except OSError as error:
        raise NeuronToolsError(
            f"cannot write a profile to {path}: {error.strerror}", "choose another directory with --profile"
        ) from error
    finally:
        with suppress(OSError):  # another run may use it by now
            for directory in made:
                os.rmdir(directory)


def _check_machine(name: str) -> None:
    # Otherwise the program would fail at its first use of the device, with a traceback.
    from neurontools.machine import launch

    if name != env.DEFAULT_MACHINE:
        launch.ensure_running(name)


def _private_machine(instance: str) -> str:
    from neurontools.machine import launch

    name = f"run-{os.getpid()}"
    launch.start(launch.StartOptions(machine=name, instance_type=instance, parent_pid=os.getpid()))
    return name
