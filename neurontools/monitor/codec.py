"""Lines of neuron-monitor: written byte for byte as the real tool does, and read leniently. Both follow `report`.

Written: compact JSON of Go's encoder; objects that are maps in Go (cores, vCPUs, subgraphs, percentiles) are sorted by
their text, so that core 10 comes before core 2. Read: what a release does not write is absent or zero, null is absent;
a value of the wrong type is an error that names its place.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, get_args, get_type_hints

from neurontools.base.files import packing_of
from neurontools.errors import NeuronToolsError
from neurontools.machine.listing.formats import quoted
from neurontools.monitor.report import LARGEST, MonitorReport, PhysicalCores, WirePresence, find_excess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST_LINE_BYTES = 1 << 26
_SHOWN = 40
_COMMON = 1 << 50  # nearly all numbers of a line are below
_ROOT_KEYS = {"neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"}

# Member texts by index and identity of the value: the processes of a report share the values of idle cores.
_Memo = dict[tuple[int, int], str]


class DamagedLineError(NeuronToolsError):
    """A line that is not a report of neuron-monitor; the message names the place."""


def format_line(report: MonitorReport) -> str:
    """Return the line of a report, without its newline."""
    return _encoder(MonitorReport)(report, {})


def parse_line(line: str | bytes) -> MonitorReport:
    """Return the report of a line.

    Raises:
        DamagedLineError: it is not valid JSON, was cut off, or a value in it has the wrong type.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it cannot be decoded"
        raise DamagedLineError(f"damaged line: not JSON: {reason}, found {line[:_SHOWN]!r}") from None
    root = _Node(value, "")
    if not isinstance(value, dict):
        raise root.error("expected an object")
    if not value.keys() & _ROOT_KEYS:
        raise root.error("none of neuron-monitor's keys is there")
    report: MonitorReport = _decode_record(MonitorReport, root)
    excess = find_excess(report)
    if excess:
        raise DamagedLineError(f"damaged line: {excess}")
    return report


def not_lines(start: bytes) -> tuple[str, str] | None:
    """Return why a file is not a recording, whose reports take a line each, and what to do; by its first bytes."""
    packing = packing_of(start)
    if packing is not None:
        return f"it is packed with {packing[0]}", f"unpack it with {packing[1]} first"
    first = start.lstrip().partition(b"\n")[0].strip()
    if first in {b"{", b"["}:
        query = "." if first == b"{" else ".[]"
        return "its reports take several lines each", f"write one a line: jq -c {query} FILE > NEW"
    return None


def read_lines(stream: BinaryIO, longest_bytes: int = LONGEST_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a stream without their ends, as they come; empty ones are left out.

    Args:
        stream: read until its end.
        longest_bytes: a longer line is cut off there.
    """
    while line := stream.readline(longest_bytes):
        text = line.strip()
        if text:
            yield text
        while not line.endswith(b"\n") and (line := stream.readline(longest_bytes)):
            continue


def format_number(value: float) -> str:
    """Return a number as Go writes it: shortest digits, integers without `.0`, exponents below 1e-6 and from 1e21.

    Args:
        value: neither infinite nor NaN, which JSON does not have.
    """
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    if "e" not in text:
        return text
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        return f"{Decimal(text):f}"
    digits, _, exponent = text.partition("e")
    power = int(exponent)
    return f"{digits.removesuffix('.0')}e{'-' if power < 0 else '+'}{abs(power)}"


class _Member(NamedTuple):
    """How a field of a record stands in the line: `path` leads to its object, `keys` are its keys there."""

    name: str
    path: tuple[str, ...]
    keys: tuple[str, ...]
    kind: Any
    presence: WirePresence
    name_key: str
    default: Any
    is_plain: bool
    """Whether it is a text or number in the record's own object."""
    is_record: bool


@cache
def _members(record: type) -> tuple[_Member, ...]:
    hints = get_type_hints(record)
    members = tuple(_member(field, hints[field.name]) for field in fields(record))
    return (
        tuple(sorted(members, key=lambda member: member.keys)) if hasattr(record, "sorted_keys") else members
    )


def _member(field: Field[Any], hint: Any) -> _Member:
    places = field.metadata.get("keys") or (field.name,)
    path, _, key = places[0].rpartition(".")
    kind = (
        next((argument for argument in get_args(hint) if _is_record(argument)), hint)
        if type(None) in get_args(hint)
        else hint
    )
    return _Member(
        name=field.name,
        path=tuple(path.split(".")) if path else (),
        keys=(key, *places[1:]),
        kind=kind,
        presence=field.metadata.get("presence", WirePresence.ALWAYS),
        name_key=field.metadata.get("name_key", ""),
        default=0 if field.default is MISSING else field.default,
        is_plain=kind in {int, float, str, bool} and not path,
        is_record=_is_record(kind),
    )


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind)


# Writing


@cache
def _encoder(kind: Any, name_key: str = "") -> Callable[[Any, _Memo], str]:
    """Return what writes a value of a type."""
    if kind is int:
        return lambda value, _: str(value)
    if kind is float:
        return lambda value, _: format_number(value)
    if kind is str:
        return lambda value, _: quoted(value)
    if kind is bool:
        return lambda value, _: "true" if value else "false"
    if _is_record(kind):
        return _record_encoder(kind)
    item = get_args(kind)[0]
    if get_args(item):
        return _map_encoder(get_args(item)[1])
    return _named_encoder(item, name_key) if name_key else _list_encoder(item)


def _record_encoder(record: type, left_out: str = "") -> Callable[[Any, _Memo], str]:
    members = tuple(member for member in _members(record) if member.name != left_out)
    write = _object_encoder(members)
    if hasattr(record, "null_if_empty"):
        return lambda value, memo: text if (text := write(value, memo)) != "{}" else "null"
    return write


def _object_encoder(members: tuple[_Member, ...]) -> Callable[[Any, _Memo], str]:
    """Return what writes an object; members with a path are written into objects of their own, in their first place."""
    if len(members) > 1 and all(
        child.kind is int and not child.path and len(child.keys) == 1 for child in members
    ):
        template = "{" + ",".join(f'"{child.keys[0]}":%d' for child in members) + "}"
        read = attrgetter(*(child.name for child in members))
        return lambda value, _: template % read(value)
    writers: list[Callable[[Any, _Memo], str]] = []
    nested: set[str] = set()
    for member in members:
        if not member.path:
            writers.append(_member_encoder(member))
        elif member.path[0] not in nested:
            key = member.path[0]
            nested.add(key)
            inner = tuple(
                child._replace(path=child.path[1:]) for child in members if child.path[:1] == (key,)
            )
            writers.append(_nested_encoder(key, _object_encoder(inner)))
    return lambda value, memo: (
        "{" + ",".join([text for write in writers if (text := write(value, memo))]) + "}"
    )


def _nested_encoder(key: str, write: Callable[[Any, _Memo], str]) -> Callable[[Any, _Memo], str]:
    return lambda value, memo: f'"{key}":{write(value, memo)}'


def _member_encoder(member: _Member) -> Callable[[Any, _Memo], str]:
    """Return what writes `"key":value`, or "" where the member is left out."""
    name, presence = member.name, member.presence
    if member.kind is PhysicalCores:
        return lambda record, _: _encode_physical(getattr(record, name))
    write = _encoder(member.kind, member.name_key)
    is_optional = presence is not WirePresence.ALWAYS
    prefix, more_keys = f'"{member.keys[0]}":', member.keys[1:]
    empty = f"{prefix}null" if presence is WirePresence.NULL_IF_NONE else ""

    def encode(record: Any, memo: _Memo) -> str:
        value = getattr(record, name)
        if is_optional and not value:
            return empty
        text = f"{prefix}{write(value, memo)}"
        for key in more_keys:
            text += f',"{key}":{text[len(prefix) :]}'
        return text

    return encode


def _encode_physical(cores: PhysicalCores | None) -> str:
    if cores is None:
        return ""
    prefix = f"nc_{cores.version.rstrip('d')}."
    texts = sorted(
        f'"{prefix}{core}":{{"neuroncore_utilization":{format_number(percent)}}}'
        for core, percent in cores.utilization_percent
    )
    return f'"{cores.version}":{{{",".join(texts)}}}'


def _list_encoder(item: Any) -> Callable[[Any, _Memo], str]:
    write = _encoder(item)
    return lambda values, memo: "[" + ",".join([write(value, memo) for value in values]) + "]"


def _named_encoder(item: Any, name_key: str) -> Callable[[Any, _Memo], str]:
    write = _record_encoder(item, left_out=name_key)

    def encode(values: Any, memo: _Memo) -> str:
        named = sorted((getattr(value, name_key), value) for value in values)
        return "{" + ",".join([f"{quoted(name)}:{write(value, memo)}" for name, value in named]) + "}"

    return encode


def _map_encoder(item: Any) -> Callable[[Any, _Memo], str]:
    write = _encoder(item)

    def encode(pairs: Any, memo: _Memo) -> str:
        texts = []
        for index, value in pairs:
            key = (index, id(value))
            text = memo.get(key)
            if text is None:
                text = memo[key] = f'"{index}":{write(value, memo)}'
            texts.append(text)
        texts.sort()  # the key comes first in the text
        return "{" + ",".join(texts) + "}"

    return encode


# Reading


class _Node:
    """A decoded JSON value and where it stands. What is absent or null reads as empty."""

    __slots__ = ("place", "value")

    def __init__(self, value: object, place: str) -> None:
        self.value = value
        self.place = place

    def members(self) -> dict[str, Any]:
        """Return the members of this object."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error("expected an object")
        return self.value

    def member(self, key: str) -> _Node:
        """Return one member of this object."""
        return _Node(self.members().get(key), f"{self.place}.{key}" if self.place else key)

    def items(self) -> Iterator[_Node]:
        """Yield the items of this list."""
        if self.value is None:
            return iter(())
        if not isinstance(self.value, list):
            raise self.error("expected a list")
        return (_Node(item, f"{self.place}[{index}]") for index, item in enumerate(self.value))

    def error(self, problem: str) -> DamagedLineError:
        """Return the error that this value is not what it should be."""
        shown = repr(self.value)
        short = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
        return DamagedLineError(f"damaged line: {self.place or 'the whole line'}: {problem}, found {short}")


def _decode_record(record: type, node: _Node, **known: Any) -> Any:
    found, values = node.members(), dict(known)
    for member in _members(record):
        if member.name in known:
            continue
        value: Any = found.get(member.keys[0]) if member.is_plain else None
        # Most values are what they should be: these need no node that knows their place.
        kind = type(value)
        if kind is member.kind and (kind is str or kind is bool or 0 <= value < _COMMON):
            values[member.name] = value
        elif kind is int and member.kind is float and 0 <= value < _COMMON:
            values[member.name] = float(value)
        else:
            values[member.name] = _decode_member(member, node)
    return record(**values)


def _decode_member(member: _Member, node: _Node) -> Any:
    if member.kind is PhysicalCores:
        return _decode_physical(node)
    for key in member.path:
        node = node.member(key)
    found = node.member(member.keys[0])
    for key in member.keys[1:]:
        if found.value is None:
            found = node.member(key)
    if found.value is None and member.presence is not WirePresence.ALWAYS:
        return member.default
    return _decode(member, found)


def _decode(member: _Member, node: _Node) -> Any:
    kind = member.kind
    if member.is_record:
        return _decode_record(kind, node)
    if kind in _SCALARS:
        return member.default if node.value is None and member.default else _SCALARS[kind](node)
    item = get_args(kind)[0]
    if get_args(item):
        return _decode_map(get_args(item)[1], node)
    if member.name_key:
        return tuple(
            _decode_record(item, node.member(key), **{member.name_key: key}) for key in node.members()
        )
    return tuple(_decode_record(item, child) for child in node.items())


def _decode_map(item: Any, node: _Node) -> tuple[tuple[int, Any], ...]:
    values = {_index(node, key): _decode_record(item, node.member(key)) for key in node.members()}
    return tuple(sorted(values.items(), key=lambda pair: pair[0]))


def _decode_physical(node: _Node) -> PhysicalCores | None:
    for key in node.members():
        if key[:1] == "v" and key[-1:] == "d" and key[1:-1].isdigit():
            cores, prefix = node.member(key), f"nc_{key[:-1]}."
            values = {}
            for name, core in cores.members().items():
                percent = core.get("neuroncore_utilization") if type(core) is dict else None
                if type(percent) is not float or not 0 <= percent < _COMMON:
                    percent = _number(cores.member(name).member("neuroncore_utilization"))
                values[_index(cores, name, prefix)] = percent
            return PhysicalCores(key, tuple(sorted(values.items())))
    return None


def _index(node: _Node, key: str, prefix: str = "") -> int:
    digits = key.removeprefix(prefix)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise node.error(f"{key[:_SHOWN]!r} is not an index")
    return int(digits)


def _text(node: _Node) -> str:
    if node.value is None:
        return ""
    if not isinstance(node.value, str):
        raise node.error("expected a text")
    return node.value


def _boolean(node: _Node) -> bool:
    if node.value is not None and not isinstance(node.value, bool):
        raise node.error("expected true or false")
    return bool(node.value)


def _number(node: _Node) -> float:
    if node.value is None:
        return 0.0
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        raise node.error("expected a number")
    if not -LARGEST <= node.value <= LARGEST:
        raise node.error("the number is out of range")
    return float(node.value)


def _integer(node: _Node) -> int:
    number = _number(node)
    return node.value if isinstance(node.value, int) else round(number)


_SCALARS: dict[Any, Callable[[_Node], Any]] = {str: _text, bool: _boolean, float: _number, int: _integer}
