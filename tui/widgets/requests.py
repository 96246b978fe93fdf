"""What a page asks of the app that shows it: a message, the clipboard, a line of text, a choice. No Textual here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Notice:
    """Tell the user something."""

    text: str
    problem: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Put a text on the clipboard; `what` says what it is."""

    text: str
    what: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ask for a line of text. `on_change` takes it as it is typed and returns what is wrong with it, or ""."""

    title: str
    text: str
    on_change: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Choose:
    """Ask to choose one of some options, the first being the default, or none. `on_choice` gets its position."""

    title: str
    lines: tuple[str, ...]
    options: tuple[str, ...]
    on_choice: Callable[[int], Request | None]


Request = Notice | Copy | Prompt | Choose
