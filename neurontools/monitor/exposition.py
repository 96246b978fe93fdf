"""Prometheus's text format: samples from the text that an exporter serves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


class ExpositionError(NeuronToolsError):
    """A text is not what an exporter serves."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """Yield the samples of a text.

    Raises:
        ExpositionError: a line is neither comment nor sample.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            raise ExpositionError(f"line {number} is no Prometheus metric: {line[:60]!r}")
        name, labels, value = found.groups()
        try:
            yield Sample(name, _labels(labels or ""), float(value))
        except ValueError as error:
            raise ExpositionError(f"line {number} is no Prometheus metric: {line[:60]!r}") from error


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise ValueError(text)
        name, value = found.groups()
        labels[name] = _ESCAPE.sub(lambda one: _ESCAPES.get(one.group(1), one.group(0)), value)
        at = found.end()
    return labels
