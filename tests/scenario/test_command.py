"""`neurontools scenario` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.commands.scenario import main
from neurontools.machine import launch
from neurontools.machine.machine_config import StartOptions
from neurontools.monitor import collector

PROGRAM = str(Path(sys.executable).parent / "neurontools")


@pytest.fixture
def run(tool):
    return lambda *arguments, **options: tool("neurontools", "scenario", *arguments, **options)


@pytest.fixture
def recorded(run, home):
    """A recording of five lines."""
    assert (
        run("record", "single-training", "--offline", "--output", "r.jsonl", "--limit", "5").returncode == 0
    )
    return (home / "r.jsonl").read_bytes()


def test_list_names_every_scenario(run):
    text = run("list").stdout
    assert text.splitlines()[0].split() == ["NAME", "INSTANCE", "DURATION", "PROCESSES", "WHAT", "HAPPENS"]
    assert "thousand-processes  trn2.48xlarge LNC 1  10m       1000" in text
    found = json.loads(run("list", "--json").stdout)
    assert {"name": "idle", "process_count": 0}.items() <= next(
        one for one in found if one["name"] == "idle"
    ).items()


def test_show_says_what_happens(capsys):
    assert main(["show", "memory-leak"]) == 0
    assert "starts       3 in all; ends: 2 by out of memory, 1 by end of scenario" in capsys.readouterr().out
    assert main(["show", "ecc-storm", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["groups"][0]["ends"]["crash"] == 4
    assert facts["faults"][0] == {"at_s": 30.0, "kind": "ecc", "target": "device 5"}


def test_check_names_all_mistakes_and_fails(capsys, home):
    (home / "bad.yaml").write_text("description: d\ninstance: trn1.2xlarge\nduration: 1m\nx: 1\ny: 2\n")
    assert main(["check", "./bad.yaml", "idle"]) == 1
    text = capsys.readouterr().out
    assert "idle: OK, 0 processes on trn1.32xlarge" in text
    assert "./bad.yaml:4: x: unknown key" in text
    assert "./bad.yaml:5: y: unknown key" in text
    assert main(["check", "./bad.yaml", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(one["line"], one["key"]) for one in found] == [(4, "x"), (5, "y")]
    assert main(["check", "idle"]) == 0


def test_play_prints_json_lines(run):
    done = run("play", "single-training", "--json", "--speed", "500", "--duration", "100s")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["kind"] for event in events] == ["playing", "started", "ended", "finished"]
    assert events[-1]["scenario_s"] == 100
    assert events[2]["detail"] == "end of scenario"


def test_play_says_what_it_did(run):
    done = run("play", "crash-loop", "--speed", "900")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("playing crash-loop on machine 'default' (inf2.8xlarge)\n")
    assert "played 15m of crash-loop in" in done.stdout
    assert done.stderr == ""


def test_play_refuses_a_machine_of_another_type(run):
    launch.start(StartOptions("default", "trn1.2xlarge"))
    done = run("play", "training-32")
    assert done.returncode == 4
    assert done.stderr.startswith("error: machine 'default' is trn1.2xlarge, not trn1.32xlarge\nhint: ")
    assert "--machine" in done.stderr


@pytest.mark.parametrize("verb", ["replay", "check", "show", "play"])
def test_a_file_that_cannot_be_read_has_a_hint(run, verb):
    assert "\nhint: " in run(verb, "./gone.yaml").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["play", "idle", "--speed", "0"], "speed 0 is out of range"),
        (["play", "idle", "--duration", "soon"], "--duration: invalid duration 'soon'"),
        (["play", "nothing"], "unknown scenario 'nothing'"),
        (["play", "idle", "--machine", "a/b"], "invalid machine name"),
        (["record", "--output", "x", "--limit", "0"], "argument -n/--limit: '0' is not a number above 0"),
        (["record", "--offline", "--output", "x"], "--offline needs a scenario"),
        (["record", "idle", "--output", "x"], "'idle' needs --offline"),
        (["record", "--output", "x", "--source", "moon"], "unknown source 'moon'"),
        (["record", "-", "--output", "x", "--interval", "1s"], "--interval cannot change the lines on stdin"),
        (["replay", "x", "--speed", "-1"], "speed -1 is out of range"),
        (["replay", "-", "--loop"], "--loop cannot replay stdin"),
    ],
)
def test_wrong_command_lines_are_reported(arguments, says, capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert says in err
    assert not Path("x").exists()


def test_record_and_replay_give_the_same_bytes(run, recorded):
    with subprocess.Popen(
        [PROGRAM, "scenario", "replay", "r.jsonl", "--no-wait"], stdout=subprocess.PIPE
    ) as again:
        assert again.communicate()[0] == recorded
    assert again.returncode == 0
    assert recorded.count(b"\n") == 5


def test_a_replayed_tag_cannot_control_the_terminal(run, recorded, home):
    hostile = recorded.replace(b"bert-pretrain", "a\x9b31m\x7f\u202eb".encode())
    (home / "hostile.jsonl").write_bytes(hostile)
    shown = run("replay", "hostile.jsonl", "--no-wait").stdout
    assert shown.replace("\n", "").isprintable()
    assert list(map(json.loads, shown.splitlines())) == list(
        map(json.loads, hostile.decode().split("\n")[:-1])
    )


def test_a_recording_from_stdin_is_what_came(run, recorded, home):
    with open("r.jsonl", "rb") as source:
        done = subprocess.run(
            [PROGRAM, "scenario", "record", "-", "--output", "copy.jsonl"],
            stdin=source,
            capture_output=True,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (home / "copy.jsonl").read_bytes() == recorded


def test_record_asks_the_machine(run, home):
    launch.start(StartOptions("default", "trn1.2xlarge"))
    done = run("record", "--output", "m.jsonl", "--limit", "3", "--interval", "200ms")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in (home / "m.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    assert lines[0]["instance_info"]["instance_type"] == "trn1.2xlarge"


def test_record_collects_every_group_at_its_period(home, monkeypatch):
    launch.start(StartOptions("default", "trn1.2xlarge"))
    configs = []
    monkeypatch.setattr(collector, "reports", lambda config, _: configs.append(config) or iter(()))
    assert main(["record", "--output", "m.jsonl", "--interval", "200ms"]) == 1
    assert {*configs[0].periods().values()} == {0.2}


def test_a_file_that_is_there_is_kept(run, recorded, home):
    again = run("record", "idle", "--offline", "--output", "r.jsonl")
    assert again.returncode == 1
    assert again.stderr.startswith("error: r.jsonl exists\nhint: ")
    assert (home / "r.jsonl").read_bytes() == recorded
    assert run("record", "idle", "--offline", "--output", "r.jsonl", "--force").returncode == 0
    assert (home / "r.jsonl").read_bytes() != recorded


def test_a_cut_recording_warns_and_is_not_a_failure(run, recorded, home):
    (home / "cut.jsonl").write_bytes(recorded[:-200])
    done = run("replay", "cut.jsonl", "--no-wait")
    assert done.returncode == 0
    assert done.stderr == "warning: line 5: incomplete, skipped: the file ends here\n"
    assert done.stdout.encode() == b"".join(recorded.splitlines(keepends=True)[:4])


def test_a_damaged_line_is_a_failure_at_the_end(run, recorded, home):
    lines = recorded.splitlines(keepends=True)
    (home / "bad.jsonl").write_bytes(lines[0] + b"{]\n" + lines[1])
    done = run("replay", "bad.jsonl", "--no-wait")
    assert done.returncode == 1
    assert done.stderr.startswith("warning: line 2: skipped: not JSON")
    assert done.stdout.encode() == lines[0] + lines[1]


def test_a_reader_that_leaves_is_not_an_error(recorded):
    with subprocess.Popen(
        [PROGRAM, "scenario", "replay", "r.jsonl", "--no-wait", "--loop"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as playing:
        assert playing.stdout is not None
        assert playing.stdout.readline() == recorded.splitlines(keepends=True)[0]
        playing.stdout.close()
        assert playing.wait(30) == 0
        assert playing.stderr is not None
        assert playing.stderr.read() == b""


def test_a_loop_puts_a_newline_between_two_rounds(home, recorded):
    (home / "open.jsonl").write_bytes(recorded.splitlines()[0])
    with subprocess.Popen(
        [PROGRAM, "scenario", "replay", "open.jsonl", "--no-wait", "--loop"], stdout=subprocess.PIPE
    ) as playing:
        assert playing.stdout is not None
        assert [playing.stdout.readline() for _ in range(3)] == [recorded.splitlines(keepends=True)[0]] * 3
        playing.stdout.close()


def test_one_process_is_not_processes(run):
    done = run("play", "single-training", "--speed", "500", "--duration", "100s")
    assert ": 1 process started; " in done.stdout


def test_an_empty_recording_is_a_failure(run, home):
    (home / "empty.jsonl").touch()
    assert run("replay", "empty.jsonl").returncode == 1
    assert run("replay", "gone.jsonl").stderr.startswith("error: cannot read gone.jsonl: No such file")
