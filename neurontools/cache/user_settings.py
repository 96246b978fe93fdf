"""The user's settings `cache_*`, read: a value that makes no sense is told by the place where the user wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from neurontools import env
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_T = TypeVar("_T")


def parsed_setting(
    name: str, parse: Callable[[str], _T], environ: Mapping[str, str] | None = None
) -> _T | None:
    """Return the value of a setting, None where it is not set.

    Args:
        name: of its environment variable.
        parse: makes the value of the text, or raises UsageError.
        environ: instead of the process's environment.

    Raises:
        UsageError: the text makes no sense; the message begins with the variable, or with file, line and key.
    """
    text = env.setting(name, environ)
    if not text:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{env.said_by(name, environ)}: {error.message}", error.remedy) from error


def require_sound_file() -> None:
    """Refuse a settings file in which something is wrong: a rule that is left out may be one that protects.

    Raises:
        UsageError: something is.
    """
    found = env.configuration()
    if found is None or not found.problems:
        return
    first = found.problems[0]
    where = f"{found.path}:{first.line}: " if first.line else f"{found.path} "
    raise UsageError(
        f"{where}{first.message}",
        "correct the file: nothing is removed by a policy that is not understood whole",
    )
