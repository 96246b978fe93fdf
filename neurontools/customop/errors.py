"""What can go wrong with custom operators: building, opening a library, running an operator."""

from __future__ import annotations

from neurontools.customop.remedies import remedy_for
from neurontools.errors import NeuronToolsError


class CustomOpBuildError(NeuronToolsError):
    """A library could not be built; the remedy holds the compiler's lines about the user's files, if any."""


class CustomOpLibraryError(NeuronToolsError):
    """A file is no custom operator library, is damaged, or does not fit this version or computer."""


class UnsupportedInstanceError(CustomOpLibraryError):
    """The machine has cores that run no custom operators."""


class NeuronCustomOpError(NeuronToolsError):
    """An operator failed while it ran.

    Args:
        op: qualified name, `library::operator`.
        kind: which check failed, one word: bounds, tcm, null, timeout, overlap, coverage, dtype, ...
        reason: what happened, one line.
        core: GPSIMD core that ran, -1 when it concerns all of them or a shape function.
        location: `file:line` of the user's source, or "".
        arguments: the arguments' shapes and dtypes, as text.
    """

    def __init__(
        self, op: str, kind: str, reason: str, *, core: int = -1, location: str = "", arguments: str = ""
    ) -> None:
        where = f" on core {core}" if core >= 0 else ""
        source = f" at {location}" if location else ""
        called = f" [called with {arguments}]" if arguments else ""
        super().__init__(
            f"custom operator {op} failed{where}: {kind}: {reason}{source}{called}", remedy_for(kind, reason)
        )
        self.op = op
        self.kind = kind
        self.reason = reason
        self.core = core
        self.location = location
        self.arguments = arguments
