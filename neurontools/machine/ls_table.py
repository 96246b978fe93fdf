"""The table of neuron-ls: column rules, header and separators of system-tools.md 1.3 and 1.4."""

from __future__ import annotations

from neurontools.machine.ls_rows import command_width, process_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.ls_flags import Flags
    from neurontools.machine.snapshot import DeviceState, Snapshot

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
_COLUMN_COUNT = len(_HEADER)
_GIB = 2**30
# Unicode categories that a terminal does not print as a character of its own, and those that it prints over the last.
_UNPRINTABLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_COMBINING = ("Mn", "Me")

_Row = tuple[str, ...]


def header_lines(snapshot: Snapshot) -> list[str]:
    """Return the lines above the table; what is not known is left out."""
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
    groups = [_device_rows(snapshot, device, flags) for device in devices]
    columns = [
        index for index in range(_COLUMN_COUNT) if any(row[index] for group in groups for row in group)
    ]
    widths = [_column_width(index, groups) for index in columns]
    separator = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    shape = list(zip(columns, widths, strict=True))
    header = [_line([_centred(_HEADER[index][part], width) for index, width in shape]) for part in (0, 1)]
    lines = [separator, *header, separator]
    separated = any(len(group) > 1 for group in groups)
    for number, group in enumerate(groups):
        if number and separated:
            lines.append(separator)
        lines += [_line([_left(row[index], width) for index, width in shape]) for row in group]
    return [*lines, separator]


def core_range(cores: tuple[int, ...]) -> str:
    """Return core ids as the tools print them: `0-3` where they are consecutive, else `0, 2`."""
    if len(cores) > 1 and cores == tuple(range(cores[0], cores[0] + len(cores))):
        return f"{cores[0]}-{cores[-1]}"
    return ", ".join(str(core) for core in cores)


def printable(text: str) -> str:
    """Return a text in which every character that a terminal would not print as such is a question mark."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join("?" if unicodedata.category(letter) in _UNPRINTABLE else letter for letter in text)


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


def _device_rows(snapshot: Snapshot, device: DeviceState, flags: Flags) -> list[_Row]:
    processes = process_rows(snapshot, device, show_all=flags.show_all, width=command_width(flags))
    rows = [_row(device, *process) for process in processes[:1]] or [_row(device, None, "", "")]
    rows += [_row(None, *process) for process in processes[1:]]
    return rows


def _row(device: DeviceState | None, pid: int | None, command: str, version: str) -> _Row:
    process = ("" if pid is None else str(pid), printable(command), printable(version))
    if device is None:
        return ("", "", "", "", "", "", process[0], "", "", process[1], process[2])
    return (
        str(device.index),
        str(len(device.core_ids)),
        core_range(device.core_ids),
        f"{device.memory_bytes // _GIB} GB",
        ", ".join(str(other) for other in device.connected_to or ()),
        printable(device.bdf),
        process[0],
        printable(device.cpu_affinity),
        printable(device.numa_node),
        process[1],
        process[2],
    )


def _column_width(index: int, groups: list[list[_Row]]) -> int:
    cells = max((display_width(row[index]) for group in groups for row in group), default=0)
    return max(cells, len(_HEADER[index][0]), len(_HEADER[index][1]))


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _left(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def _centred(text: str, width: int) -> str:
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)
