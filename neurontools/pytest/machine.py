"""A simulated machine for one test: in a private directory, found by environment variables, stopped with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import pytest

from neurontools import env
from neurontools.base.text import did_you_mean
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine import launch
from neurontools.machine.api import Machine, start_options
from neurontools.machine.client import Client
from neurontools.machine.processes import wait_for_end
from neurontools.runtime import session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from neurontools.machine.faults.params import Fault, FaultParams
    from neurontools.machine.machine_config import DaemonInfo

DEFAULT_NAME = "test"
TIMEOUT_S = 120.0
_STOP_S = 10.0
_EXAMPLE = '@pytest.mark.neuron(instance="trn2.48xlarge", lnc=1)'
_KINDS: dict[str, tuple[type, str]] = {
    "instance": (str, "a text"),
    "name": (str, "a text"),
    "lnc": (int, "a whole number"),
    "neighbours": (str, "a text"),
    "visible_devices": (str, "a text"),
    "ultraserver_mode": (str, "a text"),
    "ultraserver_node": (int, "a whole number"),
}


class MachineChoices(TypedDict, total=False):
    """Arguments of the marker besides instance type and name; see `neurontools.machine.start`."""

    lnc: int | None
    neighbours: str | None
    visible_devices: str | None
    ultraserver_mode: str | None
    ultraserver_node: int | None


class MachineOptions(MachineChoices, total=False):
    """The arguments of the marker."""

    instance: str | None
    name: str | None


class NeuronMachine(Machine):
    """A machine, and a method to run programs on it.

    `environ` are the variables by which programs find it; they are set in the test process too.
    """

    def __init__(self, client: Client, info: DaemonInfo, environ: Mapping[str, str]) -> None:
        super().__init__(client, info)
        self.environ = dict(environ)

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        check: bool = False,
        timeout_s: float = TIMEOUT_S,
        stdin: str = "",
        environ: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the machine and return its exit code and output.

        Args:
            command: program and arguments; `neuron-ls`, other tools of ours and `python` are those of this installation.
            check: raise an error when the exit code is not 0.
            timeout_s: seconds until it is killed.
            stdin: its standard input.
            environ: additional variables.
            cwd: working directory.

        Raises:
            subprocess.CalledProcessError: with `check`, the exit code is not 0.
            subprocess.TimeoutExpired: it took too long.
            FileNotFoundError: the program does not exist.
        """
        variables = {**os.environ, **self.environ, **(environ or {})}
        scripts = sysconfig.get_path("scripts")
        variables["PATH"] = f"{scripts}{os.pathsep}{variables.get('PATH', os.defpath)}"
        return subprocess.run(
            [os.fspath(word) for word in command],
            check=check,
            timeout=timeout_s,
            input=stdin,
            env=variables,
            cwd=cwd,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )


@contextmanager
def private_machine(
    directory: str, instance: str | None = None, *, name: str | None = None, **choices: Unpack[MachineChoices]
) -> Iterator[NeuronMachine]:
    """Start a machine for a block; programs started inside find it by their environment.

    It ends with the block, or with this process, however that ends. A runtime that the block opened in this process and
    did not close is closed.

    Args:
        directory: private directory for sockets and pages; it is removed.
        instance: instance type, None for NEURONTOOLS_INSTANCE.
        name: the machine's name, None for "test".
        choices: as of `neurontools.machine.start`.

    Raises:
        NeuronToolsError: an option is invalid, or the machine could not start.
    """
    environ = {
        env.RUNTIME_DIR: directory,
        env.MACHINE: DEFAULT_NAME if name is None else name,
        env.AUTOSTART: "0",
    }
    before = session.current()
    with pytest.MonkeyPatch.context() as patch:
        _set(patch, environ)
        info = launch.start(start_options(instance, private=True, **choices))
        try:
            with Client.connect() as client:
                yield NeuronMachine(client, info, environ)
        finally:
            _set(patch, environ)  # the test may have changed it
            _close_runtime(before)
            _stop(info)
            shutil.rmtree(directory, ignore_errors=True)


def _set(patch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    for variable, value in environ.items():
        patch.setenv(variable, value)


def _stop(info: DaemonInfo) -> None:
    try:
        launch.stop(info.machine, force=True)
    except NeuronToolsError:
        wait_for_end(info.pid, _STOP_S)  # it is ending or has ended


def _close_runtime(before: session.Runtime | None) -> None:
    runtime = session.current()
    if runtime is not None and runtime is not before:
        runtime.close()


def machine_options(node: pytest.Item, parameter: object = None) -> MachineOptions:
    """Return the options of a test's machine: markers of module, class and function (the closest wins), the parameter.

    Args:
        node: the test.
        parameter: the fixture's, in an indirectly parametrized test: an instance type, or a dict of arguments.

    Raises:
        UsageError: an argument is unknown, of another type, or positional.
    """
    options: dict[str, Any] = {}
    for marker in reversed([*node.iter_markers("neuron")]):
        if marker.args:
            raise UsageError(f"@pytest.mark.neuron takes named arguments, not {marker.args[0]!r}", _EXAMPLE)
        options |= marker.kwargs
    match parameter:
        case None:
            pass
        case str():
            options["instance"] = parameter
        case dict():
            options |= parameter
        case _:
            raise UsageError(
                f"invalid parameter of neuron_machine: {parameter!r}",
                "give an instance type, or a dict of arguments",
            )
    for name, value in options.items():
        _check(name, value)
    return cast("MachineOptions", options)


def _check(name: str, value: object) -> None:
    if name not in _KINDS:
        raise UsageError(f"@pytest.mark.neuron has no argument {name!r}", did_you_mean(str(name), _KINDS))
    kind, words = _KINDS[name]
    if value is not None and type(value) is not kind:
        raise UsageError(f"@pytest.mark.neuron: {name} must be {words}, not {value!r}", _EXAMPLE)


class FaultInjector:
    """Call it with the arguments of `Machine.inject`: `inject("ecc", device=3)`.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._injected: set[int] = set()

    def __call__(self, kind: str, **aim: Unpack[FaultParams]) -> Fault:
        """Inject a fault; see `Machine.inject`."""
        fault = self._machine.inject(kind, **aim)
        self._injected.add(fault.id)
        return fault

    def clear(self) -> None:
        """Clear the injected faults that are still armed."""
        armed = [fault for fault in self._machine.faults() if fault.id in self._injected]
        if armed:
            self._machine.clear_faults(*armed)
        self._injected.clear()


@contextmanager
def injector(machine: Machine) -> Iterator[FaultInjector]:
    """Yield an injector for a block; its faults are cleared at the end, unless the machine was stopped."""
    inject = FaultInjector(machine)
    try:
        yield inject
    finally:
        with suppress(NeuronToolsError):
            inject.clear()
