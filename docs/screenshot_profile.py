"""Make the pictures of the profile viewer for the docs, of the demo's training and of the kernel product_kernel.py.

python -m docs.screenshot_profile [DIRECTORY]     (default: docs/images)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.profiler.trace.open import load
from tests.tui.profile.made_runs import make_runs
from tests.tui.svg import slim

if TYPE_CHECKING:
    from neurontools.profiler.trace.trace import Trace

SIZE = (120, 34)
PAGES = (
    ("", ("j", "tab", "tab", "tab")),
    ("-critical-path", ("p",)),
    ("-overview", ("p", "f1")),
    ("-operators", ("f3",)),
    ("-tree", ("f4",)),
    ("-roofline", ("f5",)),
    ("-memory", ("f6",)),
    ("-source", ("f8",)),
)
KERNEL = Path(__file__).parent / "product_kernel.py"
SHAPES = ("stationary=1024x512:bf16", "moving=1024x2048:bf16")
KERNEL_PAGES = (
    ("-kernel", ("j", "tab", "tab", "tab")),
    ("-kernel-memory", ("f6",)),
)
PID = 4242


async def take(
    trace: Trace, theme: str, pages: tuple[tuple[str, tuple[str, ...]], ...] = PAGES
) -> dict[str, str]:
    """Return what the viewer shows at first, with an event selected, then its other pages."""
    from neurontools.tui.profile.app import ProfileApp

    pictures = {}
    app = ProfileApp(trace, theme=theme)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(1)
        await app.workers.wait_for_complete()
        for name, keys in pages:
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            await pilot.pause(1)
            pictures[f"neuron-profile{name}.svg"] = slim(app.export_screenshot())
    return pictures


async def take_compared(theme: str) -> dict[str, str]:
    """Return the pages that need several workers or two runs, of made-up ones in the working directory."""
    from neurontools.tui.profile.app import ProfileApp

    before, after = map(load, make_runs(Path()))
    pictures = {}
    app = ProfileApp(before, after, theme=theme)
    async with app.run_test(size=SIZE) as pilot:
        for name, key in (("compare", "f9"), ("ranks", "f7")):
            await pilot.press(key)
            await pilot.pause(1)
            pictures[f"neuron-profile-{name}.svg"] = slim(app.export_screenshot())
    return pictures


def take_kernel(theme: str) -> dict[str, str]:
    """Return the timeline, the memory and the source of a kernel."""
    shapes = [argument for shape in SHAPES for argument in ("--shape", shape)]
    program = str(Path(sys.executable).parent / "neuron-profile")
    with contextlib.chdir(KERNEL.parent), tempfile.TemporaryDirectory() as profile:
        command = [
            program,
            "kernel",
            f"{KERNEL.name}::product",
            *shapes,
            "--target",
            "trn2",
            "--output",
            profile,
        ]
        subprocess.run(command, capture_output=True, check=True)
        return asyncio.run(take(neutral(load(profile), KERNEL.parent), theme, KERNEL_PAGES))


def neutral(trace: Trace, folder: Path) -> Trace:
    """Return a trace that does not show where it was made: with paths from a folder on, and always the same pid."""
    actions = (
        action.__replace__(source=action.source.removeprefix(f"{folder}{os.sep}")) for action in trace.actions
    )
    return replace(
        trace,
        actions=tuple(actions),
        processes=tuple(replace(meta, pid=PID) for meta in trace.processes),
        rows=tuple(replace(row, pid=PID) for row in trace.rows),
    )


def main(directory: Path) -> None:
    """Run the demo, take the pictures, remove what the demo kept."""
    directory = directory.absolute()
    command = [str(Path(sys.executable).parent / "neurontools"), "demo", "--epochs", "2", "--keep"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    kept = Path(next(line for line in done.stdout.splitlines() if line.startswith("kept: "))[6:])
    work = kept / "work"
    try:
        with contextlib.chdir(work):
            trace = neutral(load("prof"), work)
            for folder, theme in ((directory, "dark"), (directory / "light", "light")):
                folder.mkdir(parents=True, exist_ok=True)
                pictures = asyncio.run(take(trace, theme))
                with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):
                    pictures |= asyncio.run(take_compared(theme))
                if theme == "dark":
                    pictures |= take_kernel(theme)
                for name, picture in pictures.items():
                    (folder / name).write_text(picture, encoding="utf-8")
    finally:
        shutil.rmtree(kept)


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
