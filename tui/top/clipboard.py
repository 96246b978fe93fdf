"""The clipboard inside tmux: as it is set up, tmux swallows the sequence (OSC 52) by which a program asks a terminal."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# With -w (tmux 3.2) tmux hands it on to its own terminal too; older ones keep it in their buffer.
_WAYS = (("load-buffer", "-w", "-"), ("load-buffer", "-"))


def in_tmux(environment: Mapping[str, str]) -> bool:
    """Return whether this runs inside tmux."""
    return bool(environment.get("TMUX"))


async def copy_into_tmux(text: str) -> bool:
    """Put a text into tmux's newest buffer, and on the clipboard of the terminal outside; return whether tmux took it."""
    for arguments in _WAYS:
        try:
            tmux = await asyncio.create_subprocess_exec(
                "tmux", *arguments, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL
            )
        except OSError:
            return False
        await tmux.communicate(text.encode())
        if tmux.returncode == 0:
            return True
    return False
