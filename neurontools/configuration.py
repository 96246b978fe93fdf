"""What config.yaml says. neuron-ls comes through here when there is such a file, so nothing that costs time is imported.

A plain file (`key: value` lines, comments, and sections of tools that are plain too) is read right here; whatever else
YAML allows is read by yaml, and means the same.
"""

import os
import stat

TEXT, PATH, BOOLEAN, RELEASE, MEMORY = "text", "path", "boolean", "release", "memory"

KINDS = {
    "runtime_dir": PATH,
    "machine": TEXT,
    "autostart": BOOLEAN,
    "instance": TEXT,
    "emulate": RELEASE,
    "pace": BOOLEAN,
    "host_memory": MEMORY,
    "customop_inprocess": BOOLEAN,
    "customop_any_instance": BOOLEAN,
    "sysfs_root": PATH,
    "cache_lock_timeout": TEXT,
    "cache_max_size": TEXT,
    "cache_older_than": TEXT,
    "cache_keep_last": TEXT,
    "cache_remove": TEXT,
    "cache_auto_prune": BOOLEAN,
}

SECTIONS = ("top",)
"""Mappings of a tool's own, which reads them itself."""

_WANTED = {
    TEXT: "a text without spaces",
    PATH: "an absolute path, or one that starts with ~/",
    BOOLEAN: "true or false",
    RELEASE: "2.32 or 2.28",
    MEMORY: "a share such as 25% or a size such as 8GiB",
}
_RELEASES = ("2.32", "2.28")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_KEY = frozenset(_LETTERS + _DIGITS + "_")
_FIRST = frozenset(_LETTERS + _LETTERS.upper() + _DIGITS + "/")
_VALUE = _FIRST | frozenset("._+%-")
_NULLS = ("null", "Null", "NULL")
_CHARACTERS = bytes([9, 10, *range(32, 127)])
_MAX_BYTES = 1 << 20

Entry = tuple[str, str | None, int]
"""A key, the text of its value (None: it has none that a setting can have), and its line, from 1."""


class Problem:
    """Something in the file that can't be obeyed: where (line 0: the whole file), what, and what to do about it."""

    __slots__ = ("line", "message", "remedy")

    def __init__(self, line: int, message: str, remedy: str) -> None:
        self.line = line
        self.message = message
        self.remedy = remedy


class Configuration:
    """The settings of a file that make sense, as text with their lines by key, and the problems with the others."""

    __slots__ = ("exists", "path", "problems", "values")

    def __init__(
        self, path: str, values: dict[str, tuple[str, int]], problems: list[Problem], *, exists: bool = True
    ) -> None:
        self.path = path
        self.values = values
        self.problems = problems
        self.exists = exists


def load(path: str) -> Configuration:
    """Return what a file says; one that is not there says nothing. Never raises an error: problems are told."""
    try:
        text = _content(path)
    except (FileNotFoundError, NotADirectoryError):
        return Configuration(path, {}, [], exists=False)
    except OSError as error:
        return Configuration(
            path, {}, [Problem(0, f"cannot be read: {error.strerror}", "its settings are not used")]
        )
    except ValueError as error:
        return Configuration(path, {}, [Problem(0, str(error), "its settings are not used")])
    entries = plain_entries(text)
    problems = []
    if entries is None:
        from neurontools.configuration_yaml import NotSettingsError, yaml_entries

        try:
            entries = yaml_entries(text)
        except NotSettingsError as error:
            return Configuration(path, {}, [Problem(error.line, error.message, "its settings are not used")])
    values: dict[str, tuple[str, int]] = {}
    for key, value, line in entries:
        problem, good = _checked(key, value, line, values)
        if problem is not None:
            problems.append(problem)
        elif good:
            values[key] = (good, line)
    return Configuration(path, values, problems)


def plain_entries(text: bytes) -> list[Entry] | None:
    """Return the entries of a file of `key: value` lines and comments; None for one that needs yaml."""
    if text.translate(None, _CHARACTERS):
        return None
    entries: list[Entry] = []
    seen = set()
    lines = text.decode("ascii").split("\n")
    passed = 0
    for number, line in enumerate(lines, 1):
        if number <= passed or not line or line[0] == "#":
            continue
        head = line.partition(" #")[0].rstrip(" ")
        if head[-1:] == ":" and head[:-1] in SECTIONS:
            from neurontools.configuration_section import section_end

            end = section_end(lines, number)
            if end is None or head[:-1] in seen:
                return None
            passed = end
            seen.add(head[:-1])
            entries.append((head[:-1], None, number))
            continue
        key, colon, rest = line.partition(": ")
        value = rest.partition(" #")[0].strip(" ")
        if not colon or not _KEY.issuperset(key) or not key or key in seen or not value or value in _NULLS:
            return None
        if value[0] not in _FIRST and value[:2] != "~/":
            return None
        if not _VALUE.issuperset(value[1:]):
            return None
        seen.add(key)
        entries.append((key, value, number))
    return entries


def _content(path: str) -> bytes:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("is not a file")
    if found.st_size > _MAX_BYTES:
        raise ValueError(f"is larger than {_MAX_BYTES} bytes")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)


def _checked(
    key: str, value: str | None, line: int, before: dict[str, tuple[str, int]]
) -> tuple[Problem | None, str]:
    if key in SECTIONS:
        return None, ""
    if key not in KINDS:
        return Problem(line, f"unknown setting {key!r}", _suggestion(key)), ""
    if key in before:
        message = f"{key!r} is set in line {before[key][1]} already"
        return Problem(line, message, "the first one is used; remove one of them"), ""
    if value == "":
        return None, ""
    good = None if value is None else _normal(KINDS[key], value)
    if good is None:
        shown = "a list or a mapping" if value is None else repr(value)
        message = f"{key!r} must be {_WANTED[KINDS[key]]}, not {shown}"
        return Problem(line, message, "the default is used until it is corrected"), ""
    return None, good


def _normal(kind: str, value: str) -> str | None:
    if kind == BOOLEAN:
        word = value.lower()
        return "1" if word in _TRUE else "0" if word in _FALSE else None
    if kind == PATH:
        expanded = os.path.expanduser(value) if value[:2] == "~/" else value
        return expanded if expanded[:1] == "/" and "\0" not in expanded else None
    if kind == RELEASE:
        return value if value in _RELEASES else None
    if kind == MEMORY:
        return value if value[:1] in _DIGITS and " " not in value else None
    return value if value.split() == [value] else None


def _suggestion(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, KINDS, n=1)
    return f"did you mean {near[0]!r}?" if near else "'neurontools config show' lists the settings"
