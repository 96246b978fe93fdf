"""The JSON of neuron-ls: keys, order and layout of the real tool, written without the json module."""

from __future__ import annotations

from neurontools.machine.listing.table import command_width, rows_of_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from neurontools.machine.listing.flags import Flags
    from neurontools.machine.listing.table import ProcessRow
    from neurontools.machine.snapshot import DeviceState, Snapshot

_INDENT = "    "
# As Go's encoder writes them. The three of HTML are the encoder's default there, an inference for this tool.
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\b": "\\b",
    "\f": "\\f",
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}

_PRINTABLE_ESCAPES = str.maketrans(
    {letter: text for letter, text in _ESCAPES.items() if letter.isprintable()}
)

_Pairs = list[tuple[str, str]]


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
    """Return a text as a JSON string."""
    if text.isprintable():
        return f'"{text.translate(_PRINTABLE_ESCAPES)}"'
    return '"' + "".join(_escaped(letter) for letter in text) + '"'


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter < " " or "\ud800" <= letter <= "\udfff":
        return f"\\u{ord(letter):04x}"
    return letter


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
