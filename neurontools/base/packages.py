"""Which Python packages are installed."""

from __future__ import annotations


def installed_version(package: str) -> str:
    """Return the version of an installed package, "" where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
