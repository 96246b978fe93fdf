"""These tests are about how commands start: each is a new process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Tool


@pytest.fixture
def tool(installed_tool: Tool) -> Tool:
    """Run a console script as users do."""
    return installed_tool
