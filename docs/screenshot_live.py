"""Make the pictures of live profiles for the docs, from a real training that runs meanwhile.

python -m docs.screenshot_live [DIRECTORY]     (default: docs/images)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from tests.tui.svg import slim

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import torch
from torch import nn
import torch_xla.core.xla_model as xm

torch.set_num_threads(1)
device = xm.xla_device()
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
while True:
    batch = torch.randn(64, 256).to(device)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    xm.mark_step()
"""
TEXT_SIZE, SIZE = (100, 24), (120, 34)
WATCHED_S = 8
BIN = Path(sys.executable).parent


@contextmanager
def training(home: Path) -> Iterator[None]:
    """Train on a machine of its own until the end of the context."""
    os.environ |= {"NEURONTOOLS_RUNTIME_DIR": f"{home}/run", "XDG_STATE_HOME": f"{home}/state"}
    (home / "train.py").write_text(PROGRAM, encoding="utf-8")
    command = [f"{BIN}/neuron-run", "--cache", f"{home}/cache", "--", "python", "train.py"]
    run_tool("neurond", "start", "--instance", "trn1.2xlarge")
    with subprocess.Popen(command, cwd=home, stderr=subprocess.DEVNULL) as trained:
        try:
            while run_tool("neuron-profile", "live", "--once").returncode:
                pass
            yield
        finally:
            trained.kill()
            trained.wait()
            run_tool("neurond", "stop", "--force")


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours without a terminal."""
    environ = os.environ | {"COLUMNS": str(TEXT_SIZE[0])}
    return subprocess.run(
        [f"{BIN}/{command[0]}", *command[1:]], env=environ, capture_output=True, encoding="utf-8", check=False
    )


def picture_of(text: str, theme: str) -> str:
    """Return a picture of a terminal with the output of `neuron-profile live`."""
    console = Console(record=True, width=TEXT_SIZE[0], file=StringIO())
    console.print(Text(text))
    colours = SVG_EXPORT_THEME if theme == "dark" else DEFAULT_TERMINAL_THEME
    return console.export_svg(title="neuron-profile live", theme=colours, unique_id="terminal")


async def take_top(theme: str) -> str:
    """Return neuron-top's page of processes, with the live profile of the only one."""
    from neurontools.tui.top.app import TopApp
    from neurontools.tui.top.run import TopOptions, open_source_for
    from neurontools.tui.top.settings import TopSettings

    settings = TopSettings(page="processes", theme=theme)
    with closing(open_source_for(TopOptions(settings=settings)).source) as source:
        app = TopApp(source, settings=settings)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(2)
            await pilot.press("enter", "w")
            await pilot.pause(WATCHED_S)
            return slim(app.export_screenshot())


def main(directory: Path) -> None:
    """Train, take the pictures, remove everything else."""
    with tempfile.TemporaryDirectory(prefix="nt-") as home, training(Path(home)):
        text = run_tool("neuron-profile", "live", "--once").stdout
        for folder, theme in ((directory, "dark"), (directory / "light", "light")):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "neuron-profile-live.svg").write_text(picture_of(text, theme), encoding="utf-8")
            (folder / "neuron-top-live.svg").write_text(asyncio.run(take_top(theme)), encoding="utf-8")


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "images").resolve())
