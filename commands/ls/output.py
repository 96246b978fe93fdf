"""Writes replies of the daemon to standard output and standard error. The fast path loads it: it imports little."""

import os
import time

from neurontools.errors import NeuronToolsError

_RETRY_S = 0.005


def show(reply: tuple[int, bytes, bytes]) -> int:
    """Write a reply unchanged and return its exit code."""
    code, out, err = reply
    try:
        _write(1, out)
        _write(2, err)
    except BrokenPipeError:
        return 0
    except OSError as error:
        from neurontools.commands import console

        return console.fail(NeuronToolsError(f"cannot write the output: {error.strerror}"))
    return code


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            time.sleep(_RETRY_S)
