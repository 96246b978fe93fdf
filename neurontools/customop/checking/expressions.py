"""Expressions of the command line, and which operator is the backward of another."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from neurontools.customop.errors import CustomOpLibraryError, NeuronCustomOpError
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from neurontools.customop.manifest import OperatorEntry
    from neurontools.customop.package import Package

_WAYS_MAX = 12


def backward_named(package: Package, entry: OperatorEntry) -> OperatorEntry | None:
    """Return the operator that by its name is the backward of another, None when there is none."""
    names = {f"{entry.name}_backward", f"{entry.name}_grad"}
    if "forward" in entry.name:
        names.add(entry.name.replace("forward", "backward"))
    entries = package.manifest.operators
    return next((other for other in entries if other.name in names and other.library == entry.library), None)


def backward_ways(entry: OperatorEntry, backward: OperatorEntry) -> tuple[str, ...]:
    """Return in which ways a backward operator may be called, as expressions; the likeliest first.

    It takes the gradient, then some of the operator's inputs and its output, in their order.
    """
    wanted = parameter_kinds(backward)
    if wanted[:1] != ["tensor"]:
        return ()
    inputs = [(f"x{position}", kind) for position, kind in enumerate(parameter_kinds(entry))]
    tensors = sum(kind == "tensor" for _, kind in inputs)
    ways = []
    for place in (len(inputs), tensors, 0):  # the output after everything, after the tensors, first
        offered = [*inputs[:place], ("y", "tensor"), *inputs[place:]]
        for chosen in itertools.combinations(offered, len(wanted) - 1):
            names = ", ".join(("g", *(name for name, _ in chosen)))
            ways += [f"{backward.name}({names})"] if [kind for _, kind in chosen] == wanted[1:] else []
    return tuple(dict.fromkeys(ways))[:_WAYS_MAX]


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
