from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.cache import layouts
from neurontools.commands.cache import build_parser, main

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache.conftest import Tree

PAGES = ("reference/neuron-cache.md", "how-to/recompiles.md", "how-to/share-a-cache.md")
DOCS = Path(__file__).parents[2] / "docs"


def documented() -> list[str]:
    lines = [line.partition("  ")[0] for page in PAGES for line in (DOCS / page).read_text().splitlines()]
    lines += build_parser().format_help().splitlines()
    return [line.strip().partition(" |")[0] for line in lines if line.strip().startswith("neuron-cache ")]


@pytest.mark.parametrize("line", documented())
def test_every_command_line_that_is_documented_parses(line: str) -> None:
    assert build_parser().parse_args(shlex.split(line)[1:]).verb


@pytest.mark.parametrize("verb", ["", "ls", "show", "stats", "why", "prune", "rm", "locks", "verify"])
def test_help_has_words(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), "--help"])
    assert ended.value.code == 0
    assert f"usage: neuron-cache {verb}".strip() in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["prune"],
        ["prune", "--max-size", "huge"],
        ["locks", "-y"],
        ["locks", "--dry-run"],
        ["prune", "--older-than", "30"],
        ["prune", "--grace", "x", "--failed"],
    ],
)
def test_a_wrong_command_line_is_reported_in_two_lines(
    arguments: list[str], tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.failed()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.partition(":")[0] for line in captured.err.splitlines()] == ["error", "hint"]


def test_the_installed_command_lists_a_cache(
    tree: Tree, tool: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = tree.done(unused_s=-1e9)
    shown = tool("neuron-cache", "ls")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert path.name in shown.stdout
    assert tool("neurontools", "cache", "ls", "-q").stdout == f"{path}\n"
    assert tool("neuron-cache", "stats", "--path", "-q", "--cache-dir", "x").stdout == f"{Path.cwd() / 'x'}\n"


def test_a_reader_that_goes_away_is_not_an_error(tree: Tree) -> None:
    for number in range(300):
        tree.entry(graph=str(number))
    shown = subprocess.run(
        f"{Path(sys.executable).parent / 'neuron-cache'} ls -q | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr, len(shown.stdout.splitlines())) == (0, "", 1)


def test_the_command_starts_without_heavy_modules(tree: Tree) -> None:
    tree.done()
    script = (
        "import sys; from neurontools.commands.cache import main; main(['ls']); main(['stats']); "
        "print(*sorted(set(sys.modules) & {'torch', 'numpy', 'rich', 'textual', 'yaml', 'psutil', 'asyncio', "
        "'neurontools.compiler.graph', 'neurontools.compiler.engines.cost', 'neurontools.machine.instances.catalogue'}), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stderr.split() == []


def test_names_in_any_encoding_are_skipped(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.done(unused_s=-1e9)
    os.makedirs(os.fsencode(tree.root) + b"/neuronxcc-\xff\xfe/MODULE_1+00000000")
    assert main(["ls"]) == main(["stats"]) == 0
    assert "1 name of another layout skipped" in capsys.readouterr().out


def test_what_others_wrote_cannot_steer_the_terminal(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.failed("\x1b[2J\x9b31m gone\n", flags=("--x=\x1b]0;title\x07",))
    assert main(["ls"]) == main(["prune", "--failed", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "\\u001b[2J\\u009b31m gone" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_an_unreadable_entry_is_reported(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    from neurontools.cache import entries

    tree.done(graph="1")
    refused = tree.done(graph="2")
    real = os.scandir

    def scandir(path: str) -> object:
        if path == str(refused):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = entries.scan(str(tree.root))
    assert (len(found.entries), found.skipped, found.unread) == (1, 0, 1)
    assert (refused / layouts.NEFF).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "--json", "-q"],
        ["ls", "-q", "--columns", "state"],
        ["ls", "--registry", "--failed"],
        ["ls", "--registry", "--filter", "state=done"],
        ["stats", "--runs", "--path"],
        ["prune", "--failed", "--dry-run", "-y"],
        ["locks", "--json", "-q"],
        ["stats", "--path", "--json", "-q"],
    ],
)
def test_options_that_contradict_each_other_are_refused(
    arguments: list[str], tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.failed()
    assert main(arguments) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert len(list(tree.root.glob("*/MODULE_*"))) == 1


@pytest.mark.parametrize(
    "arguments",
    [["ls"], ["stats"], ["locks"], ["verify"], ["show", "921"], ["pin", "921"], ["rm", "--all", "-y"]],
)
def test_a_cache_that_was_named_and_is_not_there_is_an_error(
    arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--cache-dir", str(home / "none")]) == 1
    assert capsys.readouterr().err.startswith(
        f"error: no compile cache at {home / 'none'}: no such directory\n"
    )
    assert not (home / "none").exists()
