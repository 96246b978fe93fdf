"""Files below a cache root are used by descriptor: `base/directories.py` opens, creates, moves and removes them.

Other users may write to a root. A path may lead through a link that one of them makes between a check and a use, so these
packages call no function that opens or changes a path, except for files that no other user can redirect.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.style.prose import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("cache", "precompile")
_CHANGING = {
    *("open", "remove", "unlink", "rename", "renames", "replace", "rmdir", "removedirs", "mkdir", "makedirs"),
    *("link", "symlink", "mkfifo", "utime", "chmod", "chown", "truncate", "setxattr"),
}
_PATH_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
_FILE_HELPERS = {
    *("write_atomic", "atomic_file", "write_temporary", "remove_quietly", "file_lock"),
}
_STAGED = "a staging directory, reached through this process's descriptor"
_PRIVATE = "this user's private directory of state or rebuildable files"
_CHOSEN = "a file that the user names"

ALLOWED = {
    "cache/copy/archive.py": _STAGED,
    "cache/copy/endpoints.py": f"{_STAGED}; regular files that are copied to it",
    "cache/copy/runner.py": _CHOSEN,
    "cache/events.py": _PRIVATE,
    "cache/extraction.py": "the log of a trial run, in its work directory",
    "cache/layouts.py": "creates the root itself",
    "cache/locks.py": "opens directories for flock, without following a link",
    "cache/pruning/policy.py": _PRIVATE,
    "cache/remote/bucket.py": _PRIVATE,
    "cache/remote/store.py": _PRIVATE,
    "cache/remote/transfer.py": f"{_PRIVATE}; {_STAGED}",
    "cache/verify.py": _PRIVATE,
    "cache/why/precedents.py": _PRIVATE,
    "precompile/trial_run.py": f"the work directory of a trial run; {_CHOSEN}",
    "precompile/worker.py": "/dev/null",
}


def uses_path(call: ast.Call) -> bool:
    """Return whether a call opens or changes something by its path."""
    if call.args and isinstance(call.args[0], ast.Constant) and str(call.args[0].value).startswith("/proc/"):
        return False
    by_descriptor = any(word.arg is not None and word.arg.endswith("dir_fd") for word in call.keywords)
    match call.func:
        case ast.Name(id=name):
            return name == "open" or name in _FILE_HELPERS
        case ast.Attribute(value=ast.Name(id="os"), attr=name):
            return name in _CHANGING and not by_descriptor
        case ast.Attribute(value=ast.Name(id="shutil"), attr=name):
            return name != "copyfileobj"
        case ast.Attribute(attr=name):
            return name in _PATH_METHODS
    return False


def files_with_paths() -> Iterator[tuple[str, int]]:
    for package in PACKAGES:
        for path in sorted((ROOT / "neurontools" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and uses_path(node):
                    yield str(path.relative_to(ROOT / "neurontools")), node.lineno


def test_files_of_a_root_are_used_by_descriptor() -> None:
    found = list(files_with_paths())
    assert [f"{name}:{line}" for name, line in found if name not in ALLOWED] == []


def test_no_exception_is_out_of_date() -> None:
    assert sorted(ALLOWED) == sorted({name for name, _ in files_with_paths()})


def test_calls_by_path_are_recognized() -> None:
    lines = ["open(p)", "os.unlink(p)", "shutil.rmtree(p)", "Path(p).write_text('')", "write_atomic(p, b'')"]
    fine = [
        "os.unlink(n, dir_fd=d)",
        "d.unlink(n)",
        "d.touch(n)",
        "os.rename(a, b, dst_dir_fd=d)",
        "os.close(d)",
    ]
    calls = [
        next(node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call))
        for line in lines + fine
    ]
    assert [uses_path(call) for call in calls] == [True] * len(lines) + [False] * len(fine)
