"""Every environment variable of ours, in one place: name, default, meaning. Imports only what `python -c pass` has."""

import os

RUNTIME_DIR = "NEURONTOOLS_RUNTIME_DIR"
MACHINE = "NEURONTOOLS_MACHINE"
AUTOSTART = "NEURONTOOLS_AUTOSTART"
INSTANCE = "NEURONTOOLS_INSTANCE"
EMULATE = "NEURONTOOLS_EMULATE"
PACE = "NEURONTOOLS_PACE"
HOST_MEMORY = "NEURONTOOLS_HOST_MEMORY"
CUSTOMOP_INPROCESS = "NEURONTOOLS_CUSTOMOP_INPROCESS"
RUN = "NEURONTOOLS_RUN"

DEFAULT_MACHINE = "default"
DEFAULT_INSTANCE = "trn1.2xlarge"
DEFAULT_EMULATE = "2.32"
DEFAULT_HOST_MEMORY = "25%"

DOCUMENTED = (
    (RUNTIME_DIR, "", "directory of sockets and telemetry pages; also holds the state of its machines"),
    (MACHINE, DEFAULT_MACHINE, "name of the machine that tools and programs use"),
    (AUTOSTART, "1", "0 forbids starting a machine on first need"),
    (INSTANCE, DEFAULT_INSTANCE, "instance type of a machine that is started on first need"),
    (EMULATE, DEFAULT_EMULATE, "release of the real tools whose output is reproduced: 2.32 or 2.28"),
    (PACE, "0", "1 makes an execution last at least its modelled device time"),
    (
        CUSTOMOP_INPROCESS,
        "0",
        "1 runs custom operators in this process instead of the worker (for debuggers)",
    ),
    (RUN, "", "set by neuron-run in the programs that it starts"),
)


def machine() -> str:
    """Return the machine's name that tools use when none is given."""
    return os.environ.get(MACHINE) or DEFAULT_MACHINE


def autostart() -> bool:
    """Return whether a machine may be started on first need."""
    return os.environ.get(AUTOSTART, "1") not in {"0", "false", "no"}


def instance() -> str:
    """Return the instance type of a machine that is started on first need."""
    return os.environ.get(INSTANCE) or DEFAULT_INSTANCE


def emulate() -> str:
    """Return the release of the real tools whose output is reproduced."""
    return os.environ.get(EMULATE) or DEFAULT_EMULATE


def host_memory() -> str:
    """Return what device tensors may take of this computer's memory: a share such as 25% or a size."""
    return os.environ.get(HOST_MEMORY) or DEFAULT_HOST_MEMORY


def flag(name: str) -> bool:
    """Return whether a variable of the 0/1 kind is on."""
    return os.environ.get(name, "0") not in {"", "0", "false", "no"}
