"""What a fault is aimed at and how it behaves, as named arguments: those of `FaultSpec` beside its kind."""

from __future__ import annotations

from typing import TypedDict


class FaultAim(TypedDict, total=False):
    """The arguments of `inject`; see `FaultSpec`."""

    device: int | None
    core: int | None
    to: int | None
    pid: int | None
    tag: str | None
    after_s: float
    after_executions: int
    count: int | None
    duration_s: float | None
    factor: float
    ecc: str
    amount: int
    every_s: float | None
