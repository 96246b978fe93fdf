"""Times, bytes and shares as a person reads them."""

from __future__ import annotations


def duration(nanoseconds: float) -> str:
    """Return `52.433 ms`, `1.250 us` or `17 ns`."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3f} {unit}"
    return f"{nanoseconds:.0f} ns"


def amount(nbytes: float) -> str:
    """Return `64 bytes`, `4 KiB` or `1.5 MiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.0f} byte{'' if nbytes == 1 else 's'}"


def percent(share: float) -> str:
    """Return `94 %`; what is neither nothing nor all does not look so."""
    if 0 < share < 0.01:
        return "less than 1 %"
    if 0.99 < share < 1:
        return "over 99 %"
    return f"{share * 100:.0f} %"


def percents(shares: list[float]) -> list[str]:
    """Return shares that add up to 1 as tenths of a per cent that add up to 100.0: the largest rests are rounded up."""
    tenths = [int(share * 1000) for share in shares]
    missing = 1000 - sum(tenths) if shares else 0
    order = sorted(range(len(shares)), key=lambda index: tenths[index] - shares[index] * 1000)
    for index in order[: max(0, missing)]:
        tenths[index] += 1
    return [f"{value / 10:.1f} %" for value in tenths]
