"""Host files at their real paths: every program under neuron-run sees its machine's, and nothing else changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.compat import host_files
from neurontools.machine import launch
from neurontools.machine.launch import StartOptions

HAS_COMPILER = any(map(shutil.which, ("g++", "clang++")))
COUNTER = "/sys/devices/virtual/neuron_device/neuron0/neuron_core0/stats/other_info/inference_count/total"

LOOK = """
import glob, os, pathlib, stat
node = os.stat("/dev/neuron1")
print(sorted(glob.glob("/dev/neuron*")), [name for name in sorted(os.listdir("/dev")) if name.startswith("neuron")])
print(sorted(entry.name for entry in os.scandir("/dev") if entry.name.startswith("neuron")))
print(sorted(name for top, _, names in os.walk("/dev") for name in names if top == "/dev" and name[:6] == "neuron"))
print(stat.S_ISCHR(node.st_mode), os.major(node.st_rdev), os.minor(node.st_rdev), os.access("/dev/neuron1", os.W_OK))
print([line for line in open("/proc/devices") if "neuron" in line])
print(pathlib.Path("/sys/devices/virtual/dmi/id/product_name").read_text().strip(), os.path.exists("/dev/neuron9"))
print("neuron_device" in os.listdir("/sys/class"), os.path.realpath("/sys/class/neuron_device/neuron1"))
print(pathlib.Path("/sys/class/neuron_device/neuron1/core_count").read_text())
print(os.path.islink("/sys/class/neuron_device/neuron1"), os.path.exists("/sys/class/neuron_device/../net"))
"""
SEEN = """['/dev/neuron0', '/dev/neuron1'] ['neuron0', 'neuron1']
['neuron0', 'neuron1']
['neuron0', 'neuron1']
True 246 1 True
['246 neuron\\n']
inf2.24xlarge False
True /sys/devices/virtual/neuron_device/neuron1
2
True True
"""

SHELL = {
    "ls /dev | grep neuron": "neuron0\nneuron1\n",
    "echo /dev/neuron*": "/dev/neuron0 /dev/neuron1\n",
    "ls -l /dev/neuron1 | cut -c1-10": "crw-rw-rw-\n",
    "stat -c '%F %t %T %U' /dev/neuron1": "character special file f6 1 root\n",
    "test -c /dev/neuron0 && test -r /dev/neuron0 && echo yes": "yes\n",
    "grep neuron /proc/devices": "246 neuron\n",
    "cat /sys/devices/virtual/dmi/id/product_name": "inf2.24xlarge\n",
    "find /sys/class /dev -maxdepth 1 -name 'neuron*' | sort": "/dev/neuron0\n/dev/neuron1\n/sys/class/neuron_device\n",
    "find /sys/class/neuron_device -type l | wc -l": "2\n",
    "cd /sys/class/neuron_device/neuron1 && cat core_count && echo": "2\n",
    "cd /dev && ls -d neuron* && cat ../sys/class/neuron_device/neuron0/dev": "neuron0\nneuron1\n246:0\n",
    "cd / && cat sys/class/neuron_device/neuron0/dev": "246:0\n",
    "readlink /sys/class/neuron_device/neuron0": "../../devices/virtual/neuron_device/neuron0\n",
    "realpath /sys/class/neuron_device/neuron0": "/sys/devices/virtual/neuron_device/neuron0\n",
    "cat //sys//class/./neuron_device/neuron0/dev /sys/class/net/../neuron_device/neuron1/dev": "246:0\n246:1\n",
    "ls /sys/class/neuron_device/neuron7 2>/dev/null || echo none": "none\n",
    "/opt/aws/neuron/bin/neuron-ls | head -1": "instance-type: inf2.24xlarge\n",
}

C_PROGRAM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
static int is_neuron(const struct dirent *entry) { return !strncmp(entry->d_name, "neuron", 6); }
int main(void) {
    struct stat node, opened;
    struct dirent **names;
    glob_t found;
    char text[64] = "";
    stat("/dev/neuron1", &node);
    int file = open("/dev/neuron1", O_RDWR);
    fstat(file, &opened);
    printf("%d %d %d\n", S_ISCHR(node.st_mode), major(node.st_rdev), minor(opened.st_rdev));
    glob("/dev/neuron*", 0, NULL, &found);
    printf("%d %zu\n", scandir("/dev", &names, is_neuron, alphasort), found.gl_pathc);
    int directory = open("/dev", O_RDONLY | O_DIRECTORY), count = 0;
    printf("%d\n", faccessat(directory, "neuron0", R_OK, 0));
    DIR *list = fdopendir(directory);
    for (int turn = 0; turn < 2; turn++, rewinddir(list))
        for (struct dirent *entry; (errno = 0, entry = readdir(list));) count += is_neuron(entry);
    printf("%d %d\n", count, errno);
    closedir(list);
    FILE *product = fopen("/sys/devices/virtual/dmi/id/product_name", "r");
    fgets(text, sizeof text, product);
    fputs(text, stdout);
    return 0;
}
"""
SEEN_BY_C = "1 246 1\n2 2\n0\n4 0\ninf2.24xlarge\n"


@pytest.fixture
def machine(home):
    """The name of a machine with six devices, of which we look at two."""
    launch.start(StartOptions(machine="six", instance_type="inf2.24xlarge", visible_devices="0,1"))
    yield "six"
    launch.stop("six")


@pytest.fixture
def run(tool, machine):
    """Run a program on that machine and return what it printed."""

    def run_program(*command, **options):
        done = tool("neuron-run", "--machine", machine, "--", *command, **options)
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout

    return run_program


needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")


@pytest.fixture
def compiled(home):
    """Compile a C program and return its path."""

    def compile_program(source, *flags):
        (home / "look.c").write_text(source)
        subprocess.run(
            ["g++", "-x", "c", "-O2", "-w", *flags, str(home / "look.c"), "-o", str(home / "look")],
            check=True,
        )
        return str(home / "look")

    return compile_program


def no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd() / "cache"))


@pytest.mark.parametrize("compiler", [pytest.param(True, marks=needs_compiler), False])
def test_python_sees_the_machine(run, compiler, monkeypatch):
    if not compiler:
        no_compiler(monkeypatch)
    assert run("python", "-c", LOOK) == SEEN


@needs_compiler
def test_a_shell_sees_the_machine(run):
    assert run("sh", "-c", ";".join(SHELL)) == "".join(SHELL.values())


@needs_compiler
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-D_FORTIFY_SOURCE=2",),
        ("-D_FILE_OFFSET_BITS=64",),
        pytest.param(("-fsanitize=address",), id="address sanitizer"),
    ],
)
def test_a_program_in_c_sees_the_machine(run, compiled, flags, monkeypatch):
    if "-fsanitize=address" in flags:
        monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    assert run(compiled(C_PROGRAM, *flags)) == SEEN_BY_C


@needs_compiler
def test_a_static_program_sees_the_host(run, compiled):
    try:
        program = compiled(
            C_PROGRAM.replace('stat("/dev', 'return printf("host\\n") < 0; stat("/dev'), "-static"
        )
    except subprocess.CalledProcessError:
        pytest.skip("no static C library")
    assert run(program) == "host\n"


@needs_compiler
@pytest.mark.parametrize(
    "code",
    [
        "import os; os.fork() or os._exit(os.path.exists('/dev/neuron1')); print(os.waitstatus_to_exitcode(os.wait()[1]) == 1)",
        "import subprocess as s; print(s.check_output(['stat', '-c', '%F', '/dev/neuron1'], text=True)[:5] == 'chara')",
        "import os; os.environ.clear(); print(os.path.exists('/dev/neuron1'))",
        (
            "import threading as t, os; a = t.Thread(target=os.listdir, args=('/dev',)); a.start(); a.join()\n"
            "os.fork() or os._exit('neuron1' in os.listdir('/dev')); print(os.waitstatus_to_exitcode(os.wait()[1]) == 1)"
        ),
    ],
    ids=["fork", "child", "cleared environment", "fork after a thread"],
)
def test_children_see_the_machine(run, code):
    assert set(run("python", "-c", code).split()) == {"True"}


@needs_compiler
def test_a_spawned_engine_sees_the_machine(run, home):
    (home / "engine.py").write_text(
        "import multiprocessing, os\n"
        "def look(queue):\n    queue.put(os.path.exists('/dev/neuron1'))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n    queue = context.Queue()\n"
        "    worker = context.Process(target=look, args=(queue,))\n    worker.start()\n"
        "    print(queue.get())\n    worker.join()\n"
    )
    assert run("python", str(home / "engine.py")) == "True\n"


@needs_compiler
def test_a_child_with_a_scrubbed_environment_sees_the_host(run):
    code = (
        "import subprocess as s; print(s.run(['/bin/sh', '-c', 'test -e /dev/neuron1'], env={}).returncode)"
    )
    assert run("python", "-c", code) == "1\n"


@needs_compiler
def test_two_machines_are_seen_apart(run, tool, machine):
    launch.start(StartOptions(machine="one", instance_type="trn1.2xlarge"))
    look = ("sh", "-c", "echo /dev/neuron*; cat /sys/devices/virtual/dmi/id/product_name")
    with subprocess.Popen(
        [sys.executable, "-m", "neurontools.commands.run", "--machine", "one", "--", "sleep", "60"]
    ) as other:
        assert run(*look) == "/dev/neuron0 /dev/neuron1\ninf2.24xlarge\n"
        assert tool("neuron-run", "--machine", "one", "--", *look).stdout == "/dev/neuron0\ntrn1.2xlarge\n"
        other.kill()
    code = "import os, subprocess as s; os.environ['NEURONTOOLS_MACHINE'] = 'one'; s.run(['sh', '-c', 'echo /dev/neuron*'])"
    assert run("python", "-c", code) == "/dev/neuron0\n"
    launch.stop("one")


@needs_compiler
def test_a_private_machine_starts_before_its_files_are_looked_at(tool, home):
    done = tool("neuron-run", "--instance", "trn1.2xlarge", "--", "sh", "-c", "ls /dev/neuron*")
    assert (done.stdout, done.returncode) == ("/dev/neuron0\n", 0)


@needs_compiler
def test_the_first_look_starts_the_default_machine(tool, home, monkeypatch):
    assert tool("neuron-run", "--", "sh", "-c", "ls -d /dev/neuron0").returncode != 0
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    assert tool("neuron-run", "--", "sh", "-c", "ls -d /dev/neuron0").stdout == "/dev/neuron0\n"
    launch.stop("default")


@pytest.mark.torch
@pytest.mark.parametrize("compiler", [pytest.param(True, marks=needs_compiler), False])
def test_counters_are_those_of_the_moment(tool, machine, compiler, monkeypatch):
    if not compiler:
        no_compiler(monkeypatch)
    code = (
        "import torch, torch_xla\n"
        f"count = lambda: int(open({COUNTER!r}).read())\n"
        "before, x = count(), torch.ones(3, device='xla')\n"
        "for turn in range(1, 4):\n    x = x + 1\n    torch_xla.sync()\n    assert count() == before + turn, count()\n"
        "print('current')"
    )
    done = tool("neuron-run", "--machine", machine, "--", "python", "-c", code)
    assert done.stdout.splitlines()[-1:] == ["current"], done.stderr


@needs_compiler
def test_other_preloaded_libraries_stay_first(run, home, compiled, monkeypatch):
    source = (
        '#include <unistd.h>\n__attribute__((constructor)) static void f(void) { write(1, "loaded\\n", 7); }'
    )
    library = compiled(source, "-shared", "-fPIC")
    monkeypatch.setenv("LD_PRELOAD", library)
    values = host_files.variables(os.environ, sys.executable)
    assert values["LD_PRELOAD"].split(":")[0] == library
    assert run("sh", "-c", "test -c /dev/neuron0 && echo seen").split() == ["loaded", "seen"]
    again = host_files.variables({**os.environ, **values}, sys.executable)
    assert again.get("LD_PRELOAD", values["LD_PRELOAD"]) == values["LD_PRELOAD"]


@needs_compiler
def test_nothing_changes_outside(run, home):
    before = sorted(os.listdir("/dev"))
    run("ls", "/dev")
    assert sorted(os.listdir("/dev")) == before
    assert not subprocess.run(["sh", "-c", "ls /dev/neuron0"], capture_output=True, check=False).stdout


def test_doctor_names_the_way(tool, home, monkeypatch):
    if HAS_COMPILER:
        assert "host-files/" in tool("neurontools", "doctor").stdout
    no_compiler(monkeypatch)
    lines = tool("neurontools", "doctor").stdout.splitlines()
    assert [line.split()[0] for line in lines if "Python's own calls under neuron-run" in line] == ["MISSING"]
