"""What dashboards cost to leave running, in a terminal of 200x60: neuron-top and, one after the other, its peers.

Process CPU time over twenty seconds each. Peers that are not installed get a row that says so. They show something else
than neuron-top: btop and htop the CPUs and processes of this host, nvitop sixteen devices of a stub.
"""

from __future__ import annotations

import re
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.peers import nvml_stub
from benchmarks.report import BenchmarkRow, in_short_form
from benchmarks.terminal import Cost, cost, terminal
from benchmarks.wide import CORES, wide_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTLE_S, SECONDS = in_short_form((3.0, 20.0), (0.1, 0.2))
BIN = Path(sys.executable).parent

# The way of tools that redraw tables four times a second with rich.
RICH_LIVE = """
import random, time
from rich.columns import Columns
from rich.live import Live
from rich.table import Table
def tables():
    made = [Table("device", "used", "load") for _ in range(3)]
    for table in made:
        for index in range(16):
            table.add_row(f"device {index}", str(random.random()), str(random.random()))
    return Columns(made)
with Live(tables(), refresh_per_second=4, screen=True) as live:
    while True:
        time.sleep(0.25)
        live.update(tables())
"""

# The least that a program with Textual shows.
BARE_TEXTUAL = """
from textual.app import App
from textual.widgets import Label
class Bare(App):
    def compose(self):
        yield Label("bare label")
Bare().run()
"""
STARTS = in_short_form(9, 1)
_RATES = re.compile(rb"avg [1-9]")


@dataclass(frozen=True, slots=True)
class DashboardPeer:
    """A dashboard and the text that its first paint has."""

    name: str
    command: tuple[str, ...]
    shown: bytes
    note: str = ""
    needs_stub: bool = False


HOST = "shows this host's CPUs and processes, no NeuronCores"
PEERS = (
    DashboardPeer("btop at 1 s", ("btop", "--utf-force"), b"cpu", HOST),
    DashboardPeer("htop at 1 s", ("htop", "-d", "10"), b"Load average", HOST),
    DashboardPeer(
        "nvitop at 1 s", ("nvitop", "--interval", "1"), b"NVITOP", "16 devices of an NVML stub", True
    ),
)


def main(seconds: float = SECONDS) -> list[BenchmarkRow]:
    """Measure and return the rows."""
    with nvml_stub() as library_dir, wide_machine(busy=True) as environ:
        _set_btop(environ)
        starts = _starts(environ)
        every_second = cost(_neuron_top("1"), environ, b"neuron-top", seconds, SETTLE_S)
        ten_a_second = cost(_neuron_top("0.1"), environ, b"neuron-top", seconds, SETTLE_S)
        peers = [row for peer in PEERS for row in _peer(peer, environ, library_dir, seconds)]
        live = cost((sys.executable, "-c", RICH_LIVE), environ, b"device 15", seconds, SETTLE_S)
    with wide_machine(busy=False) as environ:
        idle = cost(_neuron_top("1"), environ, b"neuron-top", seconds, SETTLE_S)
    what, rich = f"neuron-top, {CORES} changing cores", "rich Live"
    note = f"of one CPU, over {seconds:.0f} s; {every_second.written_bytes_s / 1024:.0f} KiB/s written"
    still, bare = f"neuron-top, {CORES} idle cores, 1 Hz", "Textual app with one label"
    medians = f"medians of {STARTS} starts in turn, modules compiled"
    return [
        BenchmarkRow.at_most(
            f"{what}, 1 Hz, CPU / {rich}", every_second.cpu_share / live.cpu_share, "x", 0.17, note
        ),
        BenchmarkRow.at_most(
            f"{what}, 10 Hz, CPU / {rich}", ten_a_second.cpu_share / live.cpu_share, "x", 1.15
        ),
        BenchmarkRow.at_most(f"{still}, CPU / {rich}", idle.cpu_share / live.cpu_share, "x", 0.035),
        BenchmarkRow.at_most(
            f"{what}, first frame / {bare}", starts.frame_s / starts.bare_s, "x", 0.75, medians
        ),
        BenchmarkRow.at_most(
            f"{what}, first rates / {bare}", starts.rates_s / starts.bare_s, "x", 2.2, medians
        ),
        BenchmarkRow.at_most(f"{what}, memory (PSS)", every_second.memory_mib, "MiB", 45),
        BenchmarkRow.info(f"{what}, 1 Hz, CPU", 100 * every_second.cpu_share, "%"),
        BenchmarkRow.info(f"{what}, 10 Hz, CPU", 100 * ten_a_second.cpu_share, "%"),
        BenchmarkRow.info(f"{what}, first frame", 1e3 * starts.frame_s, "ms", "with values; from its start"),
        BenchmarkRow.info(f"{what}, first rates", 1e3 * starts.rates_s, "ms", "between two snapshots"),
        BenchmarkRow.info(f"{bare}, first paint", 1e3 * starts.bare_s, "ms"),
        *peers,
        *_info("rich Live, 3 tables of 16 rows, 4 Hz", live, ""),
        BenchmarkRow.info(f"{still}, CPU", 100 * idle.cpu_share, "%"),
    ]


def _neuron_top(interval_s: str) -> tuple[str, ...]:
    return (str(BIN / "neuron-top"), "--interval", interval_s)


class Starts(NamedTuple):
    """Medians of the seconds from a start to a frame with the devices, to one with rates, and to a bare app's label."""

    frame_s: float
    rates_s: float
    bare_s: float


def _starts(environ: Mapping[str, str]) -> Starts:
    found: list[tuple[float, float, float]] = []
    for _ in range(STARTS + 1):
        with terminal(_neuron_top("1"), environ) as started:
            frame_s = started.first_paint_s(b"ND15")
            rates_s = started.first_match_s(_RATES)
        with terminal((sys.executable, "-c", BARE_TEXTUAL), environ) as bare:
            found.append((frame_s, rates_s, bare.first_paint_s(b"bare label")))
    # The first start of each compiles its modules, as an installer does.
    return Starts(*map(statistics.median, zip(*found[1:], strict=True)))


def _set_btop(environ: Mapping[str, str]) -> None:
    # It takes its interval from its configuration alone; two seconds where nothing is said.
    folder = Path(environ["XDG_CONFIG_HOME"], "btop")
    folder.mkdir(parents=True)
    (folder / "btop.conf").write_text("update_ms = 1000\n", encoding="utf-8")


def _peer(
    peer: DashboardPeer, environ: Mapping[str, str], library_dir: str | None, seconds: float
) -> list[BenchmarkRow]:
    path = shutil.which(peer.command[0], path=f"{BIN}:{environ['PATH']}")
    if path is None:
        return [BenchmarkRow.missing(peer.name, "not installed")]
    if peer.needs_stub and library_dir is None:
        return [BenchmarkRow.missing(peer.name, "no C compiler for the stub")]
    stubbed = {"LD_LIBRARY_PATH": library_dir} if peer.needs_stub and library_dir else {}
    try:
        measured = cost((path, *peer.command[1:]), {**environ, **stubbed}, peer.shown, seconds, SETTLE_S)
    except RuntimeError as error:
        return [BenchmarkRow.missing(peer.name, str(error)[:80])]
    return _info(peer.name, measured, peer.note)


def _info(name: str, measured: Cost, note: str) -> list[BenchmarkRow]:
    facts = f"first paint {1e3 * measured.first_paint_s:.0f} ms, {measured.memory_mib:.0f} MiB"
    written = f"{measured.written_bytes_s / 1024:.0f} KiB/s written"
    return [
        BenchmarkRow.info(
            f"{name}, CPU", 100 * measured.cpu_share, "%", ", ".join(filter(None, (facts, written, note)))
        )
    ]


if __name__ == "__main__":
    for row in main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS):
        print(row)
