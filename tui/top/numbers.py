"""Number formats of neuron-top (AWS Neuron documentation, neuron-top user guide)."""

from __future__ import annotations

_UNITS = ("B", "KB", "MB", "GB", "TB")
_TERA = 1e12


def size(count: int) -> str:
    """Format bytes: `0.0B`, `256.0KB`, `17.5GB` (1024 based, one decimal)."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if round(value, 1) < 1024:
            return f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}{_UNITS[-1]}"


def percent(share: float) -> str:
    """Format a share (0..1): `56.81%`, ` 0.72%`, `100.00%`."""
    return f"{share * 100:5.2f}%"


def bracketed_percent(share: float) -> str:
    """Format the utilization of a core: `[56.81%]`."""
    return f"[{share * 100:5.2f}%]"


def bracketed_cpu(user: float, system: float) -> str:
    """Format user and system CPU use: `[ 0.72%, 9.13%]`."""
    return f"[{user * 100:5.2f}%,{system * 100:5.2f}%]"


def teraflops(flops_s: float) -> str:
    """Format FLOPs a second: `   9.946TF`."""
    return f"{flops_s / _TERA:8.3f}TF"


def bracketed_teraflops(flops_s: float) -> str:
    """Format the FLOPs a second of a core: `[  10.004TF]`."""
    return f"[{flops_s / _TERA:8.3f}TF]"


def short_percent(share: float) -> str:
    """Format a share in four cells for narrow terminals: ` 57%`."""
    return f"{share * 100:3.0f}%"


def short_rate(count_s: float) -> str:
    """Format something a second in at most six cells: `0.0`, `999.9`, `123456`, `1.2M`."""
    if count_s >= 999_999.5:
        return f"{count_s / 1e6:.1f}M"
    return f"{count_s:.1f}" if count_s < 9999.95 else f"{count_s:.0f}"


def short_latency(seconds: float) -> str:
    """Format a latency in at most six cells: `850us`, `12.3ms`, `290ms`, `1.20s`, `125s`."""
    for limit, scale, digits, unit in (
        (999.5e-6, 1e6, 0, "us"),
        (99.95e-3, 1e3, 1, "ms"),
        (999.5e-3, 1e3, 0, "ms"),
        (99.995, 1, 2, "s"),
    ):
        if seconds < limit:
            return f"{seconds * scale:.{digits}f}{unit}"
    return f"{seconds:.0f}s"


def short_teraflops(flops_s: float) -> str:
    """Format FLOPs a second in six cells for narrow terminals: ` 10.0T`."""
    return f"{flops_s / _TERA:5.1f}T"


def device_label(index: int) -> str:
    """Format a device in the memory tree: `ND 0`, `ND10`."""
    return f"ND{index:2d}"


def core_label(index: int) -> str:
    """Format a core in the memory tree: `NC 0`."""
    return f"NC{index:2d}"
