"""What a terminal sends, as Textual's messages; nothing that it sends ends the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual._xterm_parser import XTermParser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.message import Message

# What is not about the sequence under way.
_LASTING = ("mouse_pixels", "terminal_size", "terminal_pixel_size", "last_x", "last_y")


class TerminalInput:
    """Textual's parser, which takes an empty piece for the end and dies of sequences that no terminal should send.

    Args:
        debug: keep Textual's log of keys.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self._debug = debug
        self._parser = XTermParser(debug)

    def feed(self, text: str) -> Iterator[Message]:
        """Yield what a piece of input means; a sequence that makes no sense is left out."""
        for character in text:
            try:
                yield from self._parser.feed(character)
            except Exception:  # noqa: BLE001  ValueError, OverflowError, ...: whatever a strange number leads to
                self._begin_again()

    def tick(self) -> Iterator[Message]:
        """Yield what is a key alone, as nothing followed it in time."""
        try:
            yield from self._parser.tick()
        except Exception:  # noqa: BLE001  as above
            self._begin_again()

    def _begin_again(self) -> None:
        before, self._parser = self._parser, XTermParser(self._debug)
        for name in _LASTING:
            setattr(self._parser, name, getattr(before, name))
