"""Errors for names of the real packages that the shims lack: what the name does not do here, and what to use instead."""

from __future__ import annotations

import sys
from typing import NoReturn

from neurontools.base.text import suggest
from neurontools.compat.unsupported import UNSUPPORTED, UNSUPPORTED_MODULES
from neurontools.native.names import missing_name_error


def missing_name(module: str, name: str) -> NoReturn:
    """Raise the error of a name that a shim module lacks; called by the module's `__getattr__`.

    Raises:
        ImportError: `from module import name`, which would replace the text of an AttributeError.
        AttributeError: any other use.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    raise missing_name_error(module, name, _hint(module, name), sys._getframe(2))  # noqa: SLF001


def explain_module(name: str) -> None:
    """Raise the error of a module that the shims lack, if they know what replaces it.

    Raises:
        ModuleNotFoundError: the module belongs to the real package.
    """
    for known in (name, name.rpartition(".")[0]):
        if known in UNSUPPORTED_MODULES:
            raise ModuleNotFoundError(
                f"No module named {name!r}: not simulated; {_instead(UNSUPPORTED_MODULES[known])}", name=name
            )


def _hint(module: str, name: str) -> str:
    if name in UNSUPPORTED.get(module, {}):
        return f": not simulated; {_instead(UNSUPPORTED[module][name])}"
    loaded = sys.modules.get(module)
    near = suggest(name, [known for known in vars(loaded or object) if not known.startswith("_")])
    return f": not simulated; nearest supported name: {near}" if near else ""


def _instead(nearest: str) -> str:
    return f"nearest supported name: {nearest}" if nearest else "nothing here replaces it"
