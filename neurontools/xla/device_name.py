"""The name of the device in this process: `xla`, or `neuron` for the native device. PrivateUse1 can be named once."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.xla.accelerator import DeviceError

if TYPE_CHECKING:
    from types import TracebackType

XLA = "xla"
NEURON = "neuron"
_chosen: list[str] = []
_OF_OTHER_NAME = {
    XLA: re.compile(r"at start of device string: neuron"),
    NEURON: re.compile(r"with support for xla devices|from the 'XLA' backend"),
}
"""What torch says of the other name, by the chosen one: it knows neither this process's name nor why it has it."""
_NO_DRIVER = re.compile(r"\b0 active drivers ")
"""What Triton says without a GPU, when a kernel is called or compiled."""


def device_name() -> str:
    """Return the device's name, `xla` as long as none was chosen."""
    return _chosen[0] if _chosen else XLA


def choose(name: str) -> None:
    """Choose the device's name; the first choice is final.

    Raises:
        DeviceError: this process has chosen the other name.
    """
    if _chosen and _chosen[0] != name:
        raise DeviceError(_conflict(_chosen[0], name), _remedy(name))
    _chosen[:] = [name]


def triton_refusal() -> tuple[str, str]:
    """Return why Triton kernels do not run, and what to do."""
    return (
        f"Triton kernels do not run on the device {device_name()}",
        "call torch operators, or a custom operator in C++ (neuron-customop)",
    )


def explain_at_exit() -> None:
    """Add a note to the traceback of a program that ends because it uses the other name or Triton; their errors lack it."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        name = device_name()
        if isinstance(error, RuntimeError) and _OF_OTHER_NAME[name].search(str(error)):
            other = NEURON if name == XLA else XLA
            error.add_note(f"{_conflict(name, other)}: {_remedy(other)}")
        elif isinstance(error, RuntimeError) and _NO_DRIVER.search(str(error)):
            error.add_note(": ".join(triton_refusal()))
        shown(kind, error, traceback)

    sys.excepthook = show


def _conflict(name: str, other: str) -> str:
    return f"the device of this process is called {name!r}, so it cannot be {other!r} too"


def _remedy(wanted: str) -> str:
    return f"use one of the two names per process; {env.DEVICE}={wanted} chooses {wanted!r}"
