"""Small screens over the profile viewer: details of an event, a question, and help made from the bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult


class TextScreen(ModalScreen[None]):
    """A box of text that any of Escape, Enter and q closes."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss_box", "close")]
    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen > VerticalScroll { width: 76; max-width: 100%; height: auto; max-height: 90%; border: round $primary;
        padding: 0 1; background: $surface; }
    TextScreen Static { height: auto; width: 1fr; }
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Make the box."""
        with VerticalScroll() as box:
            box.border_title = self._title
            yield Static(self._text, markup=False)

    def action_dismiss_box(self) -> None:
        """Close it."""
        self.dismiss(None)


class Question(ModalScreen[str | None]):
    """A line to type; the answer, or None for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]
    DEFAULT_CSS = """
    Question { align: center bottom; }
    Question > Input { width: 100%; border: round $primary; }
    """

    def __init__(self, title: str, placeholder: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._placeholder = placeholder
        self._value = value

    def compose(self) -> ComposeResult:
        """Make the line."""
        line = Input(value=self._value, placeholder=self._placeholder)
        line.border_title = self._title
        yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Give the answer."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Give no answer."""
        self.dismiss(None)


def bindings_text(*groups: Iterable[BindingType]) -> str:
    """Return one line per binding: its keys and what they do."""
    rows = [
        (binding.key_display or binding.key.replace(",", " "), binding.description)
        for group in groups
        for binding in group
        if isinstance(binding, Binding)
    ]
    width = max(len(keys) for keys, _ in rows)
    return "\n".join(f"{keys.ljust(width)}  {purpose}" for keys, purpose in rows)
