"""Flag, environment, file, default: who wins, in the library and in the tools."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools import env, paths
from neurontools.machine import start
from tests.tui.terminal import read_to_end

BIN = Path(sys.executable).parent
READERS = {
    "machine": (env.machine, "ci", "other", "default"),
    "autostart": (env.autostart, False, True, True),
    "instance": (env.instance, "inf2.xlarge", "trn2.3xlarge", "trn1.2xlarge"),
    "emulate": (env.emulate, "2.28", "2.32", "2.32"),
    "host_memory": (env.host_memory, "10%", "1GiB", "25%"),
    "pace": (lambda: env.flag(env.PACE), True, False, False),
    "numerics": (
        lambda: "device" if env.numerics_are_device() else "cpu",
        "device",
        "cpu",
        "cpu",
    ),
    "customop_inprocess": (lambda: env.flag(env.CUSTOMOP_INPROCESS), True, False, False),
    "customop_any_instance": (lambda: env.flag(env.CUSTOMOP_ANY_INSTANCE), True, False, False),
    "native_any_instance": (lambda: env.flag(env.NATIVE_ANY_INSTANCE), True, False, False),
    "sysfs_root": (env.sysfs_root, "/srv/mirror", "/run/mirror", ""),
    "cache_lock_timeout": (lambda: env.setting(env.CACHE_LOCK_TIMEOUT), "20m", "1h", ""),
    "cache_max_size": (lambda: env.setting(env.CACHE_MAX_SIZE), "20GB", "1TiB", ""),
    "cache_older_than": (lambda: env.setting(env.CACHE_OLDER_THAN), "30d", "2w", ""),
    "cache_keep_last": (lambda: env.setting(env.CACHE_KEEP_LAST), "10", "3", ""),
    "cache_remove": (lambda: env.setting(env.CACHE_REMOVE), "failed,locks", "failed", ""),
    "cache_auto_prune": (lambda: env.flag(env.CACHE_AUTO_PRUNE), True, False, False),
}
WORDS = {False: "0", True: "1"}


@pytest.mark.parametrize("key", sorted(READERS))
def test_the_environment_beats_the_file_and_the_file_beats_the_default(config, monkeypatch, key):
    read, in_file, in_environment, default = READERS[key]
    variable = env.PREFIX + key.upper()
    monkeypatch.delenv(variable, raising=False)
    assert read() == default
    config(f"{key}: {WORDS.get(in_file, in_file)}\n")
    assert read() == in_file
    monkeypatch.setenv(variable, WORDS.get(in_environment, in_environment))
    assert read() == in_environment
    monkeypatch.setenv(variable, "")
    assert read() == in_file


def test_the_runtime_directory_may_be_set_in_the_file(config, monkeypatch, home):
    monkeypatch.delenv("NEURONTOOLS_RUNTIME_DIR")
    config(f"runtime_dir: {home}/run\n")
    assert paths.runtime_dir() == f"{home}/run"
    assert paths.state_dir() == f"{home}/run/state"


def test_a_mapping_stands_in_for_the_environment(config, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_PACE", "1")
    assert not env.flag(env.PACE, {})
    config("pace: yes")
    assert env.flag(env.PACE, {})
    assert not env.flag(env.PACE, {"NEURONTOOLS_PACE": "0"})


def test_the_tools_obey_the_file_and_flags_beat_it(config, tool, monkeypatch, home):
    monkeypatch.delenv("NEURONTOOLS_RUNTIME_DIR")
    monkeypatch.delenv("NEURONTOOLS_AUTOSTART")
    config(f"runtime_dir: {home}/run\nmachine: ci\ninstance: trn2.3xlarge\n")
    assert tool("neuron-ls").returncode == 1  # only `default` starts by itself
    assert tool("neurond", "start").returncode == 0
    assert tool("neuron-ls").stdout.startswith("instance-type: trn2.3xlarge\n")
    assert [info["machine"] for info in json.loads(tool("neurond", "list", "--json").stdout)] == ["ci"]
    assert tool("neurond", "start", "--machine", "other", "--instance", "inf2.xlarge").returncode == 0
    assert tool("neuron-ls", "--machine", "other").stdout.startswith("instance-type: inf2.xlarge\n")
    assert (home / "run" / "ci" / "neurond.json").exists()
    for name in ("ci", "other"):
        assert tool("neurond", "stop", "--machine", name).returncode == 0


def test_autostart_may_be_forbidden_in_the_file(config, tool, monkeypatch):
    monkeypatch.delenv("NEURONTOOLS_AUTOSTART")
    config("autostart: no\n")
    run = tool("neuron-ls")
    assert (run.returncode, run.stdout) == (1, "")


def test_show_says_what_comes_from_where(config, tool, monkeypatch):
    path = config("# mine\nmachine: ci\npace: yes\n")
    monkeypatch.setenv("NEURONTOOLS_EMULATE", "2.28")
    run = tool("neurontools", "config", "show")
    assert (run.returncode, run.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines()}
    assert rows["machine"] == ["ci", f"{path}:2"]
    assert rows["pace"] == ["1", f"{path}:3"]
    assert rows["emulate"] == ["2.28", "NEURONTOOLS_EMULATE"]
    assert rows["instance"] == ["trn1.2xlarge", "default"]
    report = json.loads(tool("neurontools", "config", "show", "--json").stdout)
    assert (report["config_file"], report["exists"], report["problems"]) == (str(path), True, [])
    found = {
        setting["key"]: (setting["value"], setting["source"], setting["line"])
        for setting in report["settings"]
    }
    assert found["machine"] == ("ci", "config", 2)
    assert found["emulate"] == ("2.28", "environment", None)
    assert found["host_memory"] == ("25%", "default", None)
    assert {*found} == {*READERS, "runtime_dir"}


def test_without_a_file_everything_is_a_default(tool):
    report = json.loads(tool("neurontools", "config", "show", "--json").stdout)
    assert not report["exists"]
    assert {setting["source"] for setting in report["settings"]} == {"default", "environment"}
    assert tool("neurontools", "config", "path").stdout == f"{report['config_file']}\n"


def test_show_names_what_is_not_obeyed(config, tool):
    path = config("machin: ci\npace: maybe\n")
    run = tool("neurontools", "config", "show")
    assert run.returncode == 1
    assert run.stderr == (
        f"warning: {path}:1: machin: unknown setting; did you mean 'machine'?\n"
        f"warning: {path}:2: pace: expected true or false, found 'maybe'; the default is used\n"
    )
    problems = json.loads(tool("neurontools", "config", "show", "--json").stdout)["problems"]
    assert problems[0] == {
        "line": 1,
        "key": "machin",
        "message": "unknown setting",
        "remedy": "did you mean 'machine'?",
    }


@pytest.mark.parametrize("command", [["neuron-ls"], ["neuron-ls", "--csv"], ["neurond", "status"]])
def test_other_tools_name_it_on_a_terminal_only(config, command):
    path = config("machin: ci\n")
    program = [str(BIN / command[0]), *command[1:]]
    with start(private=True):
        quiet = subprocess.run(program, capture_output=True, text=True, check=True)
        assert quiet.stderr == ""
        terminal, end = pty.openpty()
        loud = subprocess.run(program, stdout=subprocess.PIPE, stderr=end, text=True, check=True)
        os.close(end)
        shown = read_to_end(terminal).decode()
        os.close(terminal)
    assert loud.stdout.splitlines()[0] == quiet.stdout.splitlines()[0]
    assert shown.replace("\r", "") == f"warning: {path}:1: machin: unknown setting; did you mean 'machine'?\n"


def test_show_says_it_once_on_a_terminal(config):
    config("machin: ci\n")
    terminal, end = pty.openpty()
    subprocess.run(
        [str(BIN / "neurontools"), "config", "show"], stdout=subprocess.DEVNULL, stderr=end, check=False
    )
    os.close(end)
    shown = read_to_end(terminal).decode()
    os.close(terminal)
    assert shown.count("unknown setting") == 1


BANNED = {"argparse", "dataclasses", "importlib.metadata", "json", "logging", "pathlib", "socket", "typing"}


@pytest.mark.parametrize("text", [None, "machine: test\npace: no  # why\n"])
def test_neuron_ls_loads_yaml_for_a_settings_file_alone(config, text):
    if text is not None:
        config(text)
    code = "import sys\nfrom neurontools.commands.ls import main\nassert main([]) == 0\nprint(*sys.modules, file=sys.stderr)"
    with start(name="test", private=True):
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "NEURONTOOLS_MACHINE": "" if text else "test"},
        )
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    new = {*run.stderr.split()} - {*bare.stderr.split()}
    own = {name for name in new if name.startswith("neurontools")}
    read = {name for name in own if name.startswith("neurontools.config")}
    if text is None:
        assert new - own == {"_socket"}
        assert not read
    else:
        assert read == {f"neurontools.config{part}" for part in ("", ".reader", ".settings")}
        assert "yaml" in new
        assert not new & BANNED
