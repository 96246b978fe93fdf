"""Runs of pytest inside of a test."""

from __future__ import annotations

import pytest


@pytest.fixture
def suite(pytester):
    """Run pytest in a process of its own on a module: `suite(source, *arguments)`."""

    def run(source, *arguments):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", *arguments)

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
