"""`neuron-ls --filter`, which the real tool does not have: its grammar, and what it selects of a machine.

A filter is `KEY OPERATOR VALUE[,VALUE...]`; one of the values must hold. Keys are of the device (`state=busy`) or of the
process (`tag~train`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

    Value = str | int | float

_OPERATORS = ("!=", "!~", ">=", "<=", "=", "~", ">", "<")
STATES = ("idle", "busy", "executing")

_NUMBER, _SIZE, _TEXT, _OWNER, _STATE = "number", "size", "text", "owner", "state"
DEVICE_KEYS = {
    "device": _NUMBER,
    "numa": _NUMBER,
    "bdf": _TEXT,
    "state": _STATE,
    "processes": _NUMBER,
    "memory": _SIZE,
    "memory-used": _SIZE,
    "memory-free": _SIZE,
}
PROCESS_KEYS = {
    "pid": _NUMBER,
    "command": _TEXT,
    "tag": _TEXT,
    "owner": _OWNER,
    "runtime": _TEXT,
    "origin": _TEXT,
}
_OPERATORS_OF = {
    _NUMBER: ("=", "!=", ">", ">=", "<", "<="),
    _SIZE: ("=", "!=", ">", ">=", "<", "<="),
    _TEXT: ("=", "!=", "~", "!~"),
    _OWNER: ("=", "!="),
    _STATE: ("=", "!="),
}


class FilterError(ValueError):
    """A filter is invalid; the text says why."""


class Filter:
    """One condition."""

    __slots__ = ("key", "operator", "values")

    def __init__(self, key: str, operator: str, values: tuple[Value, ...]) -> None:
        self.key = key
        self.operator = operator
        self.values = values

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{','.join(map(str, self.values))}"

    @property
    def of_process(self) -> bool:
        """Whether it is a condition on processes, not devices."""
        return self.key in PROCESS_KEYS

    def holds(self, *actual: Value) -> bool:
        """Return whether it holds for the values of its key (a device can have two states)."""
        operator = self.operator.removeprefix("!")
        result = any(_compare(operator, left, right) for left in actual for right in self.values)
        return result != self.operator.startswith("!")


def looks_like_filter(word: str) -> bool:
    """Return whether a word has an operator of filters."""
    return bool(_split(word)[1])


def parse_filter(text: str) -> Filter:
    """Return the filter in a text.

    Raises:
        FilterError: an unknown key, an operator that the key does not have, or an invalid value.
    """
    key, operator, rest = _split(text)
    kinds = {**DEVICE_KEYS, **PROCESS_KEYS}
    if not operator:
        raise FilterError("expected KEY, one of = != ~ !~ > >= < <=, VALUE, such as state=busy")
    if key not in kinds:
        raise FilterError(f"unknown key {key!r}; known: {', '.join(sorted(kinds))}")
    kind = kinds[key]
    if operator not in _OPERATORS_OF[kind]:
        raise FilterError(f"{key} takes {' '.join(_OPERATORS_OF[kind])}, not {operator}")
    if "\n" in rest or "\0" in rest:
        raise FilterError("a value cannot contain line breaks")
    return Filter(key, operator, tuple(_value(key, kind, word.strip()) for word in rest.split(",")))


def _split(text: str) -> tuple[str, str, str]:
    places = [(text.find(operator), -len(operator)) for operator in _OPERATORS if operator in text]
    if not places:
        return text.strip(), "", ""
    place, length = min(places)
    return text[:place].strip(), text[place : place - length], text[place - length :].strip()


def _value(key: str, kind: str, word: str) -> Value:
    if kind == _TEXT:
        return word
    if not word:
        raise FilterError(f"{key} needs a value")
    if kind == _STATE:
        if word not in STATES:
            raise FilterError(f"unknown state {word!r}; known: {', '.join(STATES)}")
        return word
    convert: dict[str, Callable[[str], Value]] = {_NUMBER: int, _SIZE: _size, _OWNER: _uid}
    try:
        return convert[kind](word)
    except (ValueError, OverflowError):
        what = {_NUMBER: "a whole number", _SIZE: "a size such as 512MB or 1.5GB", _OWNER: "a user or a uid"}
        raise FilterError(f"{key} needs {what[kind]}, not {word!r}") from None


def _size(word: str) -> int:
    from neurontools.base.units import parse_size
    from neurontools.errors import UsageError

    try:
        return parse_size(word)
    except UsageError as error:
        raise ValueError(word) from error


def _uid(word: str) -> int:
    if word.isascii() and word.isdigit():
        return int(word)
    if word == "me":
        import os

        return os.getuid()
    import pwd

    try:
        return pwd.getpwnam(word).pw_uid
    except KeyError:
        raise ValueError(word) from None


def _compare(operator: str, found: Value, value: Value) -> bool:
    match found, value:
        case str(), str():
            return value.casefold() in found.casefold() if operator == "~" else found == value
        case ((int() | float()), (int() | float())):
            return {
                "=": found == value,
                ">": found > value,
                ">=": found >= value,
                "<": found < value,
                "<=": found <= value,
            }[operator]
    return False


def select(
    snapshot: Snapshot, devices: list[DeviceState], filters: tuple[Filter, ...], *, show_all: bool
) -> tuple[tuple[ProcessState, ...], list[DeviceState]]:
    """Return the processes and devices that match all filters.

    With a filter on processes, devices without a matching process are not listed. A device is idle, or busy when
    processes hold cores of it, and also executing while one of those cores runs.

    Args:
        snapshot: the machine.
        devices: the devices to choose from.
        filters: the conditions.
        show_all: whether processes without a Neuron runtime count as well; they hold every device.
    """
    of_process = [condition for condition in filters if condition.of_process]
    of_device = [condition for condition in filters if not condition.of_process]
    users = _users(snapshot)
    devices = [
        device
        for device in devices
        if all(
            condition.holds(*_device_values(condition.key, device, users[device.index]))
            for condition in of_device
        )
    ]
    if not of_process:
        return snapshot.processes, devices
    matching = tuple(
        process
        for process in snapshot.processes
        if all(condition.holds(_process_value(condition.key, process)) for condition in of_process)
    )
    if show_all and any(not process.uses_device for process in matching):
        return matching, devices
    places = {use.core for process in matching if process.uses_device for use in process.cores}
    return matching, [device for device in devices if places.intersection(device.core_ids)]


def _users(snapshot: Snapshot) -> dict[int, list[ProcessState]]:
    place_of = {core: device.index for device in snapshot.devices for core in device.core_ids}
    users: dict[int, list[ProcessState]] = {device.index: [] for device in snapshot.devices}
    for process in snapshot.processes:
        if process.uses_device:
            for index in {place_of[use.core] for use in process.cores if use.core in place_of}:
                users[index].append(process)
    return users


def _device_values(key: str, device: DeviceState, users: list[ProcessState]) -> tuple[Value, ...]:
    match key:
        case "device":
            return (device.index,)
        case "numa":
            return (_integer(device.numa_node),)
        case "bdf":
            return (device.bdf,)
        case "processes":
            return (len(users),)
        case "memory":
            return (device.memory_bytes,)
        case "memory-used":
            return (device.memory_used_bytes,)
        case "memory-free":
            return (device.memory_bytes - device.memory_used_bytes,)
    return _states(device, users)


def _states(device: DeviceState, users: list[ProcessState]) -> tuple[str, ...]:
    if not users:
        return ("idle",)
    own = set(device.core_ids)
    executing = any(use.executing and use.core in own for process in users for use in process.cores)
    return ("busy", "executing") if executing else ("busy",)


def _process_value(key: str, process: ProcessState) -> Value:
    match key:
        case "pid":
            return process.pid
        case "command":
            return process.command
        case "tag":
            return process.tag
        case "owner":
            return process.uid
        case "runtime":
            return process.runtime_version
    return process.origin


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1
