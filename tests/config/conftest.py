"""The user's config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from neurontools import env


@pytest.fixture
def config():
    """Write the settings file; this process looks at it anew."""

    def write(text):
        path = Path(env.config_file())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        env._configurations.clear()
        return path

    yield write
    env._configurations.clear()
