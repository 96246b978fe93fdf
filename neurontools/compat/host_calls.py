"""Host files at their real paths in Python's own calls, for computers without a compiler: what `host_files.c` shows.

Functions of `os` and `open` that get an absolute path of the driver use the file of the same name in the machine's
mirror. Children that are not Python, and libraries in C, see the host's own files.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any, Self

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOPS = ("/dev", "/proc/devices", "/sys", "/opt")
_NODE = re.compile(r"/dev/neuron(\d+)$")
_ONLY_OURS = re.compile(
    _NODE.pattern + r"|/sys/(class/neuron_device|devices/virtual/neuron_device|module/neuron)(/|$)"
)
_FALLBACK = re.compile(r"(/proc/devices|/sys/devices/virtual/dmi/id/product_name)$|/opt/aws/neuron/bin(/|$)")
_REFRESH_S = 1.0
_stat, _exists = os.stat, os.path.lexists
_DEVICE = re.compile(r"/sys/.*/neuron_device/neuron(\d+)")
_asked: dict[str, Any] = {"root": "", "time_s": 0.0, "device": ""}


def install() -> None:
    """Replace the functions."""
    for name in ("open", "access", "readlink", "chdir"):
        setattr(os, name, _redirecting(getattr(os, name)))
    builtins.open = io.open = _redirecting(builtins.open)
    for name in ("stat", "lstat"):
        setattr(os, name, _with_nodes(getattr(os, name)))
    os.listdir = _listing(os.listdir)
    os.scandir = _scanning(os.scandir)


def _mirror(path: str) -> str:
    """Return the mirror's directory, brought up to date for a path; "" without a machine."""
    match = _DEVICE.match(path)
    device = match[1] if match else ""
    is_old = time.monotonic() - _asked["time_s"] > _REFRESH_S
    if is_old or "/stats/" in path or device not in {"", _asked["device"]}:
        from neurontools.machine import launch, render_client

        _asked.update(time_s=time.monotonic(), device=device)
        try:
            answer = render_client.request([device], tool="host-files")
            if answer is None:
                launch.ensure_running()
                answer = render_client.request([device], tool="host-files")
        except (NeuronToolsError, OSError):
            answer = None
        _asked["root"] = os.fsdecode(answer[1]) if answer and answer[0] == 0 else ""
    return str(_asked["root"])


def _normal(path: Any) -> str:
    """Return an absolute path that may be the driver's, "" for any other."""
    if isinstance(path, int) or path is None:
        return ""
    text = os.fsdecode(path)
    return os.path.normpath(text) if text.startswith(_TOPS) else ""


def _redirect(path: Any) -> Any:
    """Return the path to use instead of a path."""
    text = _normal(path)
    is_only_ours = _ONLY_OURS.match(text)
    if not is_only_ours and not _FALLBACK.match(text):
        leads_out = text and _ONLY_OURS.match(os.fsdecode(path))  # such as .../neuron_device/../net
        return text if leads_out and not isinstance(path, bytes) else path
    root = _mirror(text)
    changed = f"{root}{text}" if root and (is_only_ours or _exists(f"{root}{text}")) else ""
    return path if not changed else os.fsencode(changed) if isinstance(path, bytes) else changed


def _redirecting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def redirect(path: Any, *args: Any, **options: Any) -> Any:
        return function(_redirect(path), *args, **options)

    return redirect


def _with_nodes(function: Callable[..., Any]) -> Callable[..., Any]:
    from neurontools.sysfs.layout import MAJOR

    @functools.wraps(function)
    def status(path: Any, *args: Any, **options: Any) -> os.stat_result:
        changed = _redirect(path)
        result: os.stat_result = function(changed, *args, **options)
        node = _NODE.match(_normal(path)) if changed is not path else None
        if node is None:
            return result
        more = {name: getattr(result, name) for name in dir(result) if name.startswith("st_")}
        more["st_rdev"] = os.makedev(MAJOR, int(node[1]))
        return os.stat_result((stat.S_IFCHR | 0o666, *result[1:4], 0, 0, *result[6:10]), more)

    return status


def _added(path: Any) -> str:
    """Return the mirror's directory whose names a directory shows after its own, "" for none."""
    text = _normal(path)
    root = _mirror(text) if text and not _ONLY_OURS.match(text) else ""
    return f"{root}{text}" if root and os.path.isdir(f"{root}{text}") else ""


def _listing(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(function)
    def names(path: Any = ".") -> list[Any]:
        own, added = function(_redirect(path)), _added(path)
        more = function(os.fsencode(added) if isinstance(path, bytes) else added) if added else []
        return [*own, *(name for name in more if name not in own)]

    return names


class _Entries:
    """The result of `os.scandir` with further entries."""

    def __init__(self, own: Any, more: list[Any]) -> None:
        self._own = own
        self._entries = self._all(more)

    def _all(self, more: list[Any]) -> Iterator[Any]:
        seen = set()
        for entry in self._own:
            seen.add(entry.name)
            yield entry
        yield from (entry for entry in more if entry.name not in seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        """Close the directory."""
        self._own.close()


def _scanning(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def entries(path: Any = ".") -> Any:
        own, added = function(_redirect(path)), _added(path)
        if not added:
            return own
        with function(os.fsencode(added) if isinstance(path, bytes) else added) as more:
            return _Entries(own, list(more))

    return entries
