"""The command line of neuron-ls: the real tool's flags (AWS Neuron documentation, neuron-ls), our own, and filters.

A filter is a condition (`neurontools.base.filters`) on the device (`state=busy`) or on the process (`tag~train`).

The real tool's parser is taken to be go-flags: short flags bundle, a value follows its flag as the next word or after
`=`, `--` ends the flags, and the last of two contradicting flags wins. Everything beyond -w, -a, -t, -j and -h is ours.
"""

from __future__ import annotations

from neurontools.base.filters import (
    NUMBER,
    OWNER,
    SIZE,
    TEXT,
    WORD,
    FilterCondition,
    FilterError,
    FilterParser,
    looks_like_condition,
)
from neurontools.base.text import printable
from neurontools.machine.machine_names import parse_indices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.base.filters import Value
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

STATES = ("idle", "busy", "executing")
DEVICE_KEYS = {
    "device": NUMBER,
    "numa": NUMBER,
    "bdf": TEXT,
    "state": WORD,
    "processes": NUMBER,
    "memory": SIZE,
    "memory-used": SIZE,
    "memory-free": SIZE,
}
PROCESS_KEYS = {
    "pid": NUMBER,
    "command": TEXT,
    "tag": TEXT,
    "owner": OWNER,
    "runtime": TEXT,
    "origin": TEXT,
}
_PARSER = FilterParser(
    {**DEVICE_KEYS, **PROCESS_KEYS}, {"state": STATES}, "state=busy 'memory-used>1GB' owner=me"
)


def parse_filter(text: str) -> FilterCondition:
    """Return the condition in a text.

    Raises:
        FilterError: the text is invalid, or has line breaks, which cannot be sent to the daemon.
    """
    for letter in "\n\0":
        if letter in text:
            raise FilterError(
                text, text.index(letter), "line break in a filter", "use ~ with a part of the text"
            )
    return _PARSER.parse(text, is_single=True)[0]


def select(
    snapshot: Snapshot, devices: list[DeviceState], filters: tuple[FilterCondition, ...], *, show_all: bool
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
    of_process = [condition for condition in filters if condition.field in PROCESS_KEYS]
    of_device = [condition for condition in filters if condition.field in DEVICE_KEYS]
    users = _users(snapshot)
    devices = [
        device
        for device in devices
        if all(
            condition.matches(*_device_values(condition.field, device, users[device.index]))
            for condition in of_device
        )
    ]
    if not of_process:
        return snapshot.processes, devices
    matching = tuple(
        process
        for process in snapshot.processes
        if all(condition.matches(_process_value(condition.field, process)) for condition in of_process)
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
    if key == "state":
        return _states(device, users)
    values: dict[str, Value] = {
        "device": device.index,
        "numa": int(device.numa_node) if device.numa_node.isdecimal() else -1,
        "bdf": device.bdf,
        "processes": len(users),
        "memory": device.memory_bytes,
        "memory-used": device.memory_used_bytes,
        "memory-free": device.memory_bytes - device.memory_used_bytes,
    }
    return (values[key],)


def _states(device: DeviceState, users: list[ProcessState]) -> tuple[str, ...]:
    if not users:
        return ("idle",)
    own = set(device.core_ids)
    executing = any(use.executing and use.core in own for process in users for use in process.cores)
    return ("busy", "executing") if executing else ("busy",)


def _process_value(key: str, process: ProcessState) -> Value:
    values: dict[str, Value] = {
        "pid": process.pid,
        "command": process.command,
        "tag": process.tag,
        "owner": process.uid,
        "runtime": process.runtime_version,
    }
    return values.get(key, process.origin)


_LONG = {
    "--wide": "wide",
    "--show-all-procs": "show_all",
    "--topology": "topology",
    "--json-output": "json",
    "--help": "help",
    "--json": "json",
    "--csv": "csv",
    "--verbose": "verbose",
    "--version": "version",
    "--debug": "debug",
    "--watch": "watch",
}
_SHORT = {"w": "wide", "a": "show_all", "t": "topology", "j": "json", "h": "help", "V": "version"}
_NAMES = {
    "wide": "-w, --wide",
    "show_all": "-a, --show-all-procs",
    "topology": "-t, --topology",
    "json": "-j, --json-output",
    "help": "-h, --help",
}
_VALUES = ("--device", "--filter", "--interval", "--machine", "--owner", "--source")
_FORMATS = ("json", "csv")
COLOURS = ("auto", "always", "never")
MIN_PERIOD_S = 0.05
MAX_PERIOD_S = 86400.0
DEFAULT_PERIOD_S = 1.0


class FlagError(Exception):
    """The command line is invalid; the text is what the tool prints, `printable` unless it has lines of its own."""

    def __init__(self, text: str, *, has_lines: bool = False) -> None:
        super().__init__(text if has_lines else printable(text))


class UnknownFlagError(FlagError):
    """There is no such flag; `flag` is the word of the command line."""

    def __init__(self, name: str, flag: str) -> None:
        super().__init__(f"unknown flag `{name}'")
        self.flag = flag


class Flags:
    """The parsed command line.

    `devices` are the devices to list, None for all; all `filters` must match; `colour` is None without the flag,
    `period_s` where the list is printed once. The renderer uses neither `machine`, `source`,
    `period_s`, `verbose`, `version` nor `debug`: those are for the command.
    """

    __slots__ = (
        "colour",
        "debug",
        "devices",
        "filters",
        "format",
        "help",
        "interval_s",
        "machine",
        "period_s",
        "show_all",
        "source",
        "topology",
        "verbose",
        "version",
        "watch",
        "wide",
    )

    def __init__(self) -> None:
        self.wide = False
        self.show_all = False
        self.topology = False
        self.help = False
        self.verbose = False
        self.version = False
        self.debug = False
        self.watch = False
        self.format = "text"
        self.devices: frozenset[int] | None = None
        self.filters: tuple[FilterCondition, ...] = ()
        self.colour: str | None = None
        self.machine: str | None = None
        self.source: str | None = None
        self.period_s: float | None = None
        self.interval_s: float | None = None

    def words(self) -> list[str]:
        """Return the command line for the renderer, with users in filters as uids."""
        switches = {"--wide": self.wide, "--show-all-procs": self.show_all, "--topology": self.topology}
        words = [word for word, given in switches.items() if given]
        if self.format != "text":
            words.append(f"--{self.format}")
        if self.devices is not None:
            words.append(f"--device={','.join(map(str, sorted(self.devices)))}")
        if self.colour is not None:
            words.append(f"--color={self.colour}")
        return words + [f"--filter={expression}" for expression in self.filters]


def parse(argv: list[str]) -> Flags:
    """Return the parsed command line.

    Raises:
        FlagError: an unknown flag, a missing or superfluous value, or a positional argument.
    """
    flags = Flags()
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            if words:
                raise FlagError(f"unexpected argument `{words[0]}'")
        elif word[:2] == "--":
            _long(flags, word, words)
        elif word[:1] == "-" and word != "-":
            _short(flags, word)
        else:
            raise FlagError(f"unexpected argument `{word}'")
    if flags.interval_s is not None and not flags.watch:
        raise FlagError("flag `--interval' needs `--watch'")
    if flags.watch:
        flags.period_s = flags.interval_s or DEFAULT_PERIOD_S
    return flags


def _long(flags: Flags, word: str, words: list[str]) -> None:
    flag, equals, value = word.partition("=")
    if flag in _LONG:
        if equals:
            raise _no_value(_LONG[flag])
        _switch(flags, _LONG[flag])
    elif flag == "--color":
        if not equals:
            value = words.pop(0) if words and words[0][:1] != "-" else "auto"
        flags.colour = _choice(flag, value, COLOURS)
    elif flag in _VALUES:
        _set(flags, flag, value if equals else _next(flag, words))
        if flag == "--filter":
            while words and words[0][:1] != "-" and looks_like_condition(words[0]):
                _set(flags, flag, words.pop(0))
    else:
        raise UnknownFlagError(flag[2:], flag)


def _short(flags: Flags, word: str) -> None:
    if word[2:3] == "=" and word[1] in _SHORT:
        raise _no_value(_SHORT[word[1]])
    for letter in word[1:]:
        if letter not in _SHORT:
            raise UnknownFlagError(letter, f"-{letter}")
        _switch(flags, _SHORT[letter])


def _switch(flags: Flags, name: str) -> None:
    if name in _FORMATS:
        flags.format = name
    else:
        setattr(flags, name, True)


def _next(flag: str, words: list[str]) -> str:
    if not words:
        raise FlagError(f"expected argument for flag `{flag}'")
    if words[0][:1] == "-" and words[0] != "-":
        raise FlagError(f"expected argument for flag `{flag}', but got option `{words[0]}'")
    return words.pop(0)


def _set(flags: Flags, flag: str, value: str) -> None:
    if flag == "--device":
        flags.devices = (flags.devices or frozenset()) | _devices(value)
    elif flag in {"--filter", "--owner"}:
        text = value if flag == "--filter" else f"owner={value}"
        try:
            flags.filters += (parse_filter(text),)
        except FilterError as error:
            message = f"flag `{flag}': {error.message}\nhint: {printable(error.remedy)}"
            raise FlagError(message, has_lines=True) from error
    elif not value:
        raise FlagError(f"expected argument for flag `{flag}'")
    elif flag == "--machine":
        flags.machine = value
    elif flag == "--interval":
        flags.interval_s = _period_s(flag, value)
    else:
        flags.source = value


def _choice(flag: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise FlagError(f"Invalid value `{value}' for option `{flag}'. Allowed values are: {known}")
    return value


def _no_value(name: str) -> FlagError:
    return FlagError(f"bool flag `{_NAMES.get(name, '--' + name)}' cannot have an argument")


def _devices(text: str) -> frozenset[int]:
    try:
        return frozenset(parse_indices(text))
    except ValueError:
        raise FlagError(f"flag `--device' expects devices such as 0,2 or 0-3, not `{text}'") from None


def _period_s(flag: str, text: str) -> float:
    from neurontools.base.units import parse_duration
    from neurontools.errors import UsageError

    try:
        period_s = parse_duration(text)
    except UsageError:
        period_s = 0.0
    if not MIN_PERIOD_S <= period_s <= MAX_PERIOD_S:
        raise FlagError(f"flag `{flag}' expects {MIN_PERIOD_S:g} to {MAX_PERIOD_S:g} seconds, not `{text}'")
    return period_s


def suggestions() -> tuple[str, ...]:
    """Return the flags that a misspelt one may have meant."""
    return (*_LONG, *_VALUES, "--color")
