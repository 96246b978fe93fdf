"""The client side of neuron-ls: what it loads, what it asks, what it makes of every kind of answer."""

from __future__ import annotations

import calendar
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neurontools import paths
from neurontools.commands import ls
from neurontools.machine import connection, render_client
from tests.support.waiting import wait_until

OWN = {
    "neurontools",
    "neurontools.commands",
    "neurontools.commands.ls",
    "neurontools.commands.ls.output",
    "neurontools.env",
    "neurontools.errors",
    "neurontools.machine",
    "neurontools.machine.render_client",
}
ALLOWED = OWN | {"neurontools.paths", "_socket"}
BANNED = {
    "rich", "torch", "yaml", "psutil", "asyncio", "argparse", "json", "typing", "dataclasses", "socket", "re", "pathlib",
    "enum", "logging", "importlib.metadata", "selectors",
}  # fmt: skip
NO_DRIVER = (
    'level=fatal msg="Failed to load MLA system information" error="failed to discover Neuron devices"\n'
)
REPORT = "import os, sys; os.write(2, ' '.join(sys.modules).encode())"


def modules(code, *options):
    run = subprocess.run(
        [sys.executable, *options, "-c", f"{code}\n{REPORT}"], capture_output=True, text=True, check=True
    )
    return set(run.stderr.split())


@pytest.mark.parametrize("words", [[], ["-w"], ["-a", "-t"], ["--json-output"]])
def test_a_plain_form_loads_only_the_socket_module_and_our_light_ones(stand_in, words):
    stand_in(b"0 3 0\nok\n")
    loaded = modules(f"from neurontools.commands.ls import main\nassert main({words!r}) == 0") - modules(
        "pass"
    )
    assert loaded <= ALLOWED
    assert not loaded & BANNED


def test_a_plain_form_loads_nothing_else_where_nothing_is_loaded_beforehand(stand_in, home):
    # Without site no .pth file has loaded anything; `import site` brings what `python -c pass` has without them.
    stand_in(b"0 3 0\nok\n")
    package = home / "path" / "neurontools"
    package.mkdir(parents=True)
    parts = {path.name: path for path in Path(paths.__file__).parent.iterdir()}
    for name, source in {**parts, "commands": Path(ls.__file__).parents[1]}.items():
        (package / name).symlink_to(source)
    code = f"import sys, site\nsys.path.insert(0, {str(package.parent)!r})\nfrom neurontools.commands.ls import main\nmain([])"
    loaded = modules(code, "-S") - modules("import site", "-S")
    assert loaded <= ALLOWED


def test_what_the_first_call_loads_to_start_a_machine_is_little():
    loaded = modules("import neurontools.commands.ls.forms, neurontools.machine.launch") - modules("pass")
    assert not loaded & {
        "argparse", "asyncio", "logging", "rich", "shutil", "ssl", "yaml",
        "neurontools.machine.events", "neurontools.machine.instances.catalogue", "neurontools.machine.snapshot",
    }  # fmt: skip


def test_what_a_daemon_loads_before_it_answers_is_little():
    starting = "import sys\nsys.modules['ssl'] = None\nimport neurontools.machine.daemon.daemon"
    loaded = modules(starting) - modules("pass")
    assert not loaded & {
        "argparse", "_ssl", "psutil", "shutil", "yaml",
        "neurontools.machine.instances.schema",
    }  # fmt: skip


def test_the_request_is_one_line_and_the_reply_is_printed_as_it_is(tool, stand_in, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_EMULATE", "2.28")
    daemon = stand_in(b"7 5 4\nout\n\nerr\n")
    run = tool("neuron-ls", "-aw", "--topology")
    assert (run.returncode, run.stdout, run.stderr) == (7, "out\n\n", "err\n")
    assert daemon.requests == [b"RENDER neuron-ls\x002.28\x00-aw\x00--topology\n"]


def test_the_machine_is_chosen_by_name(tool, stand_in, monkeypatch):
    stand_in(b"0 3 0\nno\n")
    stand_in(b"0 3 0\nci\n", machine="ci")
    monkeypatch.setenv("NEURONTOOLS_MACHINE", "ci")
    assert tool("neuron-ls").stdout == "ci\n"


def test_a_large_reply_in_pieces_is_complete(tool, stand_in):
    text = b"x" * 3_000_000
    stand_in(b"0 %d 0\n" % len(text) + text)
    assert tool("neuron-ls").stdout.encode() == text


def test_without_a_machine_it_says_what_the_real_tool_says_without_a_driver(tool):
    before = int(time.time())
    run = tool("neuron-ls", "-j")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.endswith(NO_DRIVER)
    stamp = run.stderr.removeprefix('time="').partition('"')[0]
    said = time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")
    assert before <= calendar.timegm(said) <= time.time()


@pytest.mark.parametrize("leftover", ["socket", "file", "directory"])
def test_what_a_dead_daemon_left_is_not_a_daemon(tool, leftover):
    path = Path(paths.socket_path("default"))
    path.parent.mkdir(parents=True, mode=0o700)
    if leftover == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif leftover == "file":
        path.write_text("")
    else:
        path.mkdir()
    run = tool("neuron-ls")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.endswith(NO_DRIVER)


@pytest.mark.parametrize("reply", [b"", b"0 1", b"0 10 0\nhalf", b"0 4 5\nfourfi"])
def test_a_daemon_that_ends_in_mid_reply_is_asked_once_more(stand_in, monkeypatch, capfd, reply):
    # The stand-in lives in this process, whose end would be awaited for ten seconds.
    awaited = []
    monkeypatch.setattr(connection, "wait_for_end", lambda pid, timeout_s: awaited.append(pid))
    daemon = stand_in(reply)
    assert ls.main([]) == 4
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == "error: neurond ended before its reply was complete\nhint: see 'neurond logs'\n"
    assert set(awaited) == {os.getpid()}
    assert [request.startswith(b"RENDER") for request in daemon.requests].count(True) == 2


@pytest.mark.parametrize(
    "reply",
    [
        b'{"jsonrpc":"2.0","error":{}}\n',
        b"0 -1 0\n\n",
        b"HTTP/1.1 400\r\n",
        b"x" * 500,
        b"\xff\xfe\n",
        b"1 2\nab",
    ],
)
def test_another_protocol_is_named(tool, stand_in, reply):
    stand_in(reply)
    run = tool("neuron-ls")
    assert (run.returncode, run.stdout) == (4, "")
    assert run.stderr.startswith("error: neurond speaks another protocol: ")
    assert run.stderr.endswith("hint: restart it: neurond restart\n")


def test_a_daemon_that_does_not_answer_is_named(stand_in, monkeypatch, capsys):
    stand_in(b"", hang=True)
    monkeypatch.setattr(render_client, "TIMEOUT_S", 0.05)
    assert ls.main([]) == 4
    assert "error: neurond of machine 'default' does not answer within 0.05 s" in capsys.readouterr().err


def test_a_socket_that_may_not_be_opened_is_named(monkeypatch, capsys):
    class Refusing:
        def __init__(self, *arguments):
            pass

        def connect(self, path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        def settimeout(self, timeout_s):
            pass

        close = staticmethod(lambda: None)

    monkeypatch.setattr(render_client._socket, "socket", Refusing)
    assert ls.main([]) == 4
    assert (
        capsys.readouterr().err
        == f"error: cannot reach neurond at {paths.socket_path('default')}: Permission denied\n"
        "hint: it may be another user's\n"
    )


def test_another_users_daemon_in_a_directory_that_was_not_chosen_is_refused(
    stand_in, monkeypatch, home, capsys
):
    monkeypatch.delenv("NEURONTOOLS_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    stand_in(b"0 5 0\ntrap\n")
    assert render_client.request([]) == (0, b"trap\n", b"")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    if os.geteuid() == 0:
        monkeypatch.setattr(render_client, "_ROOT", 54321)
    assert ls.main([]) == 4
    assert "belongs to uid" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_not_an_error(stand_in):
    text = b"x" * 3_000_000
    stand_in(b"0 %d 0\n" % len(text) + text)
    neuron_ls = str(Path(sys.executable).parent / "neuron-ls")
    with subprocess.Popen([neuron_ls], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_a_full_disk_is_an_error(stand_in):
    stand_in(b"0 3 0\nok\n")
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [str(Path(sys.executable).parent / "neuron-ls")], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert run.returncode == 1
    assert run.stderr == b"error: cannot write the output: No space left on device\n"


def test_without_a_standard_output_nothing_is_sent_to_the_daemon_instead(stand_in):
    daemon = stand_in(b"0 3 0\nok\n")
    command = f"exec {Path(sys.executable).parent / 'neuron-ls'} >&-"
    run = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, check=False)
    assert run.returncode == 1
    assert b"Bad file descriptor" in run.stderr
    assert daemon.requests == [b"RENDER neuron-ls\x002.32\n"]


def test_control_c_ends_it_quietly(stand_in):
    daemon = stand_in(b"", hang=True)
    neuron_ls = str(Path(sys.executable).parent / "neuron-ls")
    with subprocess.Popen([neuron_ls], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: daemon.requests)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"")
        assert process.returncode == 130


@pytest.mark.parametrize("flag", ["-h", "--help", "-wh"])
def test_help_has_examples_and_starts_nothing(tool, flag, home):
    run = tool("neuron-ls", flag)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("usage: neuron-ls ")
    assert "--show-all-procs" in run.stdout
    assert "examples:\n  neuron-ls\n" in run.stdout
    assert not (home / "run").exists()


@pytest.mark.parametrize(("flag", "name"), [("--badflag", "badflag"), ("-x", "x"), ("-wjx", "x")])
def test_an_unknown_flag_is_reported_on_stdout_without_any_machine(tool, flag, name):
    run = tool("neuron-ls", flag)
    assert (run.returncode, run.stdout, run.stderr) == (
        1,
        f"unknown flag `{name}'\n",
        "hint: see 'neuron-ls --help'\n",
    )


def test_a_misspelt_flag_of_ours_is_suggested_on_stderr(tool):
    run = tool("neuron-ls", "--macine", "x")
    assert (run.returncode, run.stdout, run.stderr) == (
        1,
        "unknown flag `macine'\n",
        "hint: did you mean '--machine'?\n",
    )


def test_the_parser_for_completion_knows_every_flag():
    options = {text for action in ls.build_parser()._actions for text in action.option_strings}
    assert {"-w", "-a", "-t", "-j", "--wide", "--show-all-procs", "--topology", "--json-output"} <= options


def test_json_is_what_a_client_reads(tool, stand_in, make):
    from neurontools.machine.listing.text import render

    out = render(make("trn1.32xlarge"), ["-j"], "2.32")[1]
    stand_in(b"0 %d 0\n" % len(out) + out)
    assert sum(device["nc_count"] for device in json.loads(tool("neuron-ls", "--json-output").stdout)) == 32
