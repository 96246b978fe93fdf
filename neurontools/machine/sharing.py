"""Sharing a runtime directory with a group: `neurond start --group G --dir D`.

A directory is shared, not a machine: every machine in it serves the group. Files' modes decide who can connect: the
directory and the machines' directories are 2750, the sockets 660, records 640; pages, journals and logs are private.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat

from neurontools import env, paths
from neurontools.base.files import write_atomic
from neurontools.errors import NeuronToolsError, UsageError

SOCKET_MODE = 0o660
RECORD_MODE = 0o640

_GROUP_MAX = (1 << 32) - 2


def share(directory: str, group: str) -> str:
    """Create a directory in which machines are shared with a group, or check an existing one; return its absolute path.

    Args:
        directory: new, empty, or already shared with the same group.
        group: a group's name or number, of which this user is a member (root need not be).

    Raises:
        UsageError: no directory is given.
        NeuronToolsError: there is no such group, this user is not in it, or the directory is private, another
            user's, out of the group's reach, or cannot be created.
    """
    if not directory:
        raise UsageError("--dir is empty", "name a directory that the group can reach")
    gid = group_id(group)
    _check_member(gid)
    path = os.path.abspath(directory)
    _check_not_private(path)
    _check_reachable(path, gid)
    make_shared_root(path, gid)
    return path


def group_id(group: str) -> int:
    """Return a group's number from its name or number; the number need not have a name.

    Raises:
        NeuronToolsError: there is no such group.
    """
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        if group.isascii() and group.isdigit() and int(group) <= _GROUP_MAX:
            return int(group)
    raise NeuronToolsError(f"there is no group {group!r}", "'getent group' lists them; a number works too")


def group_name(gid: int) -> str:
    """Return a group's name, or its number as text where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def make_shared_root(path: str, gid: int) -> None:
    """Create the directory that holds a group's machines, with its mark, unless it exists.

    Raises:
        NeuronToolsError: it holds other files, is another user's, or cannot be created.
    """
    if paths.shared(path) == (os.getuid(), gid):
        return
    try:
        try:
            os.makedirs(path, mode=0o700)
        except FileExistsError:
            _check_free(path, gid)
        _open_to(path, gid)
        write_atomic(f"{path}/{paths.GROUP_MARK}", f"{gid}\n", mode=RECORD_MODE, exact_mode=True, sync=False)
    except OSError as error:
        raise NeuronToolsError(f"cannot share {path}: {error.strerror}", "choose another --dir") from error
    if paths.shared(path) is None:
        raise NeuronToolsError(
            f"cannot share {path}: its file system does not keep groups and modes", "choose another --dir"
        )


def make_shared(path: str, gid: int) -> None:
    """Create the directory of one machine inside a shared one, or refuse a directory that is open to others.

    Raises:
        NeuronToolsError: the path is a link, not a directory, another user's, open to others, or cannot be created.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            reason = "it is not a real directory"
        elif found.st_uid != os.getuid():
            reason = f"it belongs to uid {found.st_uid}"
        elif found.st_mode & 0o027:
            reason = f"others can enter or change it (mode {found.st_mode & 0o777:o}, 750 wanted)"
        else:
            _open_to(path, gid)
            return
    except OSError as error:
        raise NeuronToolsError(f"cannot use directory {path}: {error.strerror}") from error
    raise NeuronToolsError(f"refusing directory {path}: {reason}", "remove it")


def make_closed(path: str) -> None:
    """Create a directory that the group cannot enter inside a shared directory."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    os.chmod(path, 0o700)


def _open_to(path: str, gid: int) -> None:
    os.chown(path, -1, gid)
    os.chmod(path, paths.SHARED_MODE)


def _check_member(gid: int) -> None:
    if os.geteuid() != 0 and gid not in {os.getegid(), *os.getgroups()}:
        name, user = group_name(gid), _user_name(os.geteuid())
        raise NeuronToolsError(
            f"user {user} is not a member of group {name}",
            f"root can change that: usermod -aG {name} {user}, then log in again",
        )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _check_not_private(path: str) -> None:
    real = os.path.realpath(path)
    for private in paths.private_dirs():
        place = os.path.realpath(private)
        if real == place or real.startswith(place + "/"):
            raise NeuronToolsError(
                f"refusing to share {path}: it belongs to the private directory {private}",
                "choose a --dir that the group can reach, such as one below /srv",
            )


def _check_reachable(path: str, gid: int) -> None:
    place = os.path.dirname(os.path.realpath(path))
    while True:
        try:
            found = os.stat(place)
        except FileNotFoundError as error:
            raise NeuronToolsError(
                f"cannot share {path}: directory {place} does not exist", "create it first"
            ) from error
        except OSError as error:
            raise NeuronToolsError(f"cannot share {path}: {place}: {error.strerror}") from error
        if not found.st_mode & (0o011 if found.st_gid == gid else 0o001):
            raise NeuronToolsError(
                f"refusing to share {path}: {place} is private (mode {found.st_mode & 0o777:o}), "
                f"so group {group_name(gid)} can't get there",
                "choose a --dir that the group can reach, such as one below /srv",
            )
        if place == "/":
            return
        place = os.path.dirname(place)


def _check_free(path: str, gid: int) -> None:
    found, before = os.lstat(path), paths.shared(path)
    if not stat.S_ISDIR(found.st_mode):
        reason = "it is not a real directory"
    elif found.st_uid != os.getuid():
        reason = f"it belongs to uid {found.st_uid}"
    elif before is not None:
        reason = f"it is shared with group {group_name(before[1])}, not {group_name(gid)}"
    elif os.listdir(path):
        reason = "it is private and contains files that are not shared with the group yet"
    else:
        return
    raise NeuronToolsError(f"refusing to share {path}: {reason}", "choose another --dir, new or empty")


def denied_hint() -> str:
    """Return what to do about a socket in the runtime directory that may not be connected to."""
    try:
        found = os.stat(paths.runtime_dir())
    except OSError:
        return "it may be another user's"
    if stat.S_IMODE(found.st_mode) == paths.SHARED_MODE:
        return f"only members of group {group_name(found.st_gid)} may use it; unset {env.RUNTIME_DIR} to use your own"
    return "it may be another user's"
