"""Which machine a test asks for: its markers `neuron` and an indirect parameter, checked."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypedDict, cast

from neurontools.errors import UsageError

if TYPE_CHECKING:
    import pytest

_EXAMPLE = '@pytest.mark.neuron(instance="trn2.48xlarge", lnc=1)'
_KINDS: dict[str, tuple[type, str]] = {
    "instance": (str, "a text"),
    "name": (str, "a text"),
    "lnc": (int, "a whole number"),
    "neighbours": (str, "a text"),
    "visible_devices": (str, "a text"),
    "ultraserver_mode": (str, "a text"),
    "ultraserver_node": (int, "a whole number"),
}


class Choices(TypedDict, total=False):
    """Arguments of the marker that choose among machines of a type; see `neurontools.machine.start`."""

    lnc: int | None
    neighbours: str | None
    visible_devices: str | None
    ultraserver_mode: str | None
    ultraserver_node: int | None


class Wish(Choices, total=False):
    """The arguments of the marker."""

    instance: str | None
    name: str | None


def machine_wish(node: pytest.Item, parameter: object = None) -> Wish:
    """Return what a test asks for: markers of module, class and function, the nearer one wins, then the parameter.

    Args:
        node: the test.
        parameter: of the fixture, for tests that are parametrized indirectly: an instance type or a dict as of the
            marker.

    Raises:
        UsageError: an argument that there is not, of another type, or without a name.
    """
    wish: dict[str, Any] = {}
    for marker in reversed([*node.iter_markers("neuron")]):
        if marker.args:
            raise UsageError(f"@pytest.mark.neuron takes named arguments, not {marker.args[0]!r}", _EXAMPLE)
        wish |= marker.kwargs
    match parameter:
        case None:
            pass
        case str():
            wish["instance"] = parameter
        case dict():
            wish |= parameter
        case _:
            raise UsageError(
                f"the parameter of neuron_machine is {parameter!r}",
                "give an instance type, or a dict of arguments",
            )
    for name, value in wish.items():
        _check(name, value)
    return cast(Wish, wish)


def _check(name: str, value: object) -> None:
    if name not in _KINDS:
        near = get_close_matches(str(name), _KINDS, n=1)
        raise UsageError(
            f"@pytest.mark.neuron has no argument {name!r}",
            f"did you mean {near[0]!r}?" if near else f"it has {', '.join(_KINDS)}",
        )
    kind, words = _KINDS[name]
    if value is not None and type(value) is not kind:
        raise UsageError(f"@pytest.mark.neuron: {name} must be {words}, not {value!r}", _EXAMPLE)
