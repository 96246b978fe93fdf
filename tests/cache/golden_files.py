"""Whole results of commands, kept in golden/."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def compare(name: str, text: str) -> None:
    assert text == (GOLDEN / f"{name}.txt").read_text()
