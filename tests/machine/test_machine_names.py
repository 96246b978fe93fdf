"""Names of machines: they become names of directories."""

from __future__ import annotations

import pytest

from neurontools.errors import UsageError
from neurontools.machine.machine_names import check_name


@pytest.mark.parametrize("name", ["a", "a.b", "x-1", "_x", "9", "a-", "n" * 32])
def test_a_name_can_be_a_directory_s(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", ".", "..", "a/b", "a b", "\u00e4", "n" * 200])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)
