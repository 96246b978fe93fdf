"""All paths of neurontools. Imports only what `python -c pass` has: `neuron-ls` runs through here.

<runtime dir>/                 NEURONTOOLS_RUNTIME_DIR or `runtime_dir` in config.yaml, else
                               $XDG_RUNTIME_DIR/neurontools, else /tmp/neurontools-<uid>
    <machine>/
        neurond.sock           or `socket`, a file with a shorter path where this one is too long
        neurond.json           pid, start time, instance type of the daemon
        pages/                 one telemetry page per registered process
        live/                  profiles of processes that somebody watches
    .job-secret                the secret by which this user's workers know each other
    .group                     only where `neurond start --group` shares the directory with a group
<state dir>/                   $XDG_STATE_HOME/neurontools, or <runtime dir>/state where that is configured and this user's
    <machine>/                 journal.json, neurond.log
"""

import os
import stat

from neurontools import env
from neurontools.errors import NeuronToolsError, UsageError

SHARED_MODE = 0o2750
GROUP_MARK = ".group"
JOB_SECRET = ".job-secret"  # noqa: S105  a name

_SUN_PATH_MAX = 107


def runtime_dir() -> str:
    """Return the directory of the machines' directories; it need not exist yet."""
    chosen = env.runtime_dir()
    if chosen:
        return os.path.abspath(chosen)
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(xdg):
        return xdg + "/neurontools"
    return f"/tmp/neurontools-{os.getuid()}"  # noqa: S108  checked by ensure_private


def ensure_private(path: str) -> str:
    """Create a directory that only this user can enter, or refuse an existing directory that is not private.

    A directory that this user shares with a group (see `shared`) is accepted too.

    Raises:
        NeuronToolsError: the path is a link, not a directory, another user's, or accessible to others.
    """
    try:
        make_private(path)
        found = os.lstat(path)
    except FileExistsError:
        found = os.lstat(path)  # a file or a dangling link: refused below
    except OSError as error:
        raise NeuronToolsError(
            f"cannot use directory {path}: {error.strerror}", f"set {env.RUNTIME_DIR} to another"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        reason = "it is not a real directory"
    elif found.st_uid != os.getuid():
        reason = f"it belongs to uid {found.st_uid}"
    elif found.st_mode & 0o077 and shared(path) is None:
        reason = f"others can enter it (mode {found.st_mode & 0o777:o}, 700 wanted)"
    else:
        return path
    raise NeuronToolsError(
        f"refusing directory {path}: {reason}", f"remove it or set {env.RUNTIME_DIR} to another"
    )


def make_private(path: str) -> None:
    """Create a directory and those above it that are missing, all of them for this user alone, whatever the umask.

    Raises:
        OSError: it cannot be created, or is not a directory.
    """
    if not os.path.isdir(path):
        above = os.path.dirname(path)
        if above and above != path:
            make_private(above)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def shared(path: str) -> tuple[int, int] | None:
    """Return uid and gid of a directory shared by `neurond start --group`, None for any other.

    Its mode is 2750, and it contains the mark: a file of the same owner with the gid. The mode alone is not enough: a
    umask below a setgid directory can produce it by chance.
    """
    try:
        found = os.lstat(path)
        mark = os.open(f"{path}/{GROUP_MARK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        mark_owner, content = os.fstat(mark).st_uid, os.read(mark, 16)
    except OSError:
        return None
    finally:
        os.close(mark)
    has_shared_mode = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == SHARED_MODE
    if has_shared_mode and mark_owner == found.st_uid and content.strip() == b"%d" % found.st_gid:
        return found.st_uid, found.st_gid
    return None


def owner() -> int:
    """Return the uid of the owner of the machines: this user, or another one who shares the directory with a group.

    Only a configured directory can be another user's, never the default one in /tmp.
    """
    found = shared(runtime_dir()) if env.runtime_dir() else None
    return os.getuid() if found is None else found[0]


def private_dirs() -> tuple[str, ...]:
    """Return the directories that stay private to this user wherever the runtime directory is."""
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    private = (
        f"/tmp/neurontools-{os.getuid()}",  # noqa: S108  named, not used
        _xdg("XDG_STATE_HOME", ".local/state"),
        cache_home(),
        os.path.dirname(config_file()),
    )
    return (*private, xdg) if xdg else private


def machine_dir(machine: str) -> str:
    """Return the runtime directory of one machine."""
    return f"{runtime_dir()}/{machine}"


def live_dir(machine: str) -> str:
    """Return the directory of this user's profiles of running processes."""
    return f"{own_runtime_dir()}/{machine}/live"


def own_runtime_dir() -> str:
    """Return the directory of this user's own files; another user's runtime directory has no place for them."""
    return runtime_dir() if owner() == os.getuid() else f"/tmp/neurontools-{os.getuid()}"  # noqa: S108  see ensure_private


def pages_dir(machine: str) -> str:
    """Return the directory of the telemetry pages of one machine."""
    return f"{machine_dir(machine)}/pages"


def socket_path(machine: str) -> str:
    """Return the socket path of a machine's daemon.

    A path that does not fit `sun_path` (108 bytes) is replaced by a short one, which the daemon writes into the file
    `socket` in the machine's directory.
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
    """Return the directory of logs and lifetime counters."""
    if env.runtime_dir() and owner() == os.getuid():
        return runtime_dir() + "/state"
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_home() -> str:
    """Return the directory of rebuildable files (worker executables, profile columns); not the compile cache."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def config_file() -> str:
    """Return the user's settings file, which need not exist."""
    return env.config_file()


def fixtures_dir() -> str:
    """Return the directory of the package's data files."""
    from neurontools import fixtures

    return next(iter(fixtures.__path__))


def _xdg(variable: str, fallback: str) -> str:
    # The XDG specification: a relative path is invalid and is ignored.
    base = os.environ.get(variable, "")
    return (base if os.path.isabs(base) else f"{_home()}/{fallback}") + "/neurontools"


def _home() -> str:
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        reason = (
            f"HOME is {home!a}"
            if os.environ.get("HOME")
            else f"HOME is not set, uid {os.getuid()} has no name"
        )
        raise UsageError(f"no home directory: {reason}", "set HOME to an absolute path")
    return home.rstrip("/")
