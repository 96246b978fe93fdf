"""The command palette of an app whose keys are all it can do: a command for every key and every theme."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.app import App, SystemCommand
from textual.binding import Binding

from neurontools.tui.names import TEXTUAL_THEMES, THEME_NAMES, shown_key
from neurontools.tui.widgets.theme import meaning_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from textual.binding import BindingType

_LEFT_OUT = frozenset({"command_palette", "suspend_process"})


def key_commands(app: App[int], *groups: list[BindingType]) -> Iterator[SystemCommand]:
    """Yield a command for every key that has a description.

    Args:
        app: runs the actions.
        groups: the bindings.
    """
    for group in groups:
        for binding in group:
            if isinstance(binding, Binding) and binding.description and binding.action not in _LEFT_OUT:
                key = shown_key(binding.key.partition(",")[0])
                yield SystemCommand(
                    binding.description, f"key {key}", partial(app.run_action, binding.action)
                )


def theme_commands(use: Callable[[str], None]) -> Iterator[SystemCommand]:
    """Yield a command for every theme.

    Args:
        use: shows a theme by its name.
    """
    for name in (*THEME_NAMES, *TEXTUAL_THEMES):
        yield SystemCommand(f"theme: {name}", meaning_of(name), partial(use, name))
