"""The simulated machine. `start`, `connect`, `stop` and `list_machines` are its Python interface (docs/reference/python-api.md).

The names are loaded when they are used: neuron-ls comes through here and needs none of them.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine import aio as aio
    from neurontools.machine.api import Machine as Machine
    from neurontools.machine.api import connect as connect
    from neurontools.machine.api import start as start
    from neurontools.machine.client import Client as Client
    from neurontools.machine.launch import list_machines as list_machines
    from neurontools.machine.launch import stop as stop
    from neurontools.machine.machine_config import DaemonInfo as DaemonInfo
    from neurontools.machine.snapshot import Snapshot as Snapshot

_HOMES = {
    "Client": "client",
    "DaemonInfo": "machine_config",
    "Machine": "api",
    "Snapshot": "snapshot",
    "connect": "api",
    "list_machines": "launch",
    "start": "api",
    "stop": "launch",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "aio":
        return import_module("neurontools.machine.aio")
    if name not in _HOMES:
        raise AttributeError(f"module 'neurontools.machine' has no attribute {name!r}")
    return getattr(import_module(f"neurontools.machine.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "aio"})
