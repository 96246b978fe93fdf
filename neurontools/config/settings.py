"""The settings in the user's config.yaml. neuron-ls reads them, so nothing costly is imported without such a file."""

from __future__ import annotations

import os
import stat

from neurontools.config.reader import MAPPING, NULL, FormatError, Problem, Value, in_order, read_yaml

WORD, PATH, BOOLEAN, RELEASE, MEMORY = "word", "path", "boolean", "release", "memory"

KINDS = {
    "runtime_dir": PATH,
    "machine": WORD,
    "autostart": BOOLEAN,
    "instance": WORD,
    "emulate": RELEASE,
    "pace": BOOLEAN,
    "numerics": WORD,
    "host_memory": MEMORY,
    "customop_inprocess": BOOLEAN,
    "customop_any_instance": BOOLEAN,
    "native_any_instance": BOOLEAN,
    "sysfs_root": PATH,
    "cache_lock_timeout": WORD,
    "cache_max_size": WORD,
    "cache_older_than": WORD,
    "cache_keep_last": WORD,
    "cache_remove": WORD,
    "cache_auto_prune": BOOLEAN,
}

SECTIONS = ("top",)
"""Mappings that one tool reads itself."""

_EXPECTED = {
    WORD: "a text without spaces",
    PATH: "an absolute path, or a path that starts with ~/",
    BOOLEAN: "true or false",
    RELEASE: "2.32 or 2.28",
    MEMORY: "a share such as 25% or a size such as 8GiB",
}
_RELEASES = ("2.32", "2.28")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_MAX_BYTES = 1 << 20
_IGNORED = "its settings are not used"


class Configuration:
    """A settings file: its path, whether it exists, valid values as text with their lines by key, and its mistakes."""

    __slots__ = ("exists", "path", "problems", "values")

    def __init__(self, path: str, *, exists: bool = True) -> None:
        self.path = path
        self.exists = exists
        self.values: dict[str, tuple[str, int]] = {}
        self.problems: tuple[Problem, ...] = ()


def load(path: str) -> Configuration:
    """Return the settings in a file, none where it does not exist. Mistakes are listed, not raised."""
    configuration = Configuration(path)
    try:
        root = read_yaml(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        configuration.exists = False
    except OSError as error:
        configuration.problems = (Problem(0, "", f"cannot be read: {error.strerror or error}", _IGNORED),)
    except FormatError as error:
        configuration.problems = (Problem(error.problem.line, "", error.problem.message, _IGNORED),)
    else:
        _read_settings(root, configuration)
    return configuration


def read_file(path: str) -> bytes:
    """Return the content of a settings file.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size > _MAX_BYTES:
        raise OSError(f"larger than {_MAX_BYTES} bytes")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)


def _read_settings(root: Value, configuration: Configuration) -> None:
    if root.kind not in {MAPPING, NULL}:
        root.fail("expected settings such as 'machine: ci'", _IGNORED)
    elif root.kind == MAPPING:
        for key, value in root.section():
            text = _read_setting(key, value)
            if text is not None:
                configuration.values[key] = text, value.line
    configuration.problems = in_order(root.problems)


def _read_setting(key: str, value: Value) -> str | None:
    if key in SECTIONS or (key in KINDS and value.kind == NULL):
        return None
    if key not in KINDS:
        from neurontools.base.text import suggest

        match = suggest(key, KINDS)
        hint = f"did you mean {match!r}?" if match else "'neurontools config show' lists the settings"
        value.fail_key("unknown setting", hint)
        return None
    text = _normalize(KINDS[key], value.text) if value.is_scalar else None
    if text is None:
        value.fail(f"expected {_EXPECTED[KINDS[key]]}, found {value.describe()}", "the default is used")
    return text


def _normalize(kind: str, text: str) -> str | None:
    if kind == BOOLEAN:
        word = text.lower()
        return "1" if word in _TRUE else "0" if word in _FALSE else None
    if kind == PATH:
        expanded = os.path.expanduser(text) if text[:2] == "~/" else text
        return expanded if expanded[:1] == "/" and "\0" not in expanded else None
    if kind == RELEASE:
        return text if text in _RELEASES else None
    if kind == MEMORY:
        return text if text[:1].isdecimal() and " " not in text else None
    return text if text.split() == [text] else None
