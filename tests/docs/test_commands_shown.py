"""Every command that README and the pages show is one that there is: its verb, each of its options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands.shown import PROGRAMS, commands_in, wrong_words

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
NAMES = "|".join(sorted(map(re.escape, {*PROGRAMS, "neurontools"}), key=len, reverse=True))
BEGINS = re.compile(rf"(?:\$ )?(?:[A-Z_]+=\S* )*(?:{NAMES})(?: |$)")


def shown_lines(page: str) -> list[str]:
    """Return what a page shows as a command of ours: in its blocks, where lines may go on, and within sentences."""
    lines = []
    fence = r"^```(?:sh|console|bash)?\n(.*?)^```"
    for block in re.findall(fence, page, re.MULTILINE | re.DOTALL):
        joined = re.sub(r"\\\n *|\n {8,}(?=[\[(])", " ", block)
        lines += [line for line in joined.splitlines() if BEGINS.match(line)]
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return lines + [code for code in re.findall(r"`([^`\n]+)`", prose) if BEGINS.match(code)]


def words_of(line: str) -> list[list[str]]:
    """Return the commands of a line without its prompt, brackets, and what it says the command is for."""
    command = re.split(r" {3,}| {2,}(?=#)", line.removeprefix("$ "))[0]
    found = commands_in(re.sub(r"[\[\],]|\.\.\.|…", " ", command))
    return [
        words for words in found if words != ["neurontools", "simulated", "compiler"]
    ]  # of NEFFs, no command


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_page_shows_is_there(page):
    wrong = {
        line: words
        for line in shown_lines(page.read_text())
        for shown in words_of(line)
        if (words := wrong_words(shown))
    }
    assert wrong == {}


def test_commands_are_found():
    text = (
        "```\n$ neuron-cache ls --jsn | head   for you\nneuron-ls\n```\nSee `neurond strt` and `other --x`."
    )
    assert shown_lines(text) == ["$ neuron-cache ls --jsn | head   for you", "neuron-ls", "neurond strt"]
    assert [wrong_words(words) for line in shown_lines(text) for words in words_of(line)] == [
        ["--jsn"],
        [],
        ["strt"],
    ]
    assert sum(len(shown_lines(page.read_text())) for page in PAGES) > 280
