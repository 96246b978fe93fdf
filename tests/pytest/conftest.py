"""Runs of pytest inside of a test."""

from __future__ import annotations

import pytest

# Plugins of others that no test here needs: loading them takes longer than everything else.
UNUSED = ("textual-snapshot", "syrupy", "asyncio", "hypothesispytest")


@pytest.fixture
def suite(pytester):
    """Run pytest in a process of its own on a module: `suite(source, *arguments)`."""

    def run(source, *arguments):
        pytester.makepyfile(source)
        without = [word for name in ("cacheprovider", *UNUSED) for word in ("-p", f"no:{name}")]
        return pytester.runpytest_subprocess(*without, "--strict-markers", *arguments)

    return run


@pytest.fixture
def leftovers(pytester):
    """Return the files, sockets and the like in the temporary directories of a run."""

    def look():
        folders = [*pytester.path.glob("runpytest-*")]
        assert folders
        found = [path for folder in folders for path in folder.rglob("*") if not path.is_dir()]
        return [str(path) for path in found if not path.is_symlink()]

    return look
