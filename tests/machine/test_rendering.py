"""What the daemon answers when it cannot render."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.daemon import rpc
from neurontools.machine.processes import Peer

if TYPE_CHECKING:
    import pytest


def test_a_daemon_whose_modules_were_moved_by_an_upgrade_says_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(rpc._RENDERERS, "neuron-ls", "neurontools.machine.no_longer_there")
    answer = rpc.render_answer(None, b"neuron-ls\x002.32", Peer(1, 0))  # type: ignore[arg-type]
    head, _, text = answer.partition(b"\n")
    assert head == b"4 0 %d" % len(text)
    assert (
        text == b"error: neurond is older than the installed neurontools\nhint: restart it: neurond restart\n"
    )
