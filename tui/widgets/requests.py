"""Requests of a page to its app: show a message, copy a text, ask for a line or a choice. Independent of Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable


class Notice(Struct, frozen=True):
    """Show a message."""

    text: str
    problem: bool = False


class Copy(Struct, frozen=True):
    """Put a text on the clipboard; `what` describes it."""

    text: str
    what: str


class Prompt(NamedTuple):
    """Ask for a line of text. `on_change` gets it as it is typed and returns an error message or ""."""

    title: str
    text: str = ""
    on_change: Callable[[str], str] = lambda _: ""


class Choose(NamedTuple):
    """Ask to choose an option, the first being the default, or none. `on_choice` gets its index."""

    title: str
    lines: tuple[str, ...]
    options: tuple[str, ...]
    on_choice: Callable[[int], Request | None]


Request = Notice | Copy | Prompt | Choose
