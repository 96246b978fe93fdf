"""Text for terminals: tables, wrapping, shortening, plurals, suggestions."""

from __future__ import annotations

TYPE_CHECKING = False  # neuron-ls comes here for settings files, and typing takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from neurontools.errors import NeuronToolsError

_GAP = 2
_FIELD = 14
_MIN_TEXT_WIDTH = 16
_ELLIPSIS = ".."
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
# Blanks that take a place, such as those of Japanese file names.
_BLANKS = "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
# Bold, dim and six colours; none of the styles that hide text.
_STYLE = r"(\x1b\[(?:0|1|2|(?:1;)?3[1-6])m)"
_SIMILAR = 0.7
# One letter too many, missing, wrong or misplaced; not another word with some of the same letters.
_PLAIN_LOCALES = ("C", "POSIX")


def table(
    head: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    width: int | None = None,
    optional: Sequence[int] = (),
) -> str:
    """Return rows in aligned columns below a head.

    Args:
        head: the column titles, None for none.
        rows: the cells.
        align: `<` (text, which may be shortened in the middle) or `>` for each column.
        width: the width of the terminal; None where lines may have any length.
        optional: indexes of columns that are dropped where the width is too small for all, the first one first. A last
            line names them.
    """
    lines = [[printable(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    natural = [max((len(row[column]) for row in lines), default=0) for column in range(len(align))]
    widths = dict(enumerate(natural)) if width is None else _fit(natural, align, width, optional)
    printed = []
    for row in lines:
        cells = [f"{shorten(row[column], size):{align[column]}{size}}" for column, size in widths.items()]
        printed.append((" " * _GAP).join(cells).rstrip())
    if head and len(widths) < len(align):
        dropped = ", ".join(title.lower() for column, title in enumerate(head) if column not in widths)
        printed.append(f"(too narrow for {dropped})")
    return "\n".join(printed)


def _fit(natural: Sequence[int], align: str, width: int, optional: Sequence[int]) -> dict[int, int]:
    """Return the width of each column that is shown: text columns shrink first, then optional ones are dropped."""
    widths = dict(enumerate(natural))
    droppable = list(optional)
    while _min_total(widths, align) > width and droppable:
        del widths[droppable.pop(0)]
    text_columns = [column for column in widths if align[column] == "<"]
    while _total(widths) > width:
        widest = max(text_columns, key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= _MIN_TEXT_WIDTH:
            break
        widths[widest] -= 1
    return widths


def _min_total(widths: dict[int, int], align: str) -> int:
    return _total({c: min(size, _MIN_TEXT_WIDTH) if align[c] == "<" else size for c, size in widths.items()})


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def shorten(text: str, width: int) -> str:
    """Return a text of at most `width` characters; a longer one loses its middle: `model..done`."""
    if len(text) <= width:
        return text
    head = max(0, width - len(_ELLIPSIS)) // 2
    tail = max(0, width - len(_ELLIPSIS) - head)
    return text[:head] + _ELLIPSIS[:width] + text[len(text) - tail :]


def wrap(text: str, width: int, *, first_indent: str = "", indent: str = "") -> list[str]:
    """Return a text in lines of at most `width` columns; words such as paths and hashes stay in one piece."""
    import textwrap

    return textwrap.wrap(
        text,
        width,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrap_field(line: str, width: int | None) -> str:
    """Return a line of a label and its value, wrapped below the value; in one piece where `width` is None."""
    if width is None or len(line) <= width or " " not in line[_FIELD:]:
        return line
    return "\n".join(wrap(line, width, indent=" " * _FIELD))


def plural(count: int, singular: str, plural_form: str | None = None) -> str:
    """Return a count with its noun: `1 entry`, `3 entries`; the plural defaults to the singular with an `s`."""
    return f"{count} {singular if count == 1 else plural_form or singular + 's'}"


def printable(text: str) -> str:
    r"""Return a text as one line that cannot control a terminal.

    Control characters (newlines too), direction marks, invisible characters and bytes that are not UTF-8 become JSON
    escapes: `\n`, `\u001b`, `\u202e`, `\udcff`.
    """
    return text if text.isprintable() else "".join([_visible(letter) for letter in text])


def printable_lines(text: str, *, styled: bool = False) -> str:
    """Return a text of several lines that cannot control a terminal: `printable`, but newlines and tabs stay.

    Bytes of file names that are not UTF-8 stay too, unless a terminal could join them to a control character.

    Args:
        text: the lines.
        styled: whether it has colours of ours, which stay.
    """
    if text.replace("\n", "").isprintable():
        return text
    if styled:
        import re

        return "".join(
            part if number % 2 else printable_lines(part)
            for number, part in enumerate(re.split(_STYLE, text))
        )
    return "".join([letter if letter in "\n\t" or _is_byte(letter) else _visible(letter) for letter in text])


def _visible(letter: str) -> str:
    if letter.isprintable() or letter in _BLANKS:
        return letter
    code = letter.encode("utf-16-be", "surrogatepass").hex()
    return _SHORT_ESCAPES.get(letter) or "".join(f"\\u{code[i : i + 4]}" for i in range(0, len(code), 4))


def _is_byte(letter: str) -> bool:
    # Without the bytes 80 to 9f there are no C1 characters, and no direction marks in UTF-8.
    return "\udca0" <= letter <= "\udcff"


def short_operator(name: str) -> str:
    """Return the name of an operator without what most names share: `mm` of `aten.mm.default`."""
    return name.removeprefix("aten.").removesuffix(".default")


def format_error(error: NeuronToolsError) -> str:
    """Return an error as a line, with a second one for its remedy, that cannot control a terminal."""
    message = printable_lines(error.message, styled=True) if error.has_lines else printable(error.message)
    return f"error: {message}\n" + (f"hint: {printable(error.remedy)}\n" if error.remedy else "")


def shows_utf8(encoding: str | None, environ: Mapping[str, str]) -> bool:
    """Return whether a terminal shows UTF-8: stdout is encoded so, and the user's locale does not say otherwise.

    Python itself writes UTF-8 in the locale C, and then sets LC_CTYPE. Without any locale, UTF-8 is assumed.
    """
    if encoding is None or encoding.lower().replace("-", "") != "utf8":
        return False
    language, ctype = environ.get("LANG", ""), environ.get("LC_CTYPE", "")
    if ctype == "C.UTF-8" and language in _PLAIN_LOCALES:
        ctype = language
    return (environ.get("LC_ALL") or ctype or language) not in _PLAIN_LOCALES


def is_plain(text: str) -> bool:
    """Return whether a text can be a file name or a variable: it has no NUL and no lone surrogates."""
    return (text.isascii() and "\0" not in text) or not any(
        c == "\0" or "\ud800" <= c <= "\udfff" for c in text
    )


def suggest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like a misspelt one, None where nothing is close."""
    from difflib import get_close_matches  # costs a millisecond, and only misspelt words need it

    matches = get_close_matches(word, list(known), n=1, cutoff=_SIMILAR)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str | None = None) -> str:
    """Return the remedy for an unknown word: `did you mean 'x'?` where one is close.

    Args:
        word: what was written.
        known: what could have been meant.
        otherwise: the remedy where nothing is close; by default the list of known words.
    """
    words = [str(item) for item in known]
    match = suggest(word, words)
    if match:
        return f"did you mean {match!r}?"
    return f"known: {', '.join(words)}" if otherwise is None else otherwise
