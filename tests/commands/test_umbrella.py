"""The umbrella lists and dispatches; every tool answers --help and --version the same way."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools import __version__
from neurontools.commands.neurontools import COMMANDS

PROGRAMS = sorted(program for _, program, _ in COMMANDS.values() if program)
SHELL_CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


def test_help_lists_every_command(tool):
    run = tool("neurontools", "--help")
    assert run.returncode == 0
    assert all(f"\n  {name} " in run.stdout for name in COMMANDS)


def test_no_command_is_the_help(tool):
    assert tool("neurontools").stdout == tool("neurontools", "--help").stdout


def test_an_unknown_command_suggests_the_nearest(tool):
    run = tool("neurontools", "cahce")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "error: unknown command 'cahce'\nhint: did you mean 'cache'?\n"


def test_help_prints_the_pages_of_the_manual(tool):
    assert tool("neurontools", "help").stdout == tool("neurontools", "--help").stdout
    assert tool("neurontools", "help", "faults").stdout.startswith("# neurontools fault\n")
    assert tool("neurontools", "help", "top").stdout == tool("neurontools", "help", "neuron-top").stdout
    topics = [line.split()[0] for line in tool("neurontools", "help", "topics").stdout.splitlines()]
    assert {"faults", "containers", "scenarios", "neuron-ls", "cost-model"} <= set(topics)


def test_an_unknown_help_topic_suggests_the_nearest(tool):
    run = tool("neurontools", "help", "fautls")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "error: no help topic 'fautls'\nhint: did you mean 'faults'?\n"


def test_every_help_topic_that_a_message_names_exists():
    root = Path(__file__).parents[2]
    pages = {page.stem for page in (root / "docs").glob("*/*.md")} | {"topics", "TOPIC"}
    sources = [*(root / "commands").rglob("*.py"), *(root / "neurontools").rglob("*.py")]
    named = {word for path in sources for word in re.findall(r"neurontools help ([\w-]+)", path.read_text())}
    assert named <= pages
    assert "faults" in named


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_tool_has_help_with_examples(tool, program):
    run = tool(program, "--help")
    assert (run.returncode, run.stderr) == (0, "")
    assert "examples:" in run.stdout.lower()


@pytest.mark.parametrize("program", [*PROGRAMS, "neurontools"])
def test_every_tool_says_its_version(tool, program):
    run = tool(program, "--version")
    assert (run.returncode, run.stdout) == (0, f"{program} {__version__}\n")


@pytest.mark.parametrize("name", ["doctor", "completion", "demo", "link", "config"])
def test_the_umbrellas_own_commands_have_help(tool, name):
    run = tool("neurontools", name, "--help")
    assert run.returncode == 0
    assert run.stdout.startswith(f"usage: neurontools {name}")


@pytest.mark.parametrize("shell", sorted(SHELL_CHECKS))
def test_completion_knows_every_program(tool, home, shell):
    run = tool("neurontools", "completion", shell)
    assert run.returncode == 0, run.stderr
    assert all(program in run.stdout for program in PROGRAMS)
    if shutil.which(shell):
        script = home / "completion"
        script.write_text(run.stdout)
        subprocess.run([*SHELL_CHECKS[shell], str(script)], check=True)


def test_bash_completes_a_sub_command(tool, home):
    script = home / "completion.bash"
    script.write_text(tool("neurontools", "completion", "bash").stdout)
    code = f"source {script}; COMP_WORDS=(neuron-cache pr); COMP_CWORD=1; _shtab_neuron_cache; echo ${{COMPREPLY[@]}}"
    assert "prune" in subprocess.check_output(["bash", "-c", code], text=True).split()


def test_bash_completes_choices(tool, home):
    script = home / "completion.bash"
    script.write_text(tool("neurontools", "completion", "bash").stdout)
    for words, offered in (
        ("fault inject lin", "link-down"),
        ("fault inject ecc --type sram-c", "sram-corrected"),
        ("top --page proc", "processes"),
        ("top --theme colorb", "colorblind"),
    ):
        code = f"source {script}; COMP_WORDS=(neurontools {words}); COMP_CWORD={len(words.split())}; "
        found = subprocess.check_output(
            ["bash", "-c", code + "_shtab_neurontools; echo ${COMPREPLY[@]}"], text=True
        )
        assert found.split() == [offered]


def test_bash_completes_what_there_is_now(tool, home, monkeypatch):
    script = home / "completion.bash"
    script.write_text(tool("neurontools", "completion", "bash").stdout)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (home / "compile-cache" / "neuronxcc-2.16.372.0+5eed0002" / "MODULE_123456+e30acd3a").mkdir(parents=True)
    (home / "relu.cpp").write_text("")
    tool("neurond", "start", "--machine", "laboratory")
    for words, offered in (
        ("neuron_ls --machine lab", ["laboratory"]),
        ("neurond stop --machine lab", ["laboratory"]),
        ("neurond start --instance trn2u", ["trn2u.48xlarge"]),
        ("neuron_cache show MOD", ["MODULE_123456+e30acd3a"]),
        ("neuron_cache pin 12", ["123456"]),
        ("neurontools scenario play ecc", ["ecc-storm"]),
        ("neuron_customop build --compute rel", ["relu.cpp"]),
    ):
        line = words.replace("neuron_", "neuron-")
        code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words.split()) - 1}; "
        code += f"_shtab_{words.split()[0]}; echo ${{COMPREPLY[@]}}"
        assert subprocess.check_output(["bash", "-c", code], text=True).split() == offered


def test_values_of_nothing_are_no_error(tool, monkeypatch):
    for kind in ("machines", "entries"):
        run = tool("neurontools", "completion", "--values", kind)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "gs://bucket")
    assert tool("neurontools", "completion", "--values", "entries").returncode == 0


@pytest.mark.torch
def test_doctor_names_what_is_there(tool):
    findings = {check["name"]: check for check in json.loads(tool("neurontools", "doctor", "--json").stdout)}
    assert findings["neurontools"]["detail"] == __version__
    assert findings["torch"]["ok"]
    assert findings["compiler"]["ok"]
    assert findings["device guard"]["ok"]
    assert findings["machines"]["detail"].startswith("none running")


@pytest.mark.torch
def test_doctor_names_what_does_not_work_without_a_compiler(tool, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    findings = {check["name"]: check for check in json.loads(tool("neurontools", "doctor", "--json").stdout)}
    assert not findings["device guard"]["ok"]
    assert "/nonexistent/g++" in findings["device guard"]["detail"]
    assert findings["device guard"]["needed_for"] == "Ctrl-C and exceptions in a backward pass on xla"


def test_doctor_knows_what_prometheus_needs(tool):
    findings = {check["name"]: check for check in json.loads(tool("neurontools", "doctor", "--json").stdout)}
    assert findings["prometheus_client"]["ok"]
    assert "--prometheus" in findings["prometheus_client"]["needed_for"]


def test_doctor_finds_directories_that_cannot_be_used(tool, home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file" / "cache"))
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", "gs://bucket/cache")
    run = tool("neurontools", "doctor")
    assert run.returncode == 1
    for words in (
        f"WRONG    build directory    {home}/file/cache/neurontools: {home}/file is not a directory\n",
        "set XDG_CACHE_HOME to another directory",
        "WRONG    compile cache      ",
        "ok       state directory    ",
    ):
        assert words in run.stdout


@pytest.mark.parametrize(
    ("variable", "value", "detail"),
    [("INSTANCE", "trn9", "unknown instance type 'trn9'"), ("MACHINE", "a/b", "invalid machine name 'a/b'")],
)
def test_doctor_finds_settings_that_no_machine_can_have(tool, monkeypatch, variable, value, detail):
    monkeypatch.setenv(f"NEURONTOOLS_{variable}", value)
    run = tool("neurontools", "doctor")
    assert run.returncode == 1
    assert f"WRONG    machines           {detail}" in run.stdout


def test_doctor_names_what_is_wrong_in_the_settings(tool, home):
    file = home / "config" / "neurontools" / "config.yaml"
    assert f"ok       settings           no {file}\n" in tool("neurontools", "doctor").stdout
    file.parent.mkdir(parents=True)
    file.write_text("machin: ci\n")
    run = tool("neurontools", "doctor")
    assert run.returncode == 1
    assert f"WRONG    settings           {file}:1: machin: unknown setting" in run.stdout


def test_doctor_without_a_compiler_says_how_to_get_one(tool, monkeypatch, home):
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.delenv("CXX", raising=False)
    run = tool("neurontools", "doctor")
    assert run.returncode == 1
    assert "MISSING  compiler" in run.stdout
    assert "needed for neuron-customop build" in run.stdout


@pytest.mark.parametrize(
    "line",
    ["neurond status", "neuron-cache ls --cache-dir /nowhere", "neuron-profile summary /nowhere"],
)
def test_a_subcommand_takes_debug_at_its_end(tool, line):
    name, *arguments = line.split()
    run = tool(name, *arguments, "--debug")
    assert run.returncode == 1
    assert run.stderr.startswith("Traceback (most recent call last):")


def test_a_traceback_cannot_control_the_terminal(tool):
    run = tool("neuron-cache", "ls", "--cache-dir", "/nowhere\x1b]0;title\x07", "--debug")
    assert run.returncode == 1
    assert "Traceback" in run.stderr
    assert "/nowhere\\u001b]0;title\\u0007" in run.stderr
    assert "\x1b" not in run.stderr


def test_debug_of_the_started_program_is_not_ours(tool):
    run = tool("neuron-run", "--", "no-such-program-here", "--debug")
    assert run.returncode == 127
    assert run.stderr.startswith("error: cannot run no-such-program-here")


@pytest.mark.parametrize(
    "line",
    [
        "neurontools --help",
        "neuron-cache stats",
        "neurontools doctor",
        "neuron-ls --help",
        "neurond --version",
    ],
)
@pytest.mark.parametrize("closing", [">&-", "<&- >&-", "> /dev/full"])
def test_output_that_cannot_be_written_is_one_line(monkeypatch, line, closing):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # argparse is deaf to errors of unbuffered writes
    name, argument = line.split()
    script = f'exec "{Path(sys.executable).parent / name}" {argument} {closing}'
    run = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("error: cannot write the output: ")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("utf-8", b"w\xc3\xb6rld \xff"), ("ascii", rb"w\xf6rld \udcff"), ("latin-1", b"w\xf6rld " + rb"\udcff")],
)
def test_a_name_that_is_not_text_is_written(home, monkeypatch, encoding, shown):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    program = Path(sys.executable).parent / "neurontools"
    command = [program, "link", "--dry-run", "--prefix", b"w\xc3\xb6rld \xff"]
    run = subprocess.run(command, capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")
    assert shown in run.stdout


def test_a_working_directory_that_is_gone_is_one_line(home, monkeypatch, tool):
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    run = tool("neuron-cache", "ls", "--cache-dir", "here")
    assert (run.returncode, run.stdout) == (1, "")
    assert (
        run.stderr == "error: the working directory does not exist\nhint: change to an existing directory\n"
    )


def test_a_closed_stderr_harms_nothing():
    script = f'exec "{Path(sys.executable).parent / "neuron-cache"}" ls --cache-dir /nowhere 2>&-'
    run = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
