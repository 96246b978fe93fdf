"""One idea has one flag in all commands of ours; old spellings are accepted, and neither help nor completion shows them."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from neurontools.commands import parsing
from neurontools.commands.neurontools import COMMANDS
from tests.commands.shown import parser_of

if TYPE_CHECKING:
    import argparse

# The flags of the real tools, as their documentation spells them.
REAL = {
    "neuron-ls --json-output",
    "neuron-packager info --json-output",
    "neuron-profile view --output-format",
    "neuron-profile view --output-file",
    "neuron-profile inspect --output-dir",
    "neuron-profile inspect --capture-system-profiles",
    "neuron-profile inspect --capture-device-profiles",
    "neuron-profile capture --session-file",
    "nccom-test --iters",
    "nccom-test --report-to-json-file",
    "neuron_parallel_compile --analyze-output",
}
# What a help text or a value's name says -> the one flag for it.
IDEAS = {
    "print JSON": (r"^print JSON|^with --once: print JSON", "--json"),
    "at most so many": (
        r"^(?:print )?at most N|^exit after N|^number of (?:lines|operators|entries|reports|rows)(?! copied)",
        "--limit",
    ),
    "time between two": (r"^time between (?:two|updates)|seconds between", "--interval"),
    "machine": (r"^machine names?\b", "--machine"),
    "instance type": (r"\binstance type\b", "--instance"),
    "cache": (r"^cache directory|^compile cache\b", "--cache-dir"),
    "time limit": (r"\btime ?limit of|\btimeout of", "--timeout"),
    "output": (
        r"^(?:file|directory) (?:to write|for the (?:library|profile))|^new or empty directory \(",
        "--output",
    ),
    "no change": (r"change nothing", "--dry-run"),
    "no question": (r"not ask", "--yes"),
    "colours": (r"^use colou?rs", "--color"),
    "calls": (r"^number of (?:timed )?calls|^number of runs", "--repeat"),
    "random": (r"\bseed of", "--seed"),
    "source": (r"^data source", "--source"),
    "filter": (r"^only .* match|^initial filter", "--filter"),
}
OLD = [
    ("neurond status", "--name", "--machine", "x"),
    ("neuron-run", "--cache", "--cache-dir", "x"),
    ("neuron-cache ls", "--cache_dir", "--cache-dir", "x"),
    ("neuron-cache why", "--max-lines", "--limit", "7"),
    ("neuron-monitor", "--count", "--limit", "7"),
    ("neuron-profile top", "-k", "--limit", "7"),
    ("neurontools scenario record", "--out", "--output", "x"),
    ("neurontools scenario record", "--count", "--limit", "7"),
    ("neurontools scenario record", "--period", "--interval", "2s"),
]
OLD_VERBS = {
    "cache": {"du", "path", "clean", "unpin", "export", "import", "sync", "neff"},
    "customop": {"doctor"},
}


def visible() -> dict[tuple[str, str], argparse.Action]:
    """Return every flag that help shows, by the command and its longest name."""
    return {
        (parser.prog, max(action.option_strings, key=len)): action
        for command in sorted(COMMANDS)
        for parser in parsing.family(parser_of(command), hidden=False)
        for action in parsing.visible_options(parser).values()
    }


def finished(line: str, parser: argparse.ArgumentParser, *words: str) -> argparse.Namespace:
    """Return the parsed command line, with what it needs beside the words."""
    needed = {"neurontools scenario record": ["-o", "o"]} if "--out" not in words else {}
    verbs = line.split()[2:] if line.startswith("neurontools") else line.split()[1:]
    return parsing.parse(parser, [*verbs, *needed.get(line, []), *words])


def command_of(line: str) -> str:
    program, *rest = line.split()
    return rest[0] if program == "neurontools" else {name[1]: key for key, name in COMMANDS.items()}[program]


@pytest.mark.parametrize("idea", sorted(IDEAS))
def test_an_idea_has_one_flag(idea):
    pattern, flag = IDEAS[idea]
    found = {
        f"{program} {name}": action
        for (program, name), action in visible().items()
        if isinstance(action.help, str)
        and re.search(pattern, action.help)
        and f"{program} {name}" not in REAL
    }
    assert len(found) > 0, "the pattern finds nothing"
    assert {name for name, action in found.items() if flag not in action.option_strings} == set()


def test_one_text_stands_for_one_flag():
    flags = defaultdict(set)
    for (program, name), action in visible().items():
        if isinstance(action.help, str) and f"{program} {name}" not in REAL and len(action.help) > 12:
            flags[re.sub(r" \(default.*", "", action.help)].add(name)
    recorded = {"recorded in the report, without effect", "accepted, without effect"}  # of nccom-test
    recorded |= {"accepted, without effect; excludes MPI hosts"}
    assert {text: names for text, names in flags.items() if len(names) > 1 and text not in recorded} == {}


@pytest.mark.parametrize(("line", "old", "new", "value"), OLD, ids=str)
def test_an_old_spelling_is_hidden_and_works(line, old, new, value):
    root = parser_of(command_of(line))
    parser = next(each for each in parsing.family(root) if each.prog == line)
    assert old not in parsing.visible_options(parser)
    assert f" {old} " not in parser.format_help()
    tail = ["--", "true"] if line == "neuron-run" else []
    assert vars(finished(line, root, old, value, *tail)) == vars(finished(line, root, new, value, *tail))


def test_two_spellings_of_one_option_are_not_ambiguous():
    assert finished("neuron-cache ls", parser_of("cache"), "--cache", "x").cache_dir == "x"
    assert finished("neuron-cache ls", parser_of("cache"), "--cach=x").cache_dir == "x"


def test_old_verbs_are_hidden_and_have_help(tool):
    for command, names in OLD_VERBS.items():
        parser = parser_of(command)
        assert names <= set(parsing.verbs(parser))
        assert names.isdisjoint(parsing.visible_verbs(parser))
    assert len(parsing.visible_verbs(parser_of("cache"))) == 13
    run = tool("neuron-cache", "du", "--help")
    assert "Old name of 'neuron-cache stats'." in run.stdout


def test_completion_omits_old_names(tool):
    script = tool("neurontools", "completion", "bash").stdout
    offered = re.search(r"_shtab_neuron_cache_subparsers=\((.*?)\)", script)
    assert offered is not None
    assert "copy" in offered[1].split()
    assert OLD_VERBS["cache"].isdisjoint(offered[1].split())
    assert "--max-lines" not in script


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("neuron-cache help ls", "usage: neuron-cache ls "),
        ("neuron-cache help", "usage: neuron-cache "),
        ("neurontools fault help inject", "usage: neurontools fault inject "),
        ("neurond help logs", "usage: neurond logs "),
        ("neuron-customop help run", "usage: neuron-customop run "),
    ],
)
def test_help_of_a_command(tool, line, shown):
    program, *words = line.split()
    run = tool(program, *words)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(shown)


def test_help_of_an_unknown_command_suggests_one(tool):
    run = tool("neuron-cache", "help", "prun")
    assert (run.returncode, run.stderr) == (2, "error: unknown command 'prun'\nhint: did you mean 'prune'?\n")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("neurond --nosuch", "unrecognized arguments: --nosuch", "see 'neurond --help'"),
        ("neurond --versoin", "unrecognized arguments: --versoin", "did you mean '--version'?"),
        ("neuron-cache --jsn", "unrecognized arguments: --jsn", "see 'neuron-cache --help'"),
        ("neuron-cache show --jsn", "unrecognized arguments: --jsn", "did you mean '--json'?"),
        ("neuron-profile --x", "unrecognized arguments: --x", "see 'neuron-profile --help'"),
        ("neuron-packager info --wights", "unrecognized arguments: --wights", "did you mean '--weights'?"),
        (
            "neuron-cache show",
            "the following arguments are required: ENTRY",
            "see 'neuron-cache show --help'",
        ),
    ],
)
def test_an_unknown_flag_is_named_before_what_is_missing(tool, line, message, hint):
    program, *words = line.split()
    run = tool(program, *words)
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"error: {message}\nhint: {hint}\n")


def test_help_has_colours_on_a_terminal_only(tool, monkeypatch):
    plain = tool("neuron-cache", "ls", "--help").stdout
    assert "\x1b" not in plain
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = tool("neuron-cache", "ls", "--help").stdout
    assert coloured.startswith("\x1b[1musage:\x1b[0m neuron-cache ls ")
    assert "  \x1b[36m--json\x1b[0m " in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert tool("neuron-cache", "ls", "--help").stdout == plain


def test_limits_and_durations_say_what_they_expect(tool):
    run = tool("neuron-cache", "ls", "--limit", "0")
    assert (run.returncode, run.stderr.splitlines()[0]) == (
        2,
        "error: argument -n/--limit: '0' is not a number above 0",
    )
    run = tool("neuron-top", "--once", "--interval", "soon")
    assert run.returncode == 2
    assert run.stderr.startswith("error: argument --interval: invalid duration 'soon'")
