"""Make the pictures of the profile viewer for the docs, from a real capture of the demo's training.

python -m docs.screenshot_profile [DIRECTORY]     (default: docs/images)
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tui.svg import slim

PAGES = (
    ("", ("down", "tab", "tab", "tab")),
    ("-overview", ("f1",)),
    ("-operators", ("f3",)),
    ("-tree", ("f4",)),
    ("-roofline", ("f5",)),
    ("-memory", ("f6",)),
    ("-source", ("f8",)),
)


async def take(capture: Path, theme: str) -> dict[str, str]:
    """Open a capture and return what the viewer shows at first, with an event selected, then its other pages."""
    from neurontools.profiler.trace.load import load
    from neurontools.tui.profile.app import ProfileApp

    pictures = {}
    app = ProfileApp(load(str(capture)), theme=theme)
    async with app.run_test(size=(120, 34)) as pilot:
        await pilot.pause(1)
        await app.workers.wait_for_complete()
        for name, keys in PAGES:
            await pilot.press(*keys)
            await pilot.pause(1)
            pictures[f"neuron-profile{name}.svg"] = slim(app.export_screenshot())
    return pictures


def main(directory: Path) -> None:
    """Run the demo, take the pictures, remove what the demo kept."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).parent / "neurontools"), "demo", "--epochs", "2", "--keep"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept = Path(next(line for line in done.stdout.splitlines() if line.startswith("kept: "))[6:])
    try:
        for folder, theme in ((directory, "dark"), (directory / "light", "light")):
            folder.mkdir(exist_ok=True)
            for name, picture in asyncio.run(take(kept / "work" / "prof", theme)).items():
                (folder / name).write_text(picture)
    finally:
        shutil.rmtree(kept)


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
