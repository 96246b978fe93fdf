"""Shares the machine of the lazy device's tests."""

from tests.xla.conftest import machine

__all__ = ["machine"]
