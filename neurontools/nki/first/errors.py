"""Errors of the first generation whose classes its documentation names ("NKI API Errors", release 2.26)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from neurontools.nki.context import declarations
from neurontools.nki.errors import KernelError
from neurontools.nki.locations import user_location

if TYPE_CHECKING:
    from neurontools.nki.memory import Allocation


class KernelValueError(KernelError, ValueError):
    """A truth value or a loop depends on what is not known when a kernel is compiled."""


class KernelSyntaxError(KernelError, SyntaxError):
    """A tile or its access is larger than the architecture or the tensor."""

    def __str__(self) -> str:
        return str(self.args[0])


def refuse_value(subject: str, reason: str, remedy: str = "", *concerned: Allocation) -> NoReturn:
    """Raise a ValueError at the kernel's line."""
    raise KernelValueError(_message(subject, reason, *concerned), remedy)


def refuse_size(subject: str, reason: str, remedy: str = "", *concerned: Allocation) -> NoReturn:
    """Raise a SyntaxError at the kernel's line."""
    raise KernelSyntaxError(_message(subject, reason, *concerned), remedy)


def _message(subject: str, reason: str, *concerned: Allocation) -> str:
    return "\n".join([f"{user_location()}: {subject}: {reason}", *declarations(*concerned)])
