"""Checks of the installation: installed and missing parts, and how to install them. Starts no machine."""

from __future__ import annotations

import locale
import os
import platform
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from neurontools import __version__, env, paths
from neurontools.base.packages import installed_version
from neurontools.errors import TORCH_REMEDY, NeuronToolsError

_MIN_FREE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. While `ok` is False, `needed_for` does not work, and `remedy` says what to do.

    `verdict` is the word for that: "missing", or "wrong" for something that exists.
    """

    name: str
    ok: bool
    detail: str
    needed_for: str = ""
    remedy: str = ""
    verdict: str = "missing"


def examine() -> tuple[Check, ...]:
    """Return every finding, in the order of the output."""
    return (
        Check("neurontools", ok=True, detail=__version__),
        Check("python", ok=True, detail=f"{platform.python_version()} ({sys.executable})"),
        _system(),
        _torch(),
        _extra("numpy", "numpy", "profile", "neuron-profile, neuron-run"),
        _extra(
            "prometheus_client",
            "prometheus-client",
            "prometheus",
            "neuron-monitor-prometheus, neuron-monitor --prometheus",
        ),
        _extra("zstandard", "zstandard", "archive", "neuron-cache copy to and from .zst files"),
        _extra("s3fs", "s3fs", "s3", "compile caches in S3 buckets"),
        _compiler(),
        _device_guard(),
        _host_files(),
        _terminal(),
        _extra("completion", "shtab", "completion", "neurontools completion", "shtab "),
        _settings(),
        _runtime_dir(),
        _writable(
            "state directory",
            paths.state_dir(),
            "machines, counters of the compile cache",
            env.RUNTIME_DIR if env.runtime_dir() else "XDG_STATE_HOME",
        ),
        _writable(
            "build directory", paths.cache_home(), "neuron-customop build, load and run", "XDG_CACHE_HOME"
        ),
        _machines(),
        _compile_cache(),
    )


def _system() -> Check:
    ok = sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64"}
    return Check(
        "system",
        ok,
        f"{platform.system()} {platform.release()} {platform.machine()}",
        needed_for="everything",
        remedy="use Linux on x86-64 or aarch64; on Windows WSL2, elsewhere a container",
    )


def _torch() -> Check:
    found = installed_version("torch")
    if not found:
        return Check(
            "torch",
            ok=False,
            detail="not installed",
            needed_for="neuron-run, neuron-customop load and run",
            remedy=TORCH_REMEDY,
        )
    build = "CPU build" if find_spec("nvidia") is None else "CUDA build: works, but several gigabytes larger"
    return Check("torch", ok=True, detail=f"{found} ({build})")


def _compiler() -> Check:
    from neurontools.customop.building.toolchain import find_compiler

    try:
        found = find_compiler()
    except NeuronToolsError as error:
        return Check(
            "compiler", ok=False, detail="none", needed_for="neuron-customop build", remedy=error.remedy
        )
    return Check("compiler", ok=True, detail=found.version)


def _device_guard() -> Check:
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return Check("device guard", ok=True, detail="not needed: torch is not installed")
    needed_for = "Ctrl-C and exceptions in a backward pass on xla"
    from neurontools.xla.device_guard import ensure_guard

    try:
        path = ensure_guard(os.path.dirname(torch.origin))
    except NeuronToolsError as error:
        return Check(
            "device guard", ok=False, detail=error.message, needed_for=needed_for, remedy=error.remedy
        )
    return Check("device guard", ok=True, detail=path)


def _host_files() -> Check:
    from neurontools.compat.host_files import ensure_preload

    try:
        path = ensure_preload()
    except NeuronToolsError as error:
        return Check(
            "host files",
            ok=False,
            detail=f"Python's own calls under neuron-run ({error.message})",
            needed_for="/dev/neuron0, /proc/devices and /sys in other programs",
            remedy=error.remedy,
        )
    return Check("host files", ok=True, detail=f"{path}; not in static, setuid and musl programs")


def _terminal() -> Check:
    term = os.environ.get("TERM", "")
    encoding = locale.getpreferredencoding(do_setlocale=False)
    interactive = sys.stdout.isatty()
    where = f"{term or 'no TERM'}, {encoding}" + ("" if interactive else ", output is not a terminal")
    return Check(
        "terminal",
        term not in {"", "dumb"} and encoding.upper() == "UTF-8",
        where,
        needed_for="neuron-top, the profile timeline",
        remedy="use a terminal with UTF-8 and set TERM, for example xterm-256color",
    )


def _extra(name: str, package: str, extra: str, needed_for: str, before_version: str = "") -> Check:
    found = installed_version(package)
    return Check(
        name,
        bool(found),
        f"{before_version}{found}" if found else "not installed",
        needed_for=needed_for,
        remedy=f"pip install 'neurontools[{extra}]'",
    )


def _settings() -> Check:
    env.configuration()
    path = env.config_file()
    problems = env.config_problems()
    return Check(
        "settings",
        not problems,
        "; ".join(problems) or (path if os.path.exists(path) else f"no {path}"),
        needed_for="the settings named there",
        remedy="correct the file; `neurontools config show` lists the values in use",
        verdict="wrong",
    )


def _runtime_dir() -> Check:
    directory, owner = paths.runtime_dir(), paths.owner()
    if owner != os.getuid():
        return Check("runtime directory", ok=True, detail=f"{directory}, shared by uid {owner}")
    try:
        paths.ensure_private(directory)
    except NeuronToolsError as error:
        return Check(
            "runtime directory", ok=False, detail=error.message, needed_for="machines", remedy=error.remedy
        )
    return _writable("runtime directory", directory, "machines", env.RUNTIME_DIR)


def _writable(name: str, directory: str, needed_for: str, variable: str) -> Check:
    problem = _write_problem(directory)
    return Check(
        name,
        not problem,
        f"{directory}: {problem}" if problem else directory,
        needed_for=needed_for,
        remedy=f"set {variable} to another directory",
        verdict="wrong",
    )


def _write_problem(directory: str) -> str:
    """Return why a directory, which need not exist yet, is not writable; "" if it is."""
    there = os.path.abspath(directory)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        return f"{there} is not a directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} is not writable"
    disk = os.statvfs(there)
    free_bytes = disk.f_bavail * disk.f_frsize
    return f"only {free_bytes >> 10} KiB free" if free_bytes < _MIN_FREE_BYTES else ""


def _machines() -> Check:
    from neurontools.machine import launch
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.machine.machine_names import check_name

    try:
        check_name(env.machine())
        instance_type(env.instance())
    except NeuronToolsError as error:
        return Check(
            "machines",
            ok=False,
            detail=error.message,
            needed_for="commands that use a machine",
            remedy=f"{error.remedy}; 'neurontools config show' lists where it is set",
            verdict="wrong",
        )
    running = ", ".join(f"{info.machine} ({info.instance_type})" for info in launch.list_machines())
    return Check(
        "machines", ok=True, detail=running or f"none running; {env.instance()} starts on first need"
    )


def _compile_cache() -> Check:
    from neurontools.cache.location import resolve

    try:
        chosen = resolve()
    except NeuronToolsError as error:
        return Check(
            "compile cache",
            ok=False,
            detail=error.message,
            needed_for="neuron-run, neuron-cache",
            remedy=error.remedy,
            verdict="wrong",
        )
    # A read-only cache still has hits.
    problem = "" if chosen.is_remote else _write_problem(chosen.root)
    return Check(
        "compile cache", ok=True, detail=f"{chosen.root} ({chosen.source}){problem and f', {problem}'}"
    )
