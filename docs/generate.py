"""Write the pages that are made from code: `python docs/generate.py`."""

from __future__ import annotations

from pathlib import Path

from neurontools import env


def environment_page() -> str:
    """Return docs/environment.md."""
    rows = [
        f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |"
        for name, default, meaning in env.DOCUMENTED
    ]
    return "\n".join(
        [
            "# Environment variables of our own",
            "",
            "Made by `python docs/generate.py` from `neurontools/env.py`. The real tools' variables (`NEURON_RT_*`,",
            "`NEURON_CC_FLAGS`, `NEURON_COMPILE_CACHE_URL`, ...) mean what they mean there; each tool's page names those",
            "that it honours.",
            "",
            "| variable | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    Path(__file__).with_name("environment.md").write_text(environment_page())
