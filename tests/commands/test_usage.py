"""What is wrong in a command line is one line, with what was probably meant; the exit code is 2."""

from __future__ import annotations

import pytest

from neurontools.commands import parsing
from neurontools.commands.neurontools import COMMANDS
from neurontools.errors import UsageError
from tests.commands.shown import parser_of


@pytest.mark.parametrize(
    "command", sorted(COMMANDS.keys() - {"ls"})
)  # neuron-ls says what the real tool says
def test_a_misspelt_option_names_the_right_one(command):
    for parser in parsing.family(parser_of(command)):
        options = [
            name for name in parsing.visible_options(parser) if name.startswith("--") and len(name) > 5
        ]
        for option in options:
            wrong = option[:4] + option[5:] + "q"
            error = parsing.unknown_words(parser, [wrong])
            assert error.message == f"unrecognized arguments: {wrong}"
            assert error.remedy.startswith("did you mean '--")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("neuron-cache lst", "unknown command 'lst'", "did you mean 'ls'?"),
        ("neuron-cache ls --jsn", "unrecognized arguments: --jsn", "did you mean '--json'?"),
        (
            "neuron-packager info --wights x",
            "unrecognized arguments: --wights",
            "did you mean '--weights'?",
        ),
        ("neuron-cache xyzzy", "unknown command 'xyzzy'", "see 'neuron-cache --help' for the commands"),
        (
            "neuron-customop run lib op --shape 3",
            "unrecognized arguments: --shape 3",
            "see 'neuron-customop run --help'",
        ),
        ("neurond", "no command given", "see 'neurond --help' for the commands"),
        ("neurond logs extra", "unrecognized arguments: extra", "see 'neurond logs --help'"),
        (
            "neuron-cache ls --limit x",
            "argument -n/--limit: 'x' is not a number above 0",
            "see 'neuron-cache ls --help'",
        ),
        ("neuron-run --profle x", "unrecognized arguments: --profle", "did you mean '--profile'?"),
        ("neurontools completion bsh", "argument shell: invalid choice: 'bsh'", "did you mean 'bash'?"),
        ("neurontools completion q", "argument shell: invalid choice: 'q'", "choose from bash, zsh, fish"),
        ("neuron-monitor --verbose 5", "argument --verbose: invalid choice: 5", "choose from 0, 1, 2, 3, 4"),
        (
            "neurontools link",
            "the following arguments are required: --prefix",
            "see 'neurontools link --help'",
        ),
    ],
)
def test_one_line_and_a_hint(tool, line, message, hint):
    name, *arguments = line.split()
    run = tool(name, *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == f"error: {message}\nhint: {hint}\n"


def test_values_of_options_are_no_verbs_that_hide_the_real_one():
    with pytest.raises(UsageError, match="--nme"):
        parsing.parse(parser_of("neurond"), ["status", "--nme", "x"])
