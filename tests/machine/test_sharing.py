"""A machine that a group shares: real second users, by setuid children. The numbers stand for nobody here."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools import doctor, paths
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import DaemonInfo, StartOptions
from neurontools.machine.sharing import RECORD_MODE, group_id, make_closed, make_shared_root, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Tool = Callable[..., subprocess.CompletedProcess[str]]
    Wait = Callable[[Callable[[], bool]], None]

GROUP = 47110815
MEMBER, OTHER_MEMBER, OUTSIDER = 65534, 65533, 65532

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")

# The interpreter itself may lie where only root can read it, so everything is imported before root is given up.
PRELOAD = """
import argparse, asyncio, datetime, difflib, encodings.ascii, fractions, gettext, importlib, json, logging.handlers, os, pkgutil, shutil
import sys, time, yaml
from neurontools import machine
from neurontools.base import files, locks, procfs, text, units
for module in pkgutil.iter_modules(machine.__path__):
    importlib.import_module(f"neurontools.machine.{module.name}")
from neurontools.commands import console, ls, neurond, parsing
from neurontools.commands.ls import forms
from neurontools.machine.instances import catalogue
from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.pages.page import PageWriter
from neurontools import doctor
def become(uid, groups):
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
"""
BECOME = PRELOAD + "become(int(sys.argv[1]), [int(gid) for gid in sys.argv[2].split(',') if gid])\n"

JOB = """
client = Client.connect()
place = client.register("job", "python job.py", count=2, runtime_version="2.1")
writer = PageWriter(place.page_fd)
for number in range(5):
    writer.begin(0, -1)
    writer.end(0, 0, 1000, 1, 0)
client.reserve(place.cores[0], 1 << 30)
print(json.dumps([os.getpid(), place.cores]), flush=True)
for word in sys.stdin:
    if word == "free\\n":
        client.reserve(place.cores[0], 0)
    elif word == "see\\n":
        client.snapshot()
    print("done", flush=True)
"""


# Process 1 of a pid namespace whose /proc hides what is another user's: a daemon of one user, a client of another.
HIDING = """
import subprocess
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
(uid, other), group, directory = (65534, 65533), int(sys.argv[1]), os.environ["NEURONTOOLS_RUNTIME_DIR"]
ready, tell = os.pipe()
if os.fork() == 0:
    become(uid, [group])
    os.environ["NEURONTOOLS_RUNTIME_DIR"] = share(directory, str(group))
    launch._serve_here(launch.StartOptions("default", foreground=True), lambda: os.write(tell, b"."))
os.read(ready, 1)
if os.fork() == 0:
    become(other, [group])
    with Client.connect() as client:
        print(launch.find("default").pid, client.snapshot().instance_type, flush=True)
        sys.exit(console.run(lambda: client.register(count=1)))
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


class Person:
    """A process of another user that runs some code."""

    def __init__(self, uid: int, groups: tuple[int, ...], code: str, before: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + BECOME + code, str(uid), ",".join(map(str, groups))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def say(self, word: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.line()

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out, err


@pytest.fixture
def people() -> Iterator[Callable[..., Person]]:
    made: list[Person] = []

    def make(uid: int, code: str, groups: tuple[int, ...] = (GROUP,), before: str = "") -> Person:
        made.append(Person(uid, groups, code, before))
        return made[-1]

    yield make
    for person in made:
        person.process.kill()
        person.process.communicate()


@pytest.fixture
def open_dir(monkeypatch: pytest.MonkeyPatch, wait_until: Wait) -> Iterator[Path]:
    """A directory that everybody can reach; machines in its `run` are ended afterwards."""
    path = Path(tempfile.mkdtemp(prefix="nt-open-", dir="/tmp"))
    path.chmod(0o755)
    monkeypatch.setenv("NEURONTOOLS_RUNTIME_DIR", str(path / "run"))
    yield path
    infos = launch.list_machines()
    for info in infos:
        os.kill(info.pid, signal.SIGKILL)
    wait_until(lambda: not launch.list_machines())
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def shared(open_dir: Path, tool: Tool) -> DaemonInfo:
    """A trn1.32xlarge that root shares with the group."""
    done = tool(
        "neurond",
        "start",
        "--group",
        str(GROUP),
        "--dir",
        str(open_dir / "run"),
        "--instance",
        "trn1.32xlarge",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == f"group {GROUP} uses it with NEURONTOOLS_RUNTIME_DIR={open_dir}/run"
    return launch.find("default")


def command(name: str, *words: str) -> str:
    return f"sys.exit({name}.main({list(words)!r}))"


def test_a_closed_directory_is_closed_before_its_mode_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    monkeypatch.setattr(os, "chmod", lambda path, _: modes.append(stat.S_IMODE(os.stat(path).st_mode)))
    before = os.umask(0)
    try:
        make_closed(str(tmp_path / "closed"))
    finally:
        os.umask(before)
    assert modes == [0o700]


@needs_root
def test_modes_let_in_the_group_and_no_other_user(shared: DaemonInfo, people: Any) -> None:
    job = people(MEMBER, JOB)
    job.line()
    root = Path(paths.runtime_dir())
    modes = {
        str(path.relative_to(root)): (stat.S_IMODE(path.lstat().st_mode) & 0o777, path.lstat().st_gid)
        for path in [root, *root.rglob("*")]
        if path.suffix not in {".page", ".json"} or path.name == "neurond.json"
    }
    readable = {name: mode for name, (mode, gid) in modes.items() if mode & 0o077}
    assert readable == {
        ".": 0o750,
        ".group": 0o640,
        "default": 0o750,
        "default/neurond.json": 0o640,
        "default/neurond.sock": 0o660,
    }
    assert {modes[name][1] for name in readable} == {GROUP}
    assert not any(stat.S_IMODE(page.stat().st_mode) & 0o077 for page in root.rglob("pages/*"))


@needs_root
def test_a_member_claims_cores_writes_a_page_and_reserves_memory(
    shared: DaemonInfo, people: Any, wait_until: Wait
) -> None:
    job = people(MEMBER, JOB)
    pid, cores = json.loads(job.line())
    other = people(OTHER_MEMBER, JOB)
    _, others_cores = json.loads(other.line())
    assert not set(cores) & set(others_cores)
    with Client.connect() as client:
        before = {process.uid: process for process in client.snapshot().processes}
        assert {MEMBER, OTHER_MEMBER} == set(before)
        assert (before[MEMBER].pid, before[MEMBER].command, before[MEMBER].cores[0].executions) == (
            pid,
            "python job.py",
            5,
        )
        assert client.snapshot().devices[0].memory_used_bytes == 1 << 30
        job.say("free")
        assert client.snapshot().devices[0].memory_used_bytes == 0
        job.process.kill()
        wait_until(lambda: [process.uid for process in client.snapshot().processes] == [OTHER_MEMBER])


def open_pages(pid: int) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [path for path in found if ".page" in path]


GREEDY = """
client = Client.connect()
place = client.register("job", "python job.py", count=1)
page_bytes = os.fstat(place.page_fd).st_size
{grow}
print(page_bytes, flush=True)
for word in sys.stdin:
    size = os.fstat(place.page_fd)
    print(size.st_size == page_bytes and size.st_blocks * 512 < 1 << 20, flush=True)
    if word == "again\\n":
        print(console.run(lambda: client.register(count=1)), flush=True)
"""


@needs_root
@pytest.mark.parametrize(
    "grow",
    [
        "os.pwrite(place.page_fd, bytes(1 << 26), page_bytes)",
        "os.truncate(place.page_fd, 1 << 40)",
        "os.pwrite(place.page_fd, bytes(1 << 26), page_bytes); client.unregister()",
    ],
)
def test_a_member_cannot_fill_the_owner_s_disk(
    shared: DaemonInfo, people: Any, wait_until: Wait, grow: str
) -> None:
    job = people(MEMBER, GREEDY.format(grow=grow))
    assert int(job.line()) < 1 << 16
    wait_until(lambda: job.say("cut?") == "True\n")
    wait_until(lambda: "wrote beyond its telemetry page" in Path(shared.log).read_text())
    with Client.connect() as client:
        wait_until(lambda: client.snapshot().processes == ())
        assert job.say("again") == "True\n"
        assert job.line() == "4\n"
        other = people(OTHER_MEMBER, JOB)
        assert json.loads(other.line())
        assert f"uid {MEMBER} wrote beyond a telemetry page" in job.end()[2]
        other.process.kill()
        other.process.wait()
        wait_until(lambda: not client.snapshot().processes)
    wait_until(lambda: not open_pages(shared.pid))


HOARD = """
import contextlib, socket
from neurontools import paths
connections = []
while True:
    connections.append(socket.socket(socket.AF_UNIX))
    connections[-1].connect(paths.socket_path("default"))
    with contextlib.suppress(BrokenPipeError):  # refused already
        connections[-1].sendall(b'{"jsonrpc":"2.0","id":1,"method":"describe"}\\n')
    answer = connections[-1].makefile().readline()
    if "the most for one user" in answer:
        break
print(len(connections), answer.strip(), flush=True)
for word in sys.stdin:
    connections[0].close()
    print(console.run(lambda: ls.main([])), flush=True)
"""


@needs_root
def test_a_member_cannot_use_up_the_connections(shared: DaemonInfo, people: Any) -> None:
    resource.prlimit(shared.pid, resource.RLIMIT_NOFILE, (120, 120))
    member = people(MEMBER, HOARD)
    number, answer = member.line().split(" ", 1)
    assert number == "11"
    assert json.loads(answer)["error"]["message"].startswith(f"uid {MEMBER} has 10 connections")
    code, _, error = people(MEMBER, command("ls")).end()
    assert (code, error) == (
        4,
        f"error: uid {MEMBER} has 10 connections to this machine, the most for one user\n",
    )
    assert people(OTHER_MEMBER, command("ls")).end()[0] == 0
    with Client.connect() as client:
        assert client.snapshot().instance_type == "trn1.32xlarge"
    member.say("close one")
    assert people(MEMBER, command("ls")).end()[0] == 0


@needs_root
def test_a_member_sees_what_the_owner_sees(shared: DaemonInfo, people: Any, tool: Tool) -> None:
    assert people(MEMBER, command("ls", "-j")).end() == (0, tool("neuron-ls", "-j").stdout, "")
    code, out, _ = people(MEMBER, command("neurond", "status", "--json")).end()
    assert (code, json.loads(out)["daemon"]) == (0, shared.to_json())
    assert json.loads(out)["daemon"]["group"] == str(GROUP)
    watched = people(MEMBER, "print(next(Client.connect().watch(0.1)).instance_type)").end()
    assert watched == (0, "trn1.32xlarge\n", "")
    assert (
        f"group     {GROUP}, with NEURONTOOLS_RUNTIME_DIR={paths.runtime_dir()}\n"
        in tool("neurond", "status").stdout
    )


@needs_root
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("stop",), 4, "may not stop machine 'default': only its owner, uid 0, and root may"),
        (("stop", "--force"), 4, "only the owner of machine 'default', uid 0, and root may stop it"),
        (("restart",), 4, "belong to uid 0, who alone can start them"),
        (("start", "--machine", "mine"), 4, "belong to uid 0, who alone can start them"),
        (("status", "--machine", "other"), 3, "no machine 'other' is running in /tmp/"),
        (("logs",), 1, "Permission denied"),
    ],
)
def test_a_member_may_not_change_the_machine_for_all(
    shared: DaemonInfo, people: Any, words: tuple[str, ...], code: int, said: str
) -> None:
    done = people(MEMBER, command("neurond", *words)).end()
    assert (done[0], done[1]) == (code, "")
    assert said in done[2].splitlines()[0]
    assert done[2].splitlines()[1].startswith("hint: ")
    assert launch.find("default").pid == shared.pid


@needs_root
@pytest.mark.parametrize("words", [("ls",), ("neurond", "status"), ("neurond", "stop", "--force")])
def test_outside_of_the_group_there_is_nothing_to_connect_to(
    shared: DaemonInfo, people: Any, words: Any
) -> None:
    code, out, err = people(OUTSIDER, command(*words), groups=(1,)).end()
    assert code == 4
    assert out == ""
    assert err.startswith("error: ")
    assert f"hint: only members of group {GROUP} may use it; unset NEURONTOOLS_RUNTIME_DIR" in err
    raw = f"import socket; socket.socket(socket.AF_UNIX).connect({shared.socket!r})"
    assert "PermissionError" in people(OUTSIDER, raw, groups=()).end()[2]


@needs_root
def test_a_member_can_not_speak_for_another_process(shared: DaemonInfo, people: Any) -> None:
    job = people(MEMBER, JOB)
    pid, (core, _) = json.loads(job.line())
    theft = f"Client.connect().call('register', pid={pid}, count=1)"
    assert f"can't register process {pid}" in people(OTHER_MEMBER, theft).end()[2]
    theft = f"Client.connect().call('reserve', core={core}, total_bytes=1)"
    assert "is not registered" in people(OTHER_MEMBER, theft).end()[2]
    with Client.connect() as client:
        assert client.snapshot().devices[0].memory_used_bytes == 1 << 30


@needs_root
def test_members_jobs_outlive_the_daemon_and_only_the_owner_starts_another(
    shared: DaemonInfo, people: Any, end_daemon: Callable[[DaemonInfo], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = people(MEMBER, JOB)
    _, cores = json.loads(job.line())
    end_daemon(shared)
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    _, _, err = people(OTHER_MEMBER, "console.run(launch.ensure_running)").end()
    assert err.splitlines() == [
        f"error: no machine 'default' is running in {paths.runtime_dir()}",
        "hint: only uid 0, who shares that directory, can start it; unset NEURONTOOLS_RUNTIME_DIR to use your own",
    ]
    launch.ensure_running()
    assert launch.find("default").group == str(GROUP)
    assert job.say("see") == "done\n"
    with Client.connect() as client:
        (process,) = client.snapshot().processes
        assert (process.uid, [use.core for use in process.cores], process.stale) == (MEMBER, cores, False)


@needs_root
def test_a_deleted_shared_directory_is_shared_again(shared: DaemonInfo, people: Any) -> None:
    shutil.move(paths.runtime_dir(), paths.runtime_dir() + "-gone")
    launch.ensure_running()
    assert paths.shared(paths.runtime_dir()) == (0, GROUP)
    assert people(MEMBER, command("ls")).end()[0] == 0
    assert launch.find("default").pid == shared.pid


@needs_root
def test_a_user_who_is_not_root_shares_and_root_may_stop_it(open_dir: Path, people: Any, tool: Tool) -> None:
    os.chown(open_dir, MEMBER, MEMBER)
    words = ("start", "--foreground", "--group", str(GROUP), "--dir", str(open_dir / "run"))
    owner = people(MEMBER, command("neurond", *words))
    for said in owner.process.stderr:
        if "is ready" in said:
            break
    job = people(OTHER_MEMBER, JOB)
    json.loads(job.line())
    with Client.connect() as client:
        (process,) = client.snapshot().processes
        assert (process.uid, process.cores[0].executions) == (OTHER_MEMBER, 5)
    assert "holds" in tool("neurond", "stop").stderr
    job.process.kill()
    job.process.wait()
    assert tool("neurond", "restart").returncode == 4
    assert tool("neurond", "stop", "--force").returncode == 0
    assert owner.process.wait(20) == 0


@needs_root
def test_who_is_not_a_member_can_not_share_with_the_group(open_dir: Path, people: Any) -> None:
    os.chown(open_dir, MEMBER, MEMBER)
    words = ("start", "--group", str(GROUP), "--dir", str(open_dir / "run"))
    code, _, err = people(MEMBER, command("neurond", *words), groups=(1,)).end()
    assert code == 1
    assert f"is not a member of group {GROUP}" in err
    assert not (open_dir / "run").exists()


@needs_root
def test_where_proc_hides_others_a_member_may_look_but_not_claim(open_dir: Path) -> None:
    os.chown(open_dir, MEMBER, MEMBER)
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("making a pid namespace is refused here")
    code = PRELOAD + "from neurontools.machine.sharing import share" + HIDING
    done = subprocess.run(
        [*words, sys.executable, "-c", code, str(GROUP)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.split() == ["3", "trn1.2xlarge"]
    assert "(hidepid), so its exit cannot be detected; it may read but not claim cores\nhint: " in done.stderr
    assert done.returncode == 4


@needs_root
def test_a_member_s_programs_run_on_the_machine(shared: DaemonInfo, people: Any) -> None:
    code = """
runtime = Runtime.open(tag="shared")
runtime.allocate(0, 4096)
(process,) = Client.connect().snapshot().processes
print(process.uid, process.tag, len(runtime.cores), process.command != "")
runtime.close()
"""
    done = people(
        MEMBER,
        "from neurontools.machine.client import Client" + code,
        before="from neurontools.runtime.session import Runtime\n",
    ).end()
    assert done == (0, f"{MEMBER} shared 32 True\n", "")


@needs_root
def test_doctor_knows_a_shared_directory(shared: DaemonInfo, people: Any) -> None:
    said = people(MEMBER, "check = doctor._runtime_dir(); print(check.ok, check.detail)").end()[1]
    assert said == f"True {paths.runtime_dir()}, shared by uid 0\n"
    owners = doctor._runtime_dir()
    assert (owners.ok, owners.detail) == (True, paths.runtime_dir())


OWN_GROUP = os.getgid()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--group", "no-such-group", "--dir", "x"], 1, "error: there is no group 'no-such-group'\n"),
        (["--group", "4294967295", "--dir", "x"], 1, "error: there is no group '4294967295'\n"),
        (["--group", str(OWN_GROUP)], 2, "error: --group needs --dir\n"),
        (["--dir", "x"], 2, "error: --dir needs --group\n"),
        (["--group", str(OWN_GROUP), "--dir", ""], 2, "error: --dir is empty\n"),
    ],
)
def test_what_is_wrong_with_the_flags_is_reported(tool: Tool, words: list[str], code: int, said: str) -> None:
    done = tool("neurond", "start", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert "\nhint: " in done.stderr
    assert launch.list_machines() == ()


def test_names_and_numbers_are_groups() -> None:
    import grp

    entry = grp.getgrgid(OWN_GROUP)
    assert group_id(entry.gr_name) == group_id(str(entry.gr_gid)) == OWN_GROUP
    assert group_id("4294967294") == 4294967294


def refused(directory: Path, group: int = OWN_GROUP) -> str:
    with pytest.raises(NeuronToolsError) as caught:
        share(str(directory), str(group))
    assert caught.value.remedy
    return caught.value.message


def test_private_directories_are_not_shared(
    open_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "private directory" in refused(home / "state/neurontools/x")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(open_dir / "xdg"))
    assert "private directory" in refused(open_dir / "xdg/run")
    closed = open_dir / "closed"
    closed.mkdir(mode=0o700)
    closed.chmod(0o600)
    assert "is private (mode 600)" in refused(closed / "run")
    used = open_dir / "used"
    used.mkdir(mode=0o700)
    (used / "default").mkdir()
    assert "it is private" in refused(used)
    (open_dir / "link").symlink_to(closed)
    assert "not a real directory" in refused(open_dir / "link")
    assert "does not exist" in refused(open_dir / "no/such")
    (open_dir / "file").write_text("")
    assert "not a real directory" in refused(open_dir / "file")


def test_a_directory_has_one_group_and_is_found_again(open_dir: Path) -> None:
    directory = share(str(open_dir / "run"), str(OWN_GROUP))
    assert paths.shared(directory) == (os.getuid(), OWN_GROUP)
    assert share(directory, str(OWN_GROUP)) == directory
    assert paths.ensure_private(directory) == directory
    if os.geteuid() == 0:
        assert "is shared with group" in refused(open_dir / "run", GROUP)


@pytest.mark.parametrize("mode", [0o2770, 0o2751, 0o750, 0o755, 0o2755, 0o6750])
def test_only_the_exact_mode_and_the_mark_make_a_shared_directory(open_dir: Path, mode: int) -> None:
    directory = Path(share(str(open_dir / "run"), str(OWN_GROUP)))
    directory.chmod(mode)
    assert paths.shared(str(directory)) is None
    with pytest.raises(NeuronToolsError, match="others can enter it"):
        paths.ensure_private(str(directory))
    directory.chmod(0o2750)
    paths.ensure_private(str(directory))
    for wrong in (b"", b"0x1", b"%d" % (OWN_GROUP + 1)):
        (directory / paths.GROUP_MARK).write_bytes(wrong)
        with pytest.raises(NeuronToolsError, match="others can enter it"):
            paths.ensure_private(str(directory))
    (directory / paths.GROUP_MARK).unlink()
    with pytest.raises(NeuronToolsError, match="others can enter it"):
        launch.start(StartOptions("default"))


@needs_root
def test_the_mark_of_another_user_does_not_count(open_dir: Path) -> None:
    directory = Path(share(str(open_dir / "run"), str(GROUP)))
    os.chown(directory / paths.GROUP_MARK, MEMBER, GROUP)
    assert paths.shared(str(directory)) is None
    os.chown(directory, MEMBER, GROUP)
    directory.chmod(0o2750)
    assert paths.shared(str(directory)) == (MEMBER, GROUP)
    with pytest.raises(NeuronToolsError, match=f"it belongs to uid {MEMBER}"):
        paths.ensure_private(str(directory))
    assert paths.state_dir() != f"{directory}/state"


def test_a_path_that_is_too_long_for_a_shared_socket_is_refused(
    open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = share(str(open_dir / ("long" * 25)), str(OWN_GROUP))
    monkeypatch.setenv("NEURONTOOLS_RUNTIME_DIR", directory)
    with pytest.raises(NeuronToolsError, match="too long for a socket that is shared"):
        launch.start(StartOptions("default"))


def test_the_flags_are_checked_in_the_library_too() -> None:
    with pytest.raises(UsageError):
        share("", str(OWN_GROUP))


def test_the_group_can_read_the_mark_of_a_shared_directory_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_shared_root(str(tmp_path / "shared"), os.getgid())
    finally:
        os.umask(before)
    mark = tmp_path / "shared" / paths.GROUP_MARK
    assert (stat.S_IMODE(mark.stat().st_mode), mark.read_text()) == (RECORD_MODE, f"{os.getgid()}\n")
