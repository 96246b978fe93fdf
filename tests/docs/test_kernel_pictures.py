"""The pictures of a kernel's profile in docs/how-to/kernels.md."""

from __future__ import annotations

from pathlib import Path

from docs.screenshot_profile import take_kernel

ROOT = Path(__file__).parents[2]


def test_the_pictures_of_the_page_are_those_that_the_viewer_draws_now(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    pictures = take_kernel("dark")
    page = (ROOT / "docs" / "how-to" / "kernels.md").read_text()
    for name, words in (
        ("neuron-profile-kernel.svg", ("MATMUL", "product_kernel.py:20", "DMA_DIRECT2D")),
        ("neuron-profile-kernel-memory.svg", ("SBUF", "PSUM", "banks")),
    ):
        committed = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert f"(../images/{name})" in page
        assert [word for word in words if word not in pictures[name] or word not in committed] == []
