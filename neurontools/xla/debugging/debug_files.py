"""Files named by debugging variables, to which text is appended."""

from __future__ import annotations

from neurontools.errors import UsageError


def append_text(variable: str, path: str, text: str) -> None:
    """Append text to the file that a variable names.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({variable}): {error.strerror}",
            f"set {variable} to a file that can be written",
        ) from error
