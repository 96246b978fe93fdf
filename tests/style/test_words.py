"""Help, messages, docstrings, comments and pages are plain English: the words of `prose.BANNED` are not in them."""

from __future__ import annotations

from tests.style.prose import ROOT, find_banned, modules, page_text, python_texts

PENDING: tuple[str, ...] = (
    "commands/completion_values.py",
    "commands/console.py",
    "commands/customop.py",
    "commands/monitor.py",
    "commands/nccom_flags.py",
    "commands/nccom_test.py",
    "commands/profile.py",
    "neurontools/__init__.py",
    "neurontools/collectives/",
    "neurontools/compiler/",
    "neurontools/customop/",
    "neurontools/dashboard/",
    "neurontools/machine/",
    "neurontools/monitor/",
    "neurontools/precompile/",
    "neurontools/profiler/",
    "neurontools/runtime/",
    "neurontools/sources/",
    "neurontools/sysfs/",
    "neurontools/xla/",
    "tui/cache/lines.py",
    "tui/names.py",
    "tui/profile/timeline.py",
    "tui/top/app.py",
    "tui/top/help.py",
    "tui/top/machines/bar.py",
    "tui/top/machines/source.py",
    "tui/top/page.py",
    "tui/top/pages/events.py",
    "tui/top/pages/processes.py",
    "tui/top/pages/rows.py",
    "tui/top/palette.py",
    "tui/top/playback.py",
    "tui/top/screen.py",
    "tui/top/source.py",
    "tui/widgets/background.py",
    "tui/widgets/line_pane.py",
    "tui/widgets/terminal_driver.py",
    "tui/widgets/theme.py",
)
"""Beginnings of the paths that are still to be cleaned; nothing is added here."""


def test_python_texts_are_plain_english():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in modules()
        if not str(path.relative_to(ROOT)).startswith(PENDING)
        for line, text in python_texts(path)
        for words in find_banned(text)
    ]
    assert found == []


def test_pages_are_plain_english():
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    found = [
        f"{page.relative_to(ROOT)}: {words}"
        for page in pages
        if not str(page.relative_to(ROOT)).startswith(PENDING)
        for words in find_banned(page_text(page))
    ]
    assert found == []
