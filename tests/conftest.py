"""Every test has a home of its own: runtime directory, XDG directories, compile cache; nothing is left running."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.loaded_python import LoadedPython

# For the torch of this process too, which reads it when it is imported: threads that wait for each other take the
# cores of the other workers.
os.environ["OMP_NUM_THREADS"] = "1"

# No test depends on the speed of the computer that runs it.
settings.register_profile("neurontools", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("neurontools")

# Every worker of every run would otherwise rewrite the assertions of 600 modules anew: a third of the collection.
sys.dont_write_bytecode = False

# The checkout comes last, so that the installed package is what is tested.
sys.path.append(str(Path(__file__).parents[1]))

# A shell lets what it starts in the background ignore Ctrl-C, nohup the end of a session; the programs that the tests
# start would inherit both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

Tool = Callable[..., subprocess.CompletedProcess[str]]


_SHARED = Path(tempfile.gettempdir()) / f"neurontools-test-cache-{os.getuid()}"
_SHARED_S = 86400.0
NO_TORCH = importlib.util.find_spec("torch") is None
NEEDS_TORCH = re.compile(r"No module named 'torch'|torch is not installed|neurontools\[torch\]")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules and folders that import torch, as a whole, where torch is not installed."""
    return _skip_without_torch((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip tests that fail for want of torch: those that run programs with it."""
    return _skip_without_torch((yield))


Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)


def _skip_without_torch(report: Report) -> Report:
    shown = (str(report.longrepr), *(text for _, text in report.sections))
    if NO_TORCH and report.failed and any(NEEDS_TORCH.search(text) for text in shown):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 1, "Skipped: torch is not installed")
    return report


SLOW_FOLDERS = {"cache/remote", "customop", "demo", "docs", "packaging", "stress", "tui", "xla"}
"""Folders whose tests compile C++, run torch, talk to a server, draw screens or run whole programs."""
STARTS_PROCESSES = re.compile(r"\b(?:subprocess|tool|launch|private_machine|neuron_machine)\b")


@cache
def is_slow(module: Path) -> bool:
    """Return whether `make test-fast` leaves out a module: by its folder, or because its tests start processes."""
    folders = {str(folder) for folder in module.relative_to(Path(__file__).parent).parents}
    return bool(folders & SLOW_FOLDERS) or bool(STARTS_PROCESSES.search(module.read_text()))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the slow modules for a run without them: that takes as long as many a test."""
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.option.markexpr == "not slow" and is_module and is_slow(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests; skip those marked `torch` where torch is not installed and their failure does not name it.

    Workers that run side by side begin with the slow modules, so that none is left with one when the others have ended.
    """
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
        if NO_TORCH and item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not is_slow(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and tests, which stay until the end, out of every collection of garbage: half of a test's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_modules_frozen = [0]


def pytest_runtest_setup() -> None:
    """Do the same with modules that the test before this one has loaded: those of torch are half a million objects."""
    if len(sys.modules) > _modules_frozen[0]:
        gc.collect()  # garbage that is frozen would never be freed
        gc.freeze()
        _modules_frozen[0] = len(sys.modules)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private directory; every environment variable that could lead out of it points into it."""
    path = Path(tempfile.mkdtemp(prefix="nt-", dir="/tmp"))
    for name in list(os.environ):
        if name.startswith(("NEURON", "XLA_", "PT_XLA")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what a pipe gets, and when, is ours to decide
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # hundreds of starts would compile all of it
    for name, value in {
        "HOME": path,
        "XDG_CONFIG_HOME": path / "config",
        "XDG_STATE_HOME": path / "state",
        "XDG_CACHE_HOME": _shared_cache(),
        "NEURONTOOLS_RUNTIME_DIR": path / "run",
        "NEURON_COMPILE_CACHE_URL": path / "compile-cache",
        "NEURONTOOLS_AUTOSTART": "0",
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "LINES": "24",
        "TERM": "xterm-256color",
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(path)
    yield path
    _end_daemons(path / "run")
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def same_signals(home: Path) -> Iterator[None]:
    """Fail a test that leaves another handler, or a signal blocked, to the tests after it in this process."""
    before = _signals()
    yield
    after = _signals()
    if after != before:
        signal.pthread_sigmask(signal.SIG_SETMASK, before[0])
        for number, handler in before[1].items():
            signal.signal(number, handler)
        pytest.fail(f"the test leaves signals as {after}, before they were {before}")


def _signals() -> tuple[set[signal.Signals | int], dict[signal.Signals, object]]:
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGCONT)
    return signal.pthread_sigmask(signal.SIG_BLOCK, ()), {each: signal.getsignal(each) for each in watched}


@pytest.fixture
def installed_tool() -> Tool:
    """Run one of our console scripts and return what it printed: `installed_tool("neuron-ls", "-j")`."""

    def run(
        name: str, *arguments: str, timeout: float = 600, **options: object
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            [_script(name), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            **options,
        )

    return run


@pytest.fixture
def tool(installed_tool: Tool, loaded_commands: LoadedPython) -> Tool:
    """Do the same in a tenth of the time: the command runs in a copy of a process that has imported its modules.

    Not where a new Python would read other variables; and a test of how commands start or what they import takes
    `installed_tool`.
    """

    from tests.loaded_python import variables_of_python

    def run(
        name: str,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        environ = os.environ if env is None else env
        if variables_of_python(environ) != loaded_commands.variables:
            return installed_tool(name, *arguments, cwd=cwd, env=env, timeout=timeout)
        return loaded_commands.run([_script(name), *arguments], cwd or Path.cwd(), environ, timeout)

    return run


@pytest.fixture(scope="session")
def loaded_commands(loaded_daemon: LoadedPython) -> Iterator[LoadedPython]:
    """A process that has imported the modules of the commands."""
    from tests.loaded_python import LoadedPython

    python = LoadedPython(
        "from tests import loaded_daemon, loaded_modules\n"
        "loaded_modules.load(loaded_modules.COMMANDS)\n"
        f"loaded_daemon.start_copies({loaded_daemon.address!r}, {loaded_daemon.variables!r})"
    )
    yield python
    python.close()


@pytest.fixture(scope="session", autouse=True)
def loaded_daemon() -> Iterator[LoadedPython]:
    """A process that has imported neurond's modules: daemons that this process and `tool` start are copies of it."""
    from tests.loaded_daemon import PREAMBLE, start_copies
    from tests.loaded_python import LoadedPython

    python = LoadedPython(PREAMBLE)
    start_copies(python.address, python.variables)
    yield python
    python.close()


@pytest.fixture
def new_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons start as they do for users: in a new Python. For tests of the daemon's own process."""
    from neurontools.machine import launch
    from tests.loaded_daemon import start_new_process

    monkeypatch.setattr(launch, "_start_process", start_new_process)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[[Callable[[], object]], None]:
    """Wait for something that another process does."""
    from tests.support.waiting import wait_until

    return wait_until


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@pytest.fixture(scope="session")
def torch_python() -> Iterator[str]:
    """A program to run in place of python: it has torch and our modules loaded. See tests/loaded_python.py."""
    from tests.loaded_python import LoadedPython

    if NO_TORCH:
        pytest.skip("torch is not installed")
    python = LoadedPython(
        "import torch, torch._dynamo\n"
        "from tests import loaded_modules\n"
        "loaded_modules.load(loaded_modules.PROGRAMS)"
    )
    yield python.executable
    python.close()


@cache
def _shared_cache() -> Path:
    # Compiled worker executables are keyed by their content, so all tests of a checkout may share them, for a day.
    own = Path(f"{_SHARED}-{hashlib.sha256(str(Path(__file__).parent).encode()).hexdigest()[:8]}")
    for path in own.parent.glob(f"{_SHARED.name}-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _SHARED_S:
                shutil.rmtree(path.rename(f"{path}-{os.getpid()}"), ignore_errors=True)
    own.mkdir(mode=0o700, exist_ok=True)
    return own


def _end_daemons(runtime_dir: Path) -> None:
    for record in runtime_dir.glob("*/neurond.json"):
        try:
            os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
        except (OSError, ValueError, KeyError):
            continue
