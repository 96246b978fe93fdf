"""The source text of a long function, with pieces that repeat written once, as functions of their own.

A model has many equal layers and an optimizer treats every parameter alike. Compiling a piece once instead of a hundred
times makes the load of a large graph faster; a call of it costs less than a hundredth of what its operators cost.

Names of values begin with `$`, which nothing else in the text contains; the text that is returned is without it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LONGEST_PIECE = 16  # lines
_FEWEST_USES = 3
_NAME = re.compile(r"(\$\w+)")


class _Piece(NamedTuple):
    """Lines that follow each other.

    Args:
        lines: the text.
        fresh: names that it makes and that had no value before.
        kept: names that it makes and that have a value after it.
        deleted: names that lose their value at its end.
        outer: those of them that had one before.
    """

    lines: list[str]
    fresh: frozenset[str]
    kept: tuple[str, ...]
    deleted: Sequence[str]
    outer: Sequence[str]


class SharedCode:
    """Lines of a function, cut where a value of an earlier line is given up, so that no piece holds it any longer.

    Args:
        shares: whether pieces that repeat become functions.
    """

    def __init__(self, *, shares: bool) -> None:
        self._shares = shares
        self._pieces: list[_Piece] = []
        self._lines: list[str] = []
        self._made: dict[str, None] = {}
        self._bound: set[str] = set()  # names that have a value where the current piece begins
        self._ends = False

    def bind(self, names: Iterable[str]) -> None:
        """Say that names have a value before the first line."""
        self._bound.update(names)

    def write(self, line: str, made: Iterable[str] = ()) -> None:
        """Add a line that gives values to the names `made`."""
        self._lines.append(line)
        for name in made:
            self._made[name] = None
            if name in self._bound:
                self._ends = True

    def finish_call(self, deleted: Sequence[str]) -> None:
        """Say which names are not read after the lines so far."""
        if deleted or self._ends or len(self._lines) >= _LONGEST_PIECE:
            self._cut(deleted)

    def text(self, name: str, parameters: str, head: Sequence[str], result: str) -> str:
        """Return the source of the function `name`, and before it that of its shared pieces.

        Args:
            name: what it is called; `name` and a number are the names of its pieces.
            parameters: its parameters.
            head: lines before all others.
            result: what it returns.
        """
        self._cut(())
        made = [_Shape.of(piece) if self._shares and len(piece.lines) > 1 else None for piece in self._pieces]
        uses = Counter(shape.key for shape in made if shape)
        names: dict[object, str] = {}
        functions: list[str] = []
        body = [f"def {name}({parameters}):", *head]
        for piece, shape in zip(self._pieces, made, strict=True):
            if shape is None or uses[shape.key] < _FEWEST_USES:
                body += piece.lines
                if piece.deleted:
                    body.append(f"del {','.join(piece.deleted)}")
                continue
            known = names.get(shape.key)
            if known is None:
                known = names[shape.key] = f"{name}{len(names)}"
                functions += shape.function(known)
            results = f"{','.join(piece.kept)}=" if piece.kept else ""
            body.append(f"{results}{known}({','.join(shape.parameters)})")
            if piece.outer:
                body.append(f"del {','.join(piece.outer)}")
        body.append(f"return {result}")
        return "\n".join([*functions, "\n ".join(body), ""]).replace("$", "")

    def _cut(self, deleted: Sequence[str]) -> None:
        made, bound, gone = self._made, self._bound, set(deleted)
        fresh = frozenset([name for name in made if name not in bound])
        kept = tuple([name for name in made if name not in gone])
        outer = [name for name in deleted if name in bound]
        self._pieces.append(_Piece(self._lines, fresh, kept, deleted, outer))
        bound.update(kept)
        bound -= gone
        self._lines, self._made, self._ends = [], {}, False


class _Shape(NamedTuple):
    """A piece whose names are numbered by their first place in the text: equal ones can share a function."""

    key: tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    parameters: list[str]

    @classmethod
    def of(cls, piece: _Piece) -> _Shape:
        parts = _NAME.split("\n ".join(piece.lines))
        names = parts[1::2]
        numbers: dict[str, int] = {}
        order = tuple([numbers.setdefault(name, len(numbers)) for name in names])
        parameters = [name for name in numbers if name not in piece.fresh]
        given = tuple([numbers[name] for name in parameters])
        kept = tuple([numbers[name] for name in piece.kept])
        return cls((tuple(parts[::2]), order, given, kept), parameters)

    def function(self, name: str) -> list[str]:
        """Return the lines of the function."""
        texts, order, given, kept = self.key
        body = "".join(f"{text}${number}" for text, number in zip(texts, order, strict=False)) + texts[-1]
        lines = [f"def {name}({','.join(f'${number}' for number in given)}):\n {body}"]
        if kept:
            lines.append(f" return {','.join(f'${number}' for number in kept)}")
        return [line.replace("$", "v") for line in lines]
