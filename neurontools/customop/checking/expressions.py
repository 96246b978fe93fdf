"""Expressions of the command line, and which operator is the backward of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.errors import CustomOpLibraryError, NeuronCustomOpError
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.customop.manifest import OperatorEntry
    from neurontools.customop.package import Package


def backward_of(package: Package, entry: OperatorEntry) -> OperatorEntry | None:
    """Return the operator that by its name and parameters is the backward of another, None when there is none."""
    names = {f"{entry.name}_backward", f"{entry.name}_grad"}
    if "forward" in entry.name:
        names.add(entry.name.replace("forward", "backward"))
    wanted = ["tensor", *parameter_kinds(entry)]
    for other in package.manifest.operators:
        if other.name in names and other.library == entry.library and parameter_kinds(other) == wanted:
            return other
    return None


def parameter_kinds(entry: OperatorEntry) -> list[str]:
    """Return the words of the parameters without const."""
    return [word.removeprefix("const-") for word in entry.parameters]


def evaluate(expression: str, names: dict[str, object]) -> Any:
    """Return the value of a Python expression that the user wrote on the command line.

    Raises:
        UsageError: it is no expression, or fails.
    """
    try:
        return eval(expression, {"__builtins__": __builtins__, **names})  # noqa: S307  the user's own program
    except (NeuronCustomOpError, CustomOpLibraryError, KeyboardInterrupt):
        raise
    except Exception as error:
        known = ", ".join(name for name in names if name != "torch")
        raise UsageError(
            f"{expression} fails: {type(error).__name__}: {error}", f"it may use torch, {known}"
        ) from error
