"""Every path of ours, in one place. Imports only what `python -c pass` has: `neuron-ls` runs through here.

<runtime dir>/                 NEURONTOOLS_RUNTIME_DIR, else $XDG_RUNTIME_DIR/neurontools, else /tmp/neurontools-<uid>
    <machine>/
        neurond.sock           or `socket`, a file that names a shorter path when this one is too long
        neurond.json           pid, start time, instance type of the daemon
        pages/                 one telemetry page per registered process
<state dir>/                   $XDG_STATE_HOME/neurontools, or <runtime dir>/state when that was chosen by hand
    <machine>/                 journal.json, neurond.log
"""

import os
import stat

from neurontools import env
from neurontools.errors import NeuronToolsError

_SUN_PATH_MAX = 107


def runtime_dir() -> str:
    """Return the directory that holds one directory per machine; it need not exist yet."""
    chosen = os.environ.get(env.RUNTIME_DIR)
    if chosen:
        return os.path.abspath(chosen)
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg:
        return xdg + "/neurontools"
    return f"/tmp/neurontools-{os.getuid()}"  # noqa: S108  checked by ensure_private


def ensure_private(path: str) -> str:
    """Make a directory that only this user can enter, or refuse one that is not.

    Raises:
        NeuronToolsError: the path is a link, no directory, somebody else's, or open to others.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise NeuronToolsError(
            f"cannot use directory {path}: {error.strerror}", f"set {env.RUNTIME_DIR} to another"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        reason = "it is not a real directory"
    elif found.st_uid != os.getuid():
        reason = f"it belongs to uid {found.st_uid}"
    elif found.st_mode & 0o077:
        reason = f"others can enter it (mode {found.st_mode & 0o777:o}, 700 wanted)"
    else:
        return path
    raise NeuronToolsError(
        f"refusing directory {path}: {reason}", f"remove it or set {env.RUNTIME_DIR} to another"
    )


def machine_dir(machine: str) -> str:
    """Return the runtime directory of one machine."""
    return f"{runtime_dir()}/{machine}"


def pages_dir(machine: str) -> str:
    """Return the directory of the telemetry pages of one machine."""
    return f"{machine_dir(machine)}/pages"


def socket_path(machine: str) -> str:
    """Return where the daemon of a machine listens.

    A path that does not fit `sun_path` (108 bytes) is replaced by a short one, which the file `socket` in the
    machine's directory names once a daemon has chosen it.
    """
    path = f"{machine_dir(machine)}/neurond.sock"
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        return path
    try:
        with open(f"{machine_dir(machine)}/socket", encoding="utf-8") as pointer:
            return pointer.read().strip()
    except OSError:
        return path


def needs_short_socket(path: str) -> bool:
    """Return whether a socket path is too long for `sun_path`."""
    return len(os.fsencode(path)) > _SUN_PATH_MAX


def state_dir() -> str:
    """Return where logs and lifetime counters live."""
    chosen = os.environ.get(env.RUNTIME_DIR)
    if chosen:
        return os.path.abspath(chosen) + "/state"
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_home() -> str:
    """Return where rebuildable things of ours live (worker executables, profile columns); not the compile cache."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def config_file() -> str:
    """Return the user's settings file, which need not exist."""
    return _xdg("XDG_CONFIG_HOME", ".config") + "/config.yaml"


def fixtures_dir() -> str:
    """Return the directory of the data files that are installed with the package."""
    from neurontools import fixtures

    return next(iter(fixtures.__path__))


def _xdg(variable: str, fallback: str) -> str:
    base = os.environ.get(variable) or os.path.join(os.path.expanduser("~"), fallback)
    return base + "/neurontools"
