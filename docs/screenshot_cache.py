"""Make the pictures of the cache browser for the docs, from a cache that real runs have filled.

python -m docs.screenshot_cache [DIRECTORY]     (default: docs/images)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tui.svg import slim

PROGRAM = """
import sys, torch, torch_xla.core.xla_model as xm
device, width = xm.xla_device(), int(sys.argv[1])
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(width // 32)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in (32, 32, 17):
    optimizer.zero_grad()
    model(torch.randn(rows, width).to(device)).sum().backward()
    optimizer.step()
    xm.mark_step()
if width == 128:
    torch.complex(*[torch.ones(4).to(device)] * 2)
    xm.mark_step()
"""


async def take(root: str, theme: str) -> str:
    """Browse a root, mark some entries and return the screen."""
    from neurontools.tui.cache.app import CacheApp
    from neurontools.tui.cache.browser import Browser

    app = CacheApp(Browser(root), theme=theme)
    async with app.run_test(size=(160, 42)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.press("down", "down", "space", "space", "down", "down")
        await pilot.pause(1)
        return slim(app.export_screenshot())


def main(directory: Path) -> None:
    """Fill a cache, take the pictures, remove the cache."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nt-") as home:
        os.environ |= {"NEURONTOOLS_RUNTIME_DIR": f"{home}/run", "XDG_STATE_HOME": f"{home}/state"}
        script = Path(home, "train.py")
        script.write_text(PROGRAM, encoding="utf-8")
        run = str(Path(sys.executable).parent / "neuron-run")
        for width in (64, 128, 256, 320):
            command = [
                run,
                "--cache-dir",
                f"{home}/cache",
                "--instance",
                "trn1.2xlarge",
                "--",
                "python",
                str(script),
            ]
            subprocess.run([*command, str(width)], stderr=subprocess.DEVNULL, check=False)
        os.chdir(home)
        for folder, theme in ((directory, "dark"), (directory / "light", "light")):
            folder.mkdir(exist_ok=True)
            (folder / "neuron-cache-tui.svg").write_text(asyncio.run(take("cache", theme)), encoding="utf-8")


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "images").resolve())
