"""The help of every command and verb fits 80 columns, has examples that can be copied, and says its exit codes."""

from __future__ import annotations

import argparse

import pytest

from neurontools.commands import parsing
from neurontools.commands.help_text import complete_help
from neurontools.commands.neurontools import COMMANDS
from tests.commands.shown import commands_in, parser_of, wrong_words

WITHOUT_EXAMPLE: set[str] = set()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_fits_eighty_columns_and_says_the_exit_codes_once(command):
    for parser in parsing.family(parser_of(command)):
        shown = parser.format_help()
        assert [line for line in shown.splitlines() if len(line) > 80] == [], parser.prog
    assert "exit code" in " ".join(parser_of(command).format_help().split()).lower()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_examples_are_commands_that_there_are(command):
    for parser in parsing.family(parser_of(command), hidden=False):
        examples = parser.format_help().partition("\nexamples:\n")[2].partition("\n\n")[0]
        lines = examples.replace("\\\n", " ").splitlines()
        assert bool(lines) != (parser.prog in WITHOUT_EXAMPLE), parser.prog
        for line in lines:
            assert [word for words in commands_in(line) for word in wrong_words(words)] == [], line


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_what_stands_below_the_options_fits_a_narrow_terminal(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "40")
    for parser in parsing.family(parser_of(command)):
        for line in parser.format_help().partition("\nexamples:\n")[2].splitlines():
            assert len(line) <= 40 or len(line.split()) <= 2 or "'" in line, line


@pytest.mark.parametrize("columns", ["1", "3"])
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_is_printed_however_narrow_the_terminal_is(monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for parser in parsing.family(parser_of(command)):
        assert parser.format_help()


def test_a_purpose_is_a_comment_behind_or_above():
    parser = argparse.ArgumentParser(
        prog="x",
        epilog="examples:\n  x one          the first\n  x two --long-option-number-one 'quoted words here' "
        "--long-option-number-two   " + "what this is for " * 3 + "\n\nexit codes: 0 fine,\n1 failed",
    )
    complete_help(parser)
    shown = parser.format_help().partition("examples:\n")[2]
    purpose = "what this is for what this is for what this is for"
    assert shown == (
        "  x one  # the first\n"
        f"  # {purpose}\n"
        "  x two --long-option-number-one 'quoted words here' \\\n"
        "    --long-option-number-two\n"
        "\nexit codes: 0 fine, 1 failed\n"
    )


def test_the_umbrellas_help_fits_eighty_columns(tool):
    assert [line for line in tool("neurontools").stdout.splitlines() if len(line) > 80] == []
