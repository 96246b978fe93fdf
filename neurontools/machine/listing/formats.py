"""The table and the JSON of neuron-ls: columns, keys, order and layout of the real tool (AWS Neuron documentation, neuron-ls)."""

from __future__ import annotations

import os

from neurontools.base.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.listing.flags import Flags
    from neurontools.machine.snapshot import DeviceState, ProcessState, Snapshot

_Pairs = list[tuple[str, str]]

_RESET = "\x1b[0m"
HEADER = "\x1b[1m"
BUSY = "\x1b[32m"
PROCESS = "\x1b[36m"

_HEADER = (
    ("NEURON", "DEVICE"),
    ("NEURON", "CORES"),
    ("NEURON", "CORE IDS"),
    ("NEURON", "MEMORY"),
    ("CONNECTED", "DEVICES"),
    ("PCI", "BDF"),
    ("PID", ""),
    ("CPU", "AFFINITY"),
    ("NUMA", "NODE"),
    ("COMMAND", ""),
    ("RUNTIME", "VERSION"),
)
# Without any device (a filter of ours left none) the columns that every device has.
_EMPTY_SHAPE = [(index, max(map(len, _HEADER[index]))) for index in (0, 1, 2, 3, 5, 7, 8)]
# Of the rows of devices that processes hold: device, pid, command.
_COLOURS = {0: BUSY, 6: PROCESS, 9: PROCESS}
_COMMAND_WIDTH = 40
_WIDE_COMMAND_WIDTH = 80
NO_RUNTIME = "NA"
_GIB = 2**30
# Unicode categories of characters that a terminal prints over the last one.
_COMBINING = ("Mn", "Me")

ProcessRow = tuple[int, str, str]
_Cells = tuple[str, ...]
_NO_PROCESS = ("", "", "")

_INDENT = "    "
# As Go's encoder writes them. The three of HTML are the encoder's default there, an inference for this tool.
_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def header_lines(snapshot: Snapshot) -> list[str]:
    """Return the lines above the table, without unknown values."""
    lines = []
    if snapshot.instance_type:
        lines.append(f"instance-type: {printable(snapshot.instance_type)}")
    if snapshot.instance_id:
        lines.append(f"instance-id: {printable(snapshot.instance_id)}")
    if snapshot.lnc_applies:
        lines.append(f"logical-neuroncore-config: {snapshot.lnc}")
    return lines


def table_lines(snapshot: Snapshot, devices: list[DeviceState], flags: Flags) -> list[str]:
    """Return the lines of the table of some devices of the machine."""
    groups = rows_of_devices(snapshot, devices, show_all=flags.show_all, width=command_width(flags))
    cells_of = {row: _process_cells(row) for row in set().union(*groups)}
    first = [
        _cells(device, cells_of[rows[0]] if rows else _NO_PROCESS)
        for device, rows in zip(devices, groups, strict=True)
    ]
    further = {row: _cells(None, cells) for row, cells in cells_of.items()}
    colours = _COLOURS if flags.colour == "always" else {}
    columns = list(zip(*first, *further.values(), strict=True))
    shape = [
        (index, max(*map(len, _HEADER[index]), *map(display_width, cells)))
        for index, cells in enumerate(columns)
        if any(cells)
    ] or _EMPTY_SHAPE
    separator = "+" + "+".join("-" * (width + 2) for _, width in shape) + "+"
    heading = HEADER if colours else ""
    header = [
        _line([paint(_centred(_HEADER[index][part], width), heading) for index, width in shape])
        for part in (0, 1)
    ]
    lines = [separator, *header, separator]
    line_of = {row: _row(cells, shape, colours) for row, cells in further.items()}
    separated = any(len(rows) > 1 for rows in groups)
    for number, (cells, rows) in enumerate(zip(first, groups, strict=True)):
        if number and separated:
            lines.append(separator)
        lines.append(_row(cells, shape, colours if rows else {}))
        lines += [line_of[row] for row in rows[1:]]
    return [*lines, separator]


def core_range(cores: tuple[int, ...]) -> str:
    """Return core ids as the tools print them: `0-3` where they are consecutive, else `0, 2`."""
    if len(cores) > 1 and cores == tuple(range(cores[0], cores[0] + len(cores))):
        return f"{cores[0]}-{cores[-1]}"
    return ", ".join(str(core) for core in cores)


def display_width(text: str) -> int:
    """Return the columns that a printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata

    width = 0
    for letter in text:
        if unicodedata.category(letter) not in _COMBINING:
            width += 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1
    return width


def _process_cells(row: ProcessRow) -> _Cells:
    pid, command, version = row
    return str(pid), printable(command), printable(version)


def _cells(device: DeviceState | None, process: _Cells) -> _Cells:
    pid, command, version = process
    if device is None:
        return ("", "", "", "", "", "", pid, "", "", command, version)
    return (
        str(device.index),
        str(len(device.core_ids)),
        core_range(device.core_ids),
        f"{device.memory_bytes // _GIB} GB",
        ", ".join(str(peer) for peer in device.connected_to or ()),
        printable(device.bdf),
        pid,
        printable(device.cpu_affinity),
        printable(device.numa_node),
        command,
        version,
    )


def _row(cells: _Cells, shape: list[tuple[int, int]], colours: dict[int, str]) -> str:
    if not colours:
        return _line([_left(cells[index], width) for index, width in shape])
    return _line([paint(_left(cells[index], width), colours.get(index, "")) for index, width in shape])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _left(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def _centred(text: str, width: int) -> str:
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)


def paint(text: str, colour: str) -> str:
    """Return a text in a colour; blanks around it and an empty colour leave it unchanged."""
    inner = text.strip(" ")
    if not inner or not colour:
        return text
    left = len(text) - len(text.lstrip(" "))
    return text[:left] + colour + inner + _RESET + text[left + len(inner) :]


def wants_colour(choice: str | None, *, terminal: bool) -> bool:
    """Return whether the output has colours.

    Args:
        choice: the flag's value: "always", "never", "auto" (on a terminal unless NO_COLOR is set, anywhere with
            FORCE_COLOR), None without the flag.
        terminal: whether standard output is a terminal.
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return terminal or bool(os.environ.get("FORCE_COLOR"))


def rows_of_devices(
    snapshot: Snapshot, devices: list[DeviceState], *, show_all: bool, width: int | None
) -> list[list[ProcessRow]]:
    """Return for each device (pid, command, runtime version) of every process on it, by pid.

    A process on several devices has one row object, so a caller can cache what it makes of it.

    Args:
        snapshot: the machine.
        devices: those of its devices that are listed.
        show_all: also list processes without a Neuron runtime, with "NA" as the version, on every device.
        width: characters that commands are cut to, None to leave them whole.
    """
    places: dict[int, list[int]] = {}
    for place, device in enumerate(devices):
        for core in device.core_ids:
            places.setdefault(core, []).append(place)
    users: list[list[ProcessRow]] = [[] for _ in devices]
    observers: list[ProcessRow] = []
    for process in snapshot.processes:
        if process.uses_device:
            row = _process_row(process, process.runtime_version, width)
            for place in {place for use in process.cores for place in places.get(use.core, ())}:
                users[place].append(row)
        elif show_all:
            observers.append(_process_row(process, NO_RUNTIME, width))
    observers.sort()
    return [sorted(observers + own) if own else observers for own in users]


def command_width(flags: Flags) -> int:
    """Return the characters that commands are cut to: 40, or 80 with `--wide`."""
    return _WIDE_COMMAND_WIDTH if flags.wide else _COMMAND_WIDTH


def cut(command: str, width: int) -> str:
    """Return a command of at most `width` characters, the last three of them dots if it was longer."""
    return command if len(command) <= width else command[: width - 3] + "..."


def _process_row(process: ProcessState, version: str, width: int | None) -> ProcessRow:
    return process.pid, process.command if width is None else cut(process.command, width), version


def json_text(snapshot: Snapshot, devices: list[DeviceState], flags: Flags, *, instance_keys: bool) -> str:
    """Return the JSON array of devices, without a newline at its end.

    Args:
        snapshot: the machine.
        devices: those of its devices that are listed.
        flags: the command line's.
        instance_keys: whether every object starts with `instance_type` and `instance_id` (newest releases).
    """
    groups = rows_of_devices(snapshot, devices, show_all=flags.show_all, width=command_width(flags))
    processes = {row: _process(row) for row in set().union(*groups)}
    return _array(
        [
            _device(snapshot, device, _array([processes[row] for row in rows], 2), instance_keys)
            for device, rows in zip(devices, groups, strict=True)
        ],
        0,
    )


def quoted(text: str) -> str:
    """Return a text as a JSON string; characters that a terminal would obey are escaped too."""
    return f'"{printable(text.translate(_ESCAPES))}"'


def _device(snapshot: Snapshot, device: DeviceState, processes: str, instance_keys: bool) -> str:
    pairs: _Pairs = []
    if instance_keys:
        pairs += [
            ("instance_type", quoted(snapshot.instance_type)),
            ("instance_id", quoted(snapshot.instance_id)),
        ]
    pairs += [
        ("neuron_device", str(device.index)),
        ("bdf", quoted(device.bdf)),
        ("cpu_affinity", quoted(device.cpu_affinity)),
        ("numa_node", quoted(device.numa_node)),
        ("connected_to", "null" if device.connected_to is None else _integers(device.connected_to)),
        ("nc_count", str(len(device.core_ids))),
    ]
    if snapshot.lnc_applies:
        pairs.append(("logical_neuroncore_config", str(snapshot.lnc)))
    pairs += [
        ("memory_size", str(device.memory_bytes)),
        ("neuroncore_ids", _integers(device.core_ids)),
        ("neuron_processes", processes),
    ]
    return _object(pairs, 1)


def _process(row: ProcessRow) -> str:
    pid, command, version = row
    return _object(
        [("pid", str(pid)), ("command", quoted(command)), ("neuron_runtime_version", quoted(version))], 3
    )


def _integers(numbers: tuple[int, ...]) -> str:
    return _array([str(number) for number in numbers], 2)


def _object(pairs: _Pairs, depth: int) -> str:
    return _block("{", [f'"{key}": {value}' for key, value in pairs], "}", depth)


def _array(items: list[str], depth: int) -> str:
    return _block("[", items, "]", depth) if items else "[]"


def _block(opening: str, items: list[str], closing: str, depth: int) -> str:
    inner = "\n" + _INDENT * (depth + 1)
    return opening + inner + ("," + inner).join(items) + "\n" + _INDENT * depth + closing
