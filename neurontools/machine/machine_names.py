"""Names of machines and lists of device and core ids."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALLOWED = frozenset(string.ascii_letters + string.digits + "._-")
_RESERVED = frozenset({"state", "s"})
_MAX_LENGTH = 48
_MAX_DIGITS = 4


def check_name(machine: str) -> str:
    """Return a machine's name if it can be one: it becomes a directory's name.

    Raises:
        UsageError: empty, too long, reserved, or with characters other than letters, digits, `.`, `_` and `-`.
    """
    if not machine or len(machine) > _MAX_LENGTH:
        reason = f"a name has 1 to {_MAX_LENGTH} characters"
    elif not _ALLOWED.issuperset(machine) or machine[0] in ".-":
        reason = "letters, digits, '.', '_' and '-' are allowed, a letter, digit or '_' first"
    elif machine in _RESERVED:
        reason = "the name is reserved"
    else:
        return machine
    raise UsageError(
        f"invalid machine name {machine!r}: {reason}",
        "choose another with --machine or NEURONTOOLS_MACHINE",
    )


def instance_id(machine: str, uid: int) -> str:
    """Return the made-up EC2 instance id of a user's machine: the same at every start (our decision)."""
    import hashlib  # loads OpenSSL, which few programs need

    digest = hashlib.sha256(f"{machine}\0{uid}".encode()).hexdigest()
    return f"i-0{digest[:16]}"


def core_ranges(cores: tuple[int, ...]) -> str:
    """Return core ids in short: `0-3,7`."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def format_cores(cores: tuple[int, ...]) -> str:
    """Return core ids in words: `core 3`, `cores 0-3`, `no cores`."""
    return f"core{'s' * (len(cores) > 1)} {core_ranges(cores)}" if cores else "no cores"


def unknown_index(name: str, index: int, known: Sequence[int]) -> tuple[str, str]:
    """Return the message and the remedy about a device or core that a machine does not have; `name` says which."""
    has = f"{name} {known[0]} only" if len(known) == 1 else f"{name}s {core_ranges(tuple(known))}"
    return f"no {name} {index}", f"this machine has {has}"


def parse_indices(text: str) -> list[int]:
    """Return the indices of a list in the order in which they are written.

    Args:
        text: indices and ranges joined by commas; blanks around them do not count.

    Raises:
        ValueError: it is not such a list; the text says why.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if not (_is_index(first) and _is_index(last)):
            raise ValueError(
                f"{part.strip()!r} is neither an index nor a range" if part.strip() else "it is empty"
            )
        if int(last) < int(first):
            raise ValueError(f"range {part.strip()!r} runs backwards")
        found += range(int(first), int(last) + 1)
    return found


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
