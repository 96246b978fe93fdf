"""Text of files, other users and programs cannot control the terminal, whichever command prints it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import unicodedata
from datetime import datetime
from pathlib import Path

from neurontools.commands import console
from neurontools.commands.console import ProgressLine
from neurontools.commands.profile import main as profile_main
from neurontools.commands.scenario import main as scenario_main
from neurontools.errors import NeuronToolsError
from neurontools.machine.daemon.daemon import _LogFormatter
from neurontools.runtime.log import Component, Level, format_line
from tests.profiler.conftest import Maker

HOSTILE = "a\x1b]0;title\x07\x9b31m\u202e\u2066\x7f\rb\nforged"
SHOWN = "a\\u001b]0;title\\u0007\\u009b31m\\u202e\\u2066\\u007f\\rb\\nforged"
BIN = Path(sys.executable).parent


def assert_harmless(text):
    found = {letter for letter in text if unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    assert found <= {"\n", "\t"}
    assert not any(line.startswith("forged") for line in text.splitlines())


def test_every_way_of_the_console(capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    hostile = HOSTILE.replace("\n", "")
    console.out(hostile)
    console.out_now(hostile)
    console.notice(hostile)
    console.warn(HOSTILE)
    console.fail(NeuronToolsError(HOSTILE, HOSTILE))
    with ProgressLine(delay_s=0) as line:
        line.show(HOSTILE)
        shown = capfd.readouterr()
    assert_harmless(shown.out)
    assert shown.out == (SHOWN.replace("\\n", "") + "\n") * 2
    assert_harmless(shown.err.replace("\r\x1b[K", ""))
    assert f"warning: {SHOWN}\nerror: {SHOWN}\nhint: {SHOWN}\n" in shown.err


def test_json_stays_json(capsys):
    console.print_json({"name": HOSTILE})
    shown = capsys.readouterr().out
    assert_harmless(shown)
    assert json.loads(shown) == {"name": HOSTILE}


def test_an_error_that_names_a_file_is_one_line(home, tool):
    run = tool("neuron-packager", "info", str(home / HOSTILE))
    assert run.returncode == 1
    assert_harmless(run.stderr)
    assert f"{home}/{SHOWN}" in run.stderr.splitlines()[0]


def test_a_tag_of_a_fault(tool):
    tool("neurond", "start")
    run = tool("neurontools", "fault", "inject", "hang", "--tag", HOSTILE)
    listed = tool("neurontools", "fault", "list")
    assert SHOWN in run.stdout + run.stderr
    assert_harmless(run.stdout + run.stderr + listed.stdout)


def test_a_scenario(home, capsys):
    text = json.dumps(HOSTILE)
    good = (
        f"description: {text}\ninstance: trn1.2xlarge\nduration: 1m\n"
        f"processes:\n  job:\n    description: {text}\n    cores: 2\n    command: {text}\n    tag: {text}\n"
    )
    (home / "good.yaml").write_text(good)
    (home / "bad.yaml").write_text(f"{good}    {text}: 1\n    tag: [{text}]\n")
    for words, code in ((["show", "good.yaml"], 0), (["check", "bad.yaml"], 1), (["show", "bad.yaml"], 1)):
        assert scenario_main([words[0], str(home / words[1])]) == code
        shown = capsys.readouterr()
        assert_harmless(shown.out + shown.err)
        assert "\\u009b" in shown.out + shown.err


def test_a_profile(home, capsys):
    class HostileMaker(Maker):
        def model(self, *arguments, **more):
            return super().model(*arguments, **{**more, "name": HOSTILE})

        def mlp(self):
            return (*super().mlp(), self.operation(HOSTILE, "Vector", 20_000, 5_000, source=HOSTILE))

    HostileMaker().finished(home / "profile")
    meta = next((home / "profile").rglob("meta.json"))
    meta.write_text(
        json.dumps({**json.loads(meta.read_text()), "instance_type": HOSTILE, "command": [HOSTILE]})
    )
    for verb in ("view", "summary", "top"):
        profile_main([verb, str(home / "profile")])
        shown = capsys.readouterr()
        assert_harmless(shown.out + shown.err)
        assert "\\u009b" in shown.out


def test_a_monitor_configuration(home, tool):
    (home / "monitor.conf").write_text(json.dumps({HOSTILE: 1, "system_metrics": [{"type": HOSTILE}]}))
    run = tool("neuron-monitor", "-c", str(home / "monitor.conf"), "--limit", "1", "--verbose", "4")
    assert_harmless(run.stdout + run.stderr)
    assert SHOWN.replace("\\n", "") in run.stderr.replace("\\n", "")


def test_log_lines_of_the_daemon():
    record = logging.LogRecord("neurond", logging.INFO, "", 0, "process (%s)", (HOSTILE,), None)
    assert _LogFormatter("%(message)s").format(record) == f"process ({SHOWN})"
    error = ValueError("\x9b31m")
    record.exc_info = (type(error), error, None)
    text = _LogFormatter("%(message)s").format(record)
    assert text == f"process ({SHOWN})\nValueError: \\u009b31m"
    assert_harmless(text)


def test_log_lines_of_the_runtime():
    line = format_line(datetime.now().astimezone(), Level.ERROR, Component.NRT, "function", HOSTILE)
    assert line.endswith(f" {SHOWN}")


def test_both_outputs_are_full(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for words in (["--help"], ["--version"], ["--nonsense"]):
        full = os.open("/dev/full", os.O_WRONLY)
        run = subprocess.run([BIN / "neuron-monitor", *words], stdout=full, stderr=full, check=False)
        os.close(full)
        assert run.returncode == (2 if words == ["--nonsense"] else 1)
