"""Help, messages, docstrings, comments and pages are plain English: the words of `prose.BANNED` are not in them."""

from __future__ import annotations

from tests.style.prose import ROOT, find_banned, modules, page_text, python_texts


def test_python_texts_are_plain_english():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in modules()
        for line, text in python_texts(path)
        for words in find_banned(text)
    ]
    assert found == []


def test_pages_are_plain_english():
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    found = [f"{page.relative_to(ROOT)}: {words}" for page in pages for words in find_banned(page_text(page))]
    assert found == []
