"""The name of the device in this process: `xla`, or `neuron` for the native device. PrivateUse1 can be named once."""

from __future__ import annotations

import functools
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
    XLA: re.compile(r"at start of device string: neuron|module 'torch' has no attribute 'neuron'"),
    NEURON: re.compile(r"with support for xla devices|from the 'XLA' backend"),
}
"""What torch says of the other name, by the chosen one: it knows neither this process's name nor why it has it."""
_WITHOUT_DEVICE = {
    XLA: f"this program's code does not ask for the device neuron, or imports torch_xla: set {env.DEVICE}=neuron",
    NEURON: f"hint: import torch_xla first, or set {env.DEVICE}=xla",
}
"""Why a process without a device lacks the other one."""
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


@functools.cache  # one hook per process: it decides when the program ends
def explain_at_exit() -> None:
    """Add a note to the traceback of a program that names a device which it does not have, or uses Triton.

    torch's errors do not know which device a process has, nor why.
    """
    write_traceback = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        note = _explanation(str(error)) if isinstance(error, AttributeError | RuntimeError) else ""
        if note:
            error.add_note(note)
        write_traceback(kind, error, traceback)

    sys.excepthook = explain


def _explanation(text: str) -> str:
    if not _chosen:
        return next((note for name, note in _WITHOUT_DEVICE.items() if _OF_OTHER_NAME[name].search(text)), "")
    name = device_name()
    other = NEURON if name == XLA else XLA
    if _OF_OTHER_NAME[name].search(text):
        return f"{_conflict(name, other)}: {_remedy(other)}"
    return ": ".join(triton_refusal()) if _NO_DRIVER.search(text) else ""


def _conflict(name: str, other: str) -> str:
    return f"the device of this process is called {name!r}, so it cannot be {other!r} too"


def _remedy(wanted: str) -> str:
    return f"use one of the two names per process; {env.DEVICE}={wanted} chooses {wanted!r}"
