"""The one optional dependency of profiles."""

from __future__ import annotations

from typing import Any

from neurontools.errors import MissingDependencyError


def numpy() -> Any:
    """Return the numpy module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise MissingDependencyError(
            "profiles need numpy, which is not installed", "pip install 'neurontools[profile]'"
        ) from error
    return np
