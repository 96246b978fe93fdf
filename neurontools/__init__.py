"""A simulated AWS Neuron machine and what runs on it.

PYTEST_DONT_REWRITE: neuron-run may load this module before pytest looks at plugins, which would cause a warning.
"""

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

__all__ = ["__version__", "mark", "profile"]


def mark(name: str) -> None:
    """Name this point in time in the profile of the program; without a profile nothing happens."""
    activity = sys.modules.get("neurontools.runtime.host_activity")
    if activity is not None:
        activity.mark(name)


def profile(directory: "str | os.PathLike[str]") -> "AbstractContextManager[None]":
    """Return a context that captures a profile of its block; without the simulated device nothing happens.

    Args:
        directory: gets a directory for this process; `neuron-profile view` shows it.
    """
    if "neurontools.xla.api" not in sys.modules:
        from contextlib import nullcontext

        return nullcontext()
    from importlib import import_module

    block: AbstractContextManager[None] = import_module("neurontools.compat.profiling").profile_block(
        directory
    )
    return block
