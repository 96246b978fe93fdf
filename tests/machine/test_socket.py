"""The daemon's socket: who may come, what happens to nonsense, big things and slow readers."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools import paths
from neurontools.errors import DaemonError, NeuronToolsError, NoMachineError
from neurontools.machine import protocol, render_client
from neurontools.machine.client import Client
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions
from neurontools.machine.protocol import OtherVersionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from neurontools.machine.machine_config import DaemonInfo

pytestmark = pytest.mark.usefixtures("daemon")


def test_only_its_user_can_reach_the_socket(daemon: DaemonInfo) -> None:
    for path in (paths.runtime_dir(), paths.machine_dir("default"), paths.pages_dir("default")):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert not os.stat(daemon.socket).st_mode & 0o077


def test_hello_tells_versions_and_comes_first(line: Callable[[], Any]) -> None:
    connection = line()
    assert "hello" in connection.call("describe")["error"]["message"]
    answer = connection.hello()["result"]
    assert (answer["protocol"], answer["machine"], answer["registered"]) == (1, "default", None)
    assert connection.call("describe")["result"]["core_count"] == 32


def test_another_protocol_version_names_both_and_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neurontools.machine.connection.PROTOCOL_VERSION", 7)
    for use in (Client.connect, lambda: start(StartOptions(machine="default"))):
        with pytest.raises(OtherVersionError, match=r"speaks protocol 1 .*speaks 7") as caught:
            use()
        assert caught.value.remedy == "restart it: neurond restart"


def test_unknown_methods_and_parameters_get_an_error(line: Callable[[], Any]) -> None:
    connection = line()
    connection.hello()
    assert connection.call("reboot")["error"]["code"] == protocol.ErrorCode.UNKNOWN_METHOD
    assert connection.call("describe", more=1)["error"]["code"] == protocol.ErrorCode.INVALID_PARAMS
    assert connection.call("watch", period_s=0)["error"]["code"] == protocol.ErrorCode.INVALID_PARAMS
    assert (
        connection.call("reserve", core="0", total_bytes=1)["error"]["message"]
        == "parameter 'core': expected int, got str"
    )


def test_a_line_of_two_megabytes_gets_an_error_and_the_next_one_an_answer(line: Callable[[], Any]) -> None:
    connection = line()
    connection.send(b'{"x":"' + b"y" * 2_000_000 + b'"}\n')
    assert "1048576 bytes" in connection.receive()["error"]["message"]
    assert connection.hello()["result"]["machine"] == "default"


def test_a_request_without_an_id_gets_no_answer(line: Callable[[], Any]) -> None:
    connection = line()
    connection.hello()
    connection.send(b'{"jsonrpc":"2.0","method":"describe"}\n')
    connection.send(b'{"jsonrpc":"2.0","method":"describe","id":"last"}\n')
    assert connection.receive()["id"] == "last"


def test_requests_in_one_piece_are_answered_in_turn(line: Callable[[], Any]) -> None:
    connection = line()
    connection.hello()
    many = [{"jsonrpc": "2.0", "method": "describe", "id": number} for number in range(50)]
    connection.send(b"".join(json.dumps(each).encode() + b"\n" for each in many))
    assert [connection.receive()["id"] for _ in many] == list(range(50))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=6,
)
method_names = st.sampled_from(
    ["hello", "describe", "snapshot", "watch", "register", "reserve", "unregister"]
)
param_names = st.sampled_from(
    ["protocol", "client", "period_s", "cores", "count", "core", "total_bytes", "tag"]
)
requests = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "id": st.integers(0, 9),
        "method": method_names | st.text(),
        "params": st.dictionaries(param_names | st.text(), json_values, max_size=4),
    }
).map(lambda request: json.dumps(request).encode() + b"\n")
noise = st.binary(max_size=200) | st.binary(max_size=50).map(lambda data: b"RENDER " + data + b"\n")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(noise | requests, max_size=12))
def test_no_bytes_harm_the_daemon(daemon: DaemonInfo, pieces: list[bytes]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
        rude.connect(daemon.socket)
        rude.sendall(protocol.request_line(1, "hello", {"protocol": 1, "client": "rude"}))
        with suppress(BrokenPipeError, ConnectionResetError):  # dropped after 100 invalid lines
            for piece in pieces:
                rude.sendall(piece)
    with Client.connect() as client:
        assert client.call("describe")["pid"] == daemon.pid
        client.unregister()
    assert "Traceback" not in Path(daemon.log).read_text()


def test_a_watcher_gets_a_snapshot_at_once_and_then_one_each_period(client: Client) -> None:
    stream = client.watch(0.05)
    taken = [next(stream).taken_ns for _ in range(3)]
    assert taken == sorted(set(taken))
    stream.close()  # type: ignore[attr-defined]


def test_a_watcher_that_never_reads_is_dropped(
    line: Callable[[], Any], daemon: DaemonInfo, wait_until: Callable[..., None]
) -> None:
    connection = line()
    connection.hello()
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    many = b'{"jsonrpc":"2.0","method":"snapshot","id":1}\n' * 100_000
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.send(many)
    with Client.connect() as client:
        wait_until(lambda: client.call("describe")["client_count"] == 1)
    assert "does not read" in Path(daemon.log).read_text()


def test_a_client_that_sends_and_shuts_down_still_gets_its_answer(daemon: DaemonInfo) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(daemon.socket)
        sock.sendall(protocol.request_line(1, "hello", {"protocol": 1, "client": "nc"}))
        sock.sendall(protocol.request_line(2, "snapshot", {}))
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert len(answer.splitlines()) == 2


OTHER_USER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":1,"client":"x"}}\\n')
print(sock.recv(65536).decode())
"""
NAMESPACES = ("unshare", "-rfpm", "--mount-proc")
needs_namespaces = pytest.mark.skipif(
    subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode != 0,
    reason="the kernel refuses new pid and mount namespaces here",
)
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@needs_root
def test_another_user_is_refused_even_with_open_directories(daemon: DaemonInfo, home: Path) -> None:
    for path in (home, home / "run", home / "run" / "default"):
        path.chmod(0o755)
    os.chmod(daemon.socket, 0o777)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_USER, daemon.socket], capture_output=True, text=True, check=True
    )
    error = json.loads(done.stdout)["error"]
    assert error["code"] == protocol.ErrorCode.PEER_REFUSED
    assert error["message"] == "uid 65534 may not use a machine of uid 0"


@needs_root
def test_a_socket_of_another_user_is_not_used(home: Path) -> None:
    listener = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sock = socket.socket(socket.AF_UNIX); sock.bind(sys.argv[1]); sock.listen()
print("ready", flush=True); sys.stdin.read()
"""
    directory = home / "run" / "theirs"
    directory.mkdir(mode=0o700)
    for path in (home, home / "run"):
        path.chmod(0o755)
    os.chown(directory, 65534, 65534)
    command = [sys.executable, "-c", listener, str(directory / "neurond.sock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(DaemonError, match="belongs to uid 65534"):
            Client.connect("theirs")
        other.communicate()


@needs_namespaces
def test_a_process_of_another_pid_namespace_may_look_but_not_claim(client: Client) -> None:
    code = (
        "from neurontools.machine.client import Client\n"
        "client = Client.connect()\n"
        "print(len(client.snapshot().devices))\n"
        "client.register(count=1)\n"
    )
    done = subprocess.run(
        [*NAMESPACES, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "16\n"
    assert "another pid namespace" in done.stderr
    assert not client.snapshot().processes


def test_a_client_without_a_machine_says_how_to_start_it() -> None:
    with pytest.raises(NoMachineError, match="no machine 'ci' is running") as caught:
        Client.connect("ci")
    assert caught.value.remedy == "start it: neurond start --machine ci"
    assert caught.value.exit_code == 3


def test_rendered_text_comes_without_a_hello(line: Callable[[], Any]) -> None:
    reply = render_client.request([], "default")
    assert reply is not None
    code, out, err = reply
    assert (code, err) == (0, b"")
    assert b"trn1.32xlarge" in out
    connection = line()
    connection.send(protocol.RENDER + b"neuron-dig\x002.32\n")
    expected = b"error: neurond does not render 'neuron-dig'\n"
    assert connection.file.readline() == b"1 0 %d\n" % len(expected)
    assert connection.file.readline() == expected


def test_a_silent_daemon_is_named_and_the_cure(daemon: DaemonInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    monkeypatch.setattr("neurontools.machine.connection.ANSWER_TIMEOUT_S", 0.2)
    with Client.connect() as client:
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            with pytest.raises(NeuronToolsError, match="does not answer") as caught:
                client.snapshot()
            assert caught.value.remedy == "restart it: neurond restart"
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert client.snapshot().machine == "default"
