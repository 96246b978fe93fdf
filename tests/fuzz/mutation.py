"""Damaged documents: JSON and YAML by their values, text by its words, everything by its bytes."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

MAX_BYTES = 1 << 18
"""The length of an input; longer ones are cut."""


class Format(StrEnum):
    """What an input is made of."""

    JSON = "json"
    JSON_LINES = "jsonl"
    YAML = "yaml"
    TEXT = "txt"
    BINARY = "bin"


class Literal(str):
    """A value of a document exactly as it is written: a number, a word, or anything that is not valid."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """A mapping as pairs, so that a key may stand in it twice."""


NUMBERS = (
    *("0", "-0", "1", "-1", "2", "3", "0.5", "255", "1023", "1025", "4096", "65536", "1000000"),
    *(str(2**31 - 1), str(2**31), str(2**32), str(2**53 + 1), str(2**62), str(2**63 - 1), str(2**63)),
    *(str(2**64), str(-(2**63)), str(-(2**63) - 1), str(10**15), str(10**30), "9" * 5000),
    *("1e15", "1e308", "-1e308", "1e-308", "1e400", "NaN", "Infinity", "-Infinity"),
)
STRINGS = (
    *("", " ", "\0", "a\0b", "\ud800", "\udcff", "\ud83d", "a\nb", "\r", "\t", "\x1b[2J", "\x9b2J", "\x7f"),
    *("\u202e", "\u2028", "\ufeff", "\u00b2", "\u0661\u0662", "\u00e9" * 300, "x" * 5000, "x" * 100_000),
    *(
        "/",
        "//",
        "/" * 2000,
        "..",
        "../..",
        "../../etc/passwd",
        "~",
        ".",
        "*",
        "a/b",
        "a" * 300,
        "-",
        "--",
        "-1",
    ),
    *(
        "0",
        "1e308",
        "nan",
        "inf",
        "-inf",
        "1" * 5000,
        "1h" * 2000,
        "9e99",
        "0x10",
        "1_0",
        "+1",
        "1e5",
        "1%",
        "100%%",
    ),
    *(
        "true",
        "null",
        "None",
        "[/bold]",
        "%s%n",
        "{0}",
        "{}",
        "{a.b}",
        "(",
        "(" * 200,
        "(a+)+$",
        "[",
        "\\",
        "'",
        '"',
    ),
)
LITERALS = ("null", "true", "false", "{}", "[]", "[[]]", '{"a":1}', "[null]", '""', "0", "[1,2]")
DEPTHS = (50, 500, 2000, 100_000)
_YAML_WORDS = (
    *(
        "&a ",
        "*a",
        "<<: *a",
        "!!binary ",
        "!!python/object:os.system ",
        "? ",
        "- ",
        "---\n",
        "...\n",
        "|",
        ">",
        "~",
    ),
    *(
        ".inf",
        "-.inf",
        ".nan",
        "0o17",
        "0b1",
        "1:30",
        "2001-01-01",
        "!!float ",
        "!!int ",
        "%YAML 9.9\n",
        "\t",
    ),
)
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d]+|\s+|.", re.DOTALL)


def parse(data: bytes, form: Format) -> Any:
    """Return the tree of a document: `Pairs`, lists, texts and literals.

    Raises:
        ValueError: it is not valid.
    """
    if form is Format.JSON_LINES:
        return [_parse_json(line) for line in data.splitlines() if line.strip()]
    if form is Format.YAML:
        import yaml

        return _from_yaml(yaml.safe_load(data))
    return _parse_json(data)


def dump(tree: Any, form: Format) -> bytes:
    """Return the document of a tree; YAML in its flow style, which is JSON."""
    if form is Format.JSON_LINES and isinstance(tree, list) and not isinstance(tree, Pairs):
        return b"".join(_encoded(item) + b"\n" for item in tree)
    return _encoded(tree)


def mutate(seeds: list[bytes], form: Format, words: tuple[str, ...], random: Random) -> bytes:
    """Return a damaged copy of one of some documents.

    Args:
        seeds: valid documents.
        form: what they are made of.
        words: what a text may contain, for inputs that are a text.
        random: makes every choice.
    """
    data = random.choice(seeds)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
        if form is Format.BINARY or random.random() < 0.1:
            data = _mutate_bytes(data, random)
        elif form is Format.TEXT or (form is Format.YAML and random.random() < 0.4):
            extra = words or (_YAML_WORDS if form is Format.YAML else ())
            data = _mutate_text(data, extra, random)
        else:
            data = _mutate_document(data, form, random)
        data = data[:MAX_BYTES]
    return data


def _parse_json(data: bytes) -> Any:
    return json.loads(
        data, object_pairs_hook=Pairs, parse_int=Literal, parse_float=Literal, parse_constant=Literal
    )


def _from_yaml(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs((str(key), _from_yaml(item)) for key, item in value.items())
    if isinstance(value, list):
        return [_from_yaml(item) for item in value]
    return value if isinstance(value, str) else Literal(json.dumps(value, default=str))


def _encoded(tree: Any) -> bytes:
    return _text(tree).encode("utf-8", "surrogatepass")


def _text(tree: Any) -> str:
    if isinstance(tree, Literal):
        return tree
    if isinstance(tree, Pairs):
        return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_text, tree)) + "]"
    return json.dumps(tree) if tree is None or isinstance(tree, str | bool | int | float) else str(tree)


# Values of a document


class Slot:
    """A place in a tree: an item of a list or the value of a pair."""

    def __init__(self, parent: list[Any], index: int, above: str = "") -> None:
        self.parent = parent
        self.index = index
        self.name: str = parent[index][0] if isinstance(parent, Pairs) else f"{above}[]"
        """Its key, or that of the list that it is in."""

    @property
    def value(self) -> Any:
        """What stands there."""
        item = self.parent[self.index]
        return item[1] if isinstance(self.parent, Pairs) else item

    @value.setter
    def value(self, value: Any) -> None:
        is_pair = isinstance(self.parent, Pairs)
        self.parent[self.index] = (self.parent[self.index][0], value) if is_pair else value

    def remove(self) -> None:
        """Delete it with its key."""
        del self.parent[self.index]


def slots(tree: Any, above: str = "") -> Iterator[Slot]:
    """Yield every place below the root, parents first."""
    if isinstance(tree, list):
        for index in range(len(tree)):
            slot = Slot(tree, index, above)
            yield slot
            yield from slots(slot.value, slot.name)


def _mutate_document(data: bytes, form: Format, random: Random) -> bytes:
    root: list[Any] = []
    try:
        root.append(parse(data, form))
        places = list(slots(root))
        slot = _choose(places, random)
        if isinstance(slot.value, list) and random.random() < 0.5:
            slot = _choose(places, random)  # scalars have most of the checks
        _change(slot, places, random)
        return dump(root[0], form) if root else b""
    except Exception:  # of any reader: an earlier mutation has left no document, or one that is too deep
        return _mutate_bytes(data, random)


def _choose(places: list[Slot], random: Random) -> Slot:
    # By name first: what stands in a document a hundred times is checked by the same code.
    name = random.choice(list(dict.fromkeys(slot.name for slot in places)))
    return random.choice([slot for slot in places if slot.name == name])


def _change(slot: Slot, places: list[Slot], random: Random) -> None:
    choice = random.random()
    if choice < 0.5:
        slot.value = _other_scalar(slot.value, random)
    elif choice < 0.6:
        slot.value = Literal(random.choice(LITERALS))
    elif choice < 0.7:
        slot.remove()
    elif choice < 0.8:
        _repeat(slot, random)
    elif choice < 0.88:
        slot.value = Literal(_text(random.choice(places).value))
    elif choice < 0.94 and isinstance(slot.parent, Pairs):
        other = random.choice((*STRINGS, *NUMBERS, *(key for key, _ in slot.parent)))
        slot.parent[slot.index] = other, slot.value
    elif choice < 0.97:
        slot.value = random.choice(([slot.value], Pairs([("a", slot.value)]), [slot.value] * 3))
    else:
        depth = random.choice(DEPTHS)
        opened, closed = random.choice((("[", "]"), ('{"a":', "}")))
        slot.value = Literal(f"{opened * depth}0{closed * depth}")


def _other_scalar(value: Any, random: Random) -> Any:
    is_text = isinstance(value, str) and not isinstance(value, Literal)
    if random.random() < 0.12:
        is_text = not is_text
    if not is_text:
        return Literal(random.choice(NUMBERS))
    if isinstance(value, str) and value and random.random() < 0.4:
        return _mutate_text(value.encode("utf-8", "surrogatepass"), (), random).decode("utf-8", "replace")
    return random.choice(STRINGS)


def _repeat(slot: Slot, random: Random) -> None:
    item = slot.parent[slot.index]
    times = _times(random.choice((2, 2, 3, 20, 1500)), _text(slot.value))
    slot.parent[slot.index : slot.index + 1] = [item] * times


def _times(wanted: int, text: str) -> int:
    """Return how often a text may be repeated in an input."""
    return max(1, min(wanted, MAX_BYTES // (len(text) + 1)))


# Words and bytes


def _mutate_text(data: bytes, words: tuple[str, ...], random: Random) -> bytes:
    parts = _WORD.findall(data.decode("utf-8", "surrogateescape")) or [""]
    index = random.randrange(len(parts))
    choice = random.random()
    if choice < 0.4:
        numeric = parts[index][:1].isdigit()
        parts[index] = random.choice(NUMBERS if numeric and random.random() < 0.8 else (*words, *STRINGS))
    elif choice < 0.55:
        parts.insert(index, random.choice((*words, *words, *STRINGS, *NUMBERS)))
    elif choice < 0.7:
        del parts[index : index + random.choice((1, 1, 2, 5))]
    elif choice < 0.85:
        end = index + random.choice((1, 2, 5))
        piece = "".join(parts[index:end])
        parts[index:end] = [piece * _times(random.choice((2, 3, 50, 2000)), piece)]
    else:
        other = random.randrange(len(parts))
        parts[index], parts[other] = parts[other], parts[index]
    return "".join(parts).encode("utf-8", "surrogatepass" if _has_surrogate(parts) else "surrogateescape")


def _has_surrogate(parts: list[str]) -> bool:
    # Bytes that are not UTF-8 are surrogates from U+DC80 to U+DCFF; others cannot be written as bytes.
    return any(
        "\ud800" <= letter <= "\udfff" and not "\udc80" <= letter <= "\udcff"
        for part in parts
        for letter in part
    )


def _mutate_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data or b"\0")
    start = random.randrange(len(changed))
    end = min(len(changed), start + random.choice((1, 2, 4, 8, 64, 1024)))
    choice = random.randrange(7)
    if choice == 0:
        changed[start] ^= 1 << random.randrange(8)
    elif choice == 1:
        del changed[start:end]
    elif choice == 2:
        changed[start:start] = changed[start:end] * random.choice((1, 3, 200))
    elif choice == 3:
        changed[start:start] = random.randbytes(random.choice((1, 2, 8, 100)))
    elif choice == 4:
        width = random.choice((1, 2, 4, 8))
        number = random.choice(
            (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1)
        )
        order = random.choice(("little", "big"))
        changed[start : start + width] = (number % 256**width).to_bytes(width, order)
    elif choice == 5:
        del changed[start:]
    else:
        changed[start:end] = random.randbytes(end - start)
    return bytes(changed)
