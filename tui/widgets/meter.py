"""Bars of `|`: a share of something, drawn as spans."""

from __future__ import annotations

from functools import lru_cache

from neurontools.tui.widgets.lines import Role, Span

PLAIN_PART = ":"
PLAIN_OFF = "."
_PLAIN = (Role.METER_ON, Role.METER_PART, Role.METER_OFF)
_MARKED = (Role.MARKED_ON, Role.MARKED_PART, Role.MARKED_OFF)


def meter(share: float, width: int, *, colour: bool, marked: bool = False) -> tuple[Span, ...]:
    """Draw a share (0..1): whole steps, then a darker one for a step that has begun, then the rest.

    Without colour the three are told apart by their characters.
    """
    steps = (round(share, 4) if 0.0 < share < 1.0 else 1.0 if share >= 1.0 else 0.0) * width
    whole = int(steps + 1e-9)
    begun = 1 if whole < width and steps - whole > 1e-9 else 0
    return _drawn(whole, begun, width - whole - begun, colour, marked)


@lru_cache(maxsize=4096)
def _drawn(whole: int, begun: int, rest: int, colour: bool, marked: bool) -> tuple[Span, ...]:
    on, part, off = _MARKED if marked else _PLAIN
    return tuple(
        span
        for span in (
            ("|" * whole, on),
            (("|" if colour else PLAIN_PART) * begun, part),
            (("|" if colour else PLAIN_OFF) * rest, off),
        )
        if span[0]
    )


def stacked_meter(user: float, system: float, width: int, *, colour: bool) -> tuple[Span, ...]:
    """Draw two shares one after the other (user time, then system time) and the rest."""
    user_steps = min(width, round(max(0.0, user) * width))
    system_steps = min(width - user_steps, round(max(0.0, system) * width))
    rest = width - user_steps - system_steps
    return tuple(
        span
        for span in (
            ("|" * user_steps, Role.METER_ON),
            (("|" if colour else "#") * system_steps, Role.METER_SYSTEM),
            (("|" if colour else PLAIN_OFF) * rest, Role.METER_OFF),
        )
        if span[0]
    )
