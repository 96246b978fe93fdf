"""Make the pictures of neuron-top for the docs: the real app, a real daemon, processes of scenarios on a private machine.

python docs/screenshots.py [DIRECTORY]     (default: docs/images)
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MACHINE = "docs"


@dataclass(frozen=True)
class Picture:
    """A picture: its file's name, page, size in cells, theme, keys that are pressed before it is taken.

    What the keys of one picture open is still open on that page for the next.
    """

    name: str
    page: str
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    theme: str = "dark"


@dataclass(frozen=True)
class Play:
    """A scenario, its speed, for how many seconds it is watched, and how many processes there must be at least."""

    scenario: str
    speed: int
    seconds: float
    processes: int
    pictures: tuple[Picture, ...]


PLAYS = (
    Play(
        "mixed-tenants",
        12,
        50.0,
        12,
        (
            Picture("neuron-top", "overview", (120, 40), ("down", "enter", "down", "enter", "down")),
            Picture("neuron-top-flops", "overview", (100, 30), ("2", "f")),
            Picture("neuron-top-history", "history", (140, 36), ("down", "enter", "down")),
            Picture(
                "neuron-top-latency", "history", (140, 36), ("U", "end", "enter", "down", "down", "down")
            ),
            Picture("neuron-top-processes", "processes", (160, 46), ("I", "enter")),
            Picture("neuron-top-devices", "devices", (100, 24)),
            Picture("neuron-top-light", "devices", (100, 24), (), "light"),
            Picture("neuron-top-colorblind", "devices", (100, 24), (), "colorblind"),
            Picture("neuron-top-help", "processes", (120, 44), ("question_mark",)),
        ),
    ),
    Play(
        "ecc-storm",
        12,
        38.0,
        24,
        (
            Picture("neuron-top-links", "devices", (100, 24), ("t", *["down"] * 5)),
            Picture("neuron-top-device", "devices", (100, 32), ("t", "enter")),
            Picture("neuron-top-events", "events", (120, 30)),
        ),
    ),
)


SEVERAL = {"pretrain": "training-32", "ranker": "inference-fleet", "staging": "idle"}
"""Machines that are shown together, and what each of them plays."""


@contextmanager
def playing(scenario: str, speed: int, machine: str = MACHINE) -> Iterator[None]:
    """Play a scenario on a machine of its own, which ends with it."""
    command = [str(Path(sys.executable).parent / "neurontools"), "scenario", "play", scenario]
    command += ["--machine", machine, "--speed", str(speed)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)


async def take(play: Play, directory: Path) -> None:
    """Watch for a while in one app, then turn to each page, press keys and save what it shows."""
    from neurontools.machine import launch
    from neurontools.tui.top.app import TopApp
    from neurontools.tui.top.source import FollowedSource
    from neurontools.tui.widgets.theme import THEMES

    until = time.monotonic() + 30
    while MACHINE not in {info.machine for info in launch.list_machines()}:
        if time.monotonic() > until:
            raise SystemExit(f"{play.scenario} does not start")
        await asyncio.sleep(0.1)
    app = TopApp(FollowedSource("sim", 1.0, MACHINE))
    async with app.run_test(size=(120, 40)) as pilot:
        while len(app.model.tabs) <= play.processes or app.model.view is None:
            await pilot.pause(0.2)
        await pilot.pause(play.seconds)
        for picture in play.pictures:
            await pilot.resize_terminal(*picture.size)
            app.apply_theme(THEMES[picture.theme])
            app.turn_to(next(page for page in app.pages if page.name == picture.page))
            await pilot.press(*picture.keys)
            await pilot.pause()
            app.save_screenshot(f"{picture.name}.svg", str(directory))


async def take_several(directory: Path) -> None:
    """Look at several machines at once, and save the list."""
    from neurontools.tui.top.app import TopApp
    from neurontools.tui.top.source import SeveralSource, places_of

    source = SeveralSource(places_of(list(SEVERAL), []), 1.0)
    names = zip(SEVERAL, source.source_names, strict=True)
    app = TopApp(source, machines=tuple(names))
    async with app.run_test(size=(120, 18)) as pilot:
        while not all(one.model.rates for one in app.machines) or len(app.machines[0].model.tabs) < 33:
            await pilot.pause(0.2)
        await pilot.pause(20.0)
        app.save_screenshot("neuron-top-machines.svg", str(directory))


def main(directory: Path) -> None:
    """Play the scenarios one after the other and take the pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    for play in PLAYS:
        with playing(play.scenario, play.speed):
            asyncio.run(take(play, directory))
    with ExitStack() as plays:
        for machine, scenario in SEVERAL.items():
            plays.enter_context(playing(scenario, 4, machine))
        asyncio.run(take_several(directory))


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory(prefix="nt-docs-") as private:
        os.environ["NEURONTOOLS_RUNTIME_DIR"] = f"{private}/run"
        os.environ["NEURONTOOLS_MACHINE"] = MACHINE
        os.environ["XDG_CONFIG_HOME"] = f"{private}/config"
        main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "images"))
