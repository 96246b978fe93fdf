"""Terminals that have no braille and no blocks get ASCII, in as many cells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from neurontools.tui.widgets.bars import blocks
from neurontools.tui.widgets.charts import braille
from neurontools.tui.widgets.lines import ascii_only

if TYPE_CHECKING:
    from collections.abc import Callable

SHARES = [None, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0]


def test_curves_keep_their_heights() -> None:
    assert ascii_only(blocks(SHARES)) == " ..:+###"
    assert ascii_only(braille(SHARES)) == ".:+#"


@given(st.text(alphabet="a é日\u0301█⣿⠀▌…║🔎", max_size=20))
def test_nothing_but_ascii_in_as_many_cells(text: str) -> None:
    plain = ascii_only(text)
    assert plain.isascii()
    assert len(plain) == sum(map(cell_len, text))


@pytest.mark.parametrize("options", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C"}, {}])
def test_where_there_is_no_utf8_or_it_is_requested(
    terminal: Callable[..., Any], options: dict[str, str]
) -> None:
    if not options:
        folder = Path(os.environ["XDG_CONFIG_HOME"]) / "neurontools"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("top: {ascii: true, page: history}\n")
    shown = terminal("--page", "history", **options)
    shown.read_until("0.0%")
    shown.quit()
    assert shown.output.isascii()


def test_one_page_as_ascii(tool: Callable[..., Any], machine: object) -> None:
    found = tool("neuron-top", "--once", "--ascii", "--page", "history", "--interval", "0.2")
    assert found.returncode == 0
    assert found.stdout.isascii()
    assert "all cores" in found.stdout
