"""The screen for terminals that have no braille and no blocks: each character becomes ASCII, in as many cells."""

from __future__ import annotations

import codecs

from rich.cells import cell_len

_ERRORS = "neurontools-ascii"
_HEIGHTS = ".:+#"
_BLOCKS = "▁▂▃▄▅▆▇█"
_BRAILLE = range(0x2800, 0x2900)
_LEFT_DOTS, _RIGHT_DOTS = 0x47, 0xB8
_OTHERS = {"…": ".", "║": "#", "│": "|", "▌": "|", "▐": "|", "─": "-", "▔": "-"}


def ascii_only(text: str) -> str:
    """Return a text in ASCII: curves in four heights, `?` for letters that it does not have."""
    return text if text.isascii() else text.encode("ascii", _ERRORS).decode()


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    if ord(character) in _BRAILLE:
        dots = ord(character) - _BRAILLE.start
        height = max((dots & _LEFT_DOTS).bit_count(), (dots & _RIGHT_DOTS).bit_count())
        return _HEIGHTS[height - 1] if height else " "
    if character in _BLOCKS:
        return _HEIGHTS[_BLOCKS.index(character) // 2]
    return _OTHERS.get(character) or "?" * cell_len(character)


codecs.register_error(_ERRORS, _replaced)
