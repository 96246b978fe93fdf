"""Profiles: capture, tables, queries, exports."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from neurontools.profiler.query.api import OpenProfile

__all__ = ["open"]


def open(path: str | os.PathLike[str], session: int | None = None) -> OpenProfile:  # noqa: A001 # as in gzip and wave
    """Open a profile: `neurontools.profiler.open("prof").operators("layer")`.

    Args:
        path: directory of the profile.
        session: which run, from 1 for the oldest; None for the newest.

    Raises:
        ProfileError: it is not a profile, or has fewer runs.
        MissingDependencyError: a package is not installed.
    """
    from neurontools.profiler.query.api import open_profile

    return open_profile(path, session)
