"""Errors of kernels, in the form of a compiler: file, line, instruction, reason, notes and remedy."""

from __future__ import annotations

from neurontools.errors import NeuronToolsError


class KernelError(NeuronToolsError, AssertionError):
    """A kernel does what a NeuronCore or the compiler of NKI refuses.

    An AssertionError too, as the errors of the vendor's simulator are: tests of kernels expect it.
    """

    has_lines = True


class KernelUsageError(KernelError):
    """A function of NKI is called outside of a kernel, or with arguments that it does not have."""

    exit_code = 2
