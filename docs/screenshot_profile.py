"""Make the picture of the profile viewer for the docs, from a real capture of the demo's training.

python docs/screenshot_profile.py [DIRECTORY]     (default: docs/images)
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

ZOOM = ("down", "down", "down", "down", "tab", *["w"] * 12)


async def take(capture: Path, path: Path) -> None:
    """Open a capture, zoom in on the first executions and save what the viewer shows."""
    from neurontools.profiler.trace import load
    from neurontools.tui.profile.app import ProfileApp

    app = ProfileApp(load(str(capture)))
    async with app.run_test(size=(120, 20)) as pilot:
        await pilot.pause(1)
        await pilot.press(*ZOOM)
        await pilot.pause(1)
        app.save_screenshot(path.name, str(path.parent))


def main(directory: Path) -> None:
    """Run the demo, take the picture, remove what the demo kept."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).parent / "neurontools"), "demo", "--epochs", "2", "--keep"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept = Path(next(line for line in done.stdout.splitlines() if line.startswith("kept: "))[6:])
    try:
        asyncio.run(take(kept / "work" / "prof", directory / "neuron-profile.svg"))
    finally:
        shutil.rmtree(kept)


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
