"""Building again: what is compiled anew, several builders at once, builders that die, sources that change meanwhile."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.customop.building.build import build
from neurontools.customop.building.freshness import changed_sources, find_object
from neurontools.customop.building.request import BuildRequest
from neurontools.customop.building.toolchain import home as cache_home
from neurontools.customop.errors import CustomOpBuildError
from neurontools.customop.package import read_package
from tests.support.waiting import wait_until

ONE = "#include <torch/torch.h>\ntorch::Tensor one(const torch::Tensor& x) { return x; }\n"
TWO = '#include <torch/torch.h>\n#include "two.h"\ntorch::Tensor two(const torch::Tensor& x) { return torch::full(x.sizes(), TWO, torch::kFloat); }\n'
SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }
NEURON_LIBRARY(again, m) { m.def("one", &same, "one"); m.def("two", &same, "two"); }
"""


@pytest.fixture
def sources(scratch: Path) -> Path:
    for name, text in (
        ("one.cpp", ONE),
        ("two.cpp", TWO),
        ("two.h", "#define TWO 2\n"),
        ("shape.cpp", SHAPE),
    ):
        (scratch / name).write_text(text)
        os.utime(scratch / name, (1e9, 1e9))  # what was written just now is compiled twice, to be sure
    return scratch


def request(**changes: object) -> BuildRequest:
    values: dict[str, object] = {
        "name": "again",
        "compute": (Path("one.cpp"), Path("two.cpp")),
        "shape": (Path("shape.cpp"),),
        "directory": Path(),
        "cflags": ("-O0",),
    }
    return BuildRequest(**{**values, **changes})  # type: ignore[arg-type]


def steps(**changes: object) -> list[str]:
    said: list[str] = []
    build(request(**changes), said.append)
    return said


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def compiling_through(home: Path, text: str) -> str:
    """Return a PATH on which compilations of the user's sources go through a program: it takes the place of ccache.

    Another compiler would have its runtime compiled first.
    """
    return f"{program(home / 'bin' / 'ccache', text).parent}:{os.environ['PATH']}"


def work_of(library: Path) -> Path:
    """Return where a library's object files are; the cache is shared with other tests that run now."""
    return cache_home() / "work" / hashlib.sha256(os.fsencode(library)).hexdigest()[:24]


def test_only_what_changed_is_compiled(sources: Path) -> None:
    build(request())
    (sources / "two.h").write_text("#define TWO 3\n")
    assert steps() == ["compiling two.cpp"]
    (sources / "one.cpp").write_text(ONE + "// more\n")
    assert steps() == ["compiling one.cpp"]
    assert steps(cflags=("-O0", "-DX")) == ["compiling shape.cpp", "compiling one.cpp, two.cpp"]
    (sources / "libagain.so").unlink()
    assert steps(cflags=("-O0", "-DX")) == []


def test_a_damaged_object_file_is_compiled_again(sources: Path) -> None:
    made = list(work_of(build(request()).path).glob("*.o"))
    assert len(made) == 3
    for path in made:
        path.write_bytes(path.read_bytes()[:-1])
    (sources / "libagain.so").unlink()
    assert steps() == ["compiling shape.cpp", "compiling one.cpp, two.cpp"]


def test_the_old_library_stays_whole_when_the_new_one_fails(sources: Path) -> None:
    path = build(request()).path
    before = path.read_bytes(), path.stat().st_ino
    (sources / "one.cpp").write_text("no C++\n")
    with pytest.raises(CustomOpBuildError):
        build(request())
    assert (path.read_bytes(), path.stat().st_ino) == before
    (sources / "one.cpp").write_text(ONE)
    assert not build(request()).rebuilt


BUILDER = """
import sys
from pathlib import Path
from neurontools.customop.building.build import build
from neurontools.customop.building.request import BuildRequest
said = []
request = BuildRequest('again', (Path('one.cpp'), Path('two.cpp')), (Path('shape.cpp'),), Path(), ('-O0', *sys.argv[1:]))
print(build(request, said.append).rebuilt, flush=True)
"""


def builder(*flags: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, *flags],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_of_two_builders_one_builds_and_the_other_takes_it(sources: Path) -> None:
    jobs = [builder() for _ in range(2)]
    assert sorted(job.communicate()[0].strip() for job in jobs) == ["False", "True"]


def test_builders_with_other_settings_take_turns_and_leave_a_whole_library(sources: Path) -> None:
    jobs = [builder("-DFIRST_WAY"), builder("-DOTHER_WAY")]
    assert [job.communicate()[0].strip() for job in jobs] == ["True", "True"]
    flags = read_package(sources / "libagain.so").manifest.cflags
    assert flags in {("-O0", "-DFIRST_WAY"), ("-O0", "-DOTHER_WAY")}
    assert sorted(path.name for path in sources.iterdir()) == [
        "libagain.so",
        "one.cpp",
        "shape.cpp",
        "two.cpp",
        "two.h",
    ]


def test_a_builder_that_is_killed_leaves_the_old_library_and_no_lock(sources: Path, home: Path) -> None:
    work = work_of(build(request()).path)
    before = (sources / "libagain.so").read_bytes()
    slow = compiling_through(
        home, f'case "$*" in *kernel_*) touch {home}/reached; sleep 60;; esac; exec "$@"'
    )
    (sources / "one.cpp").write_text(ONE + "// more\n")
    job = builder(PATH=slow)
    wait_until((home / "reached").exists)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    assert (sources / "libagain.so").read_bytes() == before
    assert len(list(work.glob(".job-*"))) == 1
    assert build(request()).rebuilt
    assert list(work.glob(".job-*")) == []


def test_a_file_that_changes_while_it_is_compiled_is_compiled_again(
    sources: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = sources / "two.h"
    build(request())
    # The compiler has read the header when it is written to: the first result is of the old contents.
    writer = compiling_through(
        home,
        f'"$@" || exit; case "$*" in *kernel_1*) test -e {home}/once || {{ touch {home}/once; '
        f'echo "#define TWO 4" > {header}; }};; esac',
    )
    monkeypatch.setenv("PATH", writer)
    (sources / "two.cpp").write_text(TWO + "// more\n")
    result = build(request())
    assert header.read_text() == "#define TWO 4\n"
    assert changed_sources(result.manifest.sources) == ()
    import torch

    from neurontools.customop.marshalling import execute
    from neurontools.customop.operation import CustomOperator, new_executor

    package = read_package(result.path)
    executor = new_executor(package)
    try:
        output, _ = execute(CustomOperator(package, 1, executor), (torch.ones(2),))
    finally:
        executor.close()
    assert output.tolist() == [4, 4]


def test_a_file_that_never_stands_still_is_named(
    sources: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pest = compiling_through(
        home, f'"$@" || exit; case "$*" in *kernel_*) echo "// $$" >> {sources}/one.cpp;; esac'
    )
    monkeypatch.setenv("PATH", pest)
    (sources / "one.cpp").write_text(ONE + "// not yet\n")
    with pytest.raises(CustomOpBuildError, match=r"one\.cpp, or a file that it includes, changed during the"):
        build(request())


def test_ccache_is_used_where_it_is_installed(
    sources: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = home / "ccache.log"
    monkeypatch.setenv("PATH", compiling_through(home, f'echo "$*" >> {log}; exec "$@"'))
    build(request(directory=home / "out"))  # where no earlier test left object files
    first = log.read_text().splitlines()
    assert len(first) == 3
    assert all("g++" in line.split()[0] for line in first)
    (sources / "two.h").write_text("#define TWO 5\n")
    build(request(directory=home / "out"))
    again = log.read_text().splitlines()[3:]
    # The same source path each time: what a compiler cache keys by. Twice, where the header was written just now.
    assert {line.split(" -c ")[1].split()[0] for line in again} == {
        line.split(" -c ")[1].split()[0] for line in first if "kernel_1" in line
    }


def test_a_ccache_that_fails_does_not_stop_a_build(
    sources: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", compiling_through(home, 'echo "ccache: error: no space" >&2; exit 1'))
    assert build(request(directory=home / "out")).rebuilt


def test_a_build_with_nothing_to_do_loads_little(sources: Path) -> None:
    build(request())
    code = BUILDER + "print(*sorted(set(sys.modules) & {'torch', 'yaml', 'tempfile', 'logging', 'ctypes'}))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n\n"


def test_a_record_that_is_nested_deeply_is_no_record(scratch: Path) -> None:
    (scratch / "one.json").write_text("[" * 100_000 + "]" * 100_000)
    assert find_object(scratch / "one.o", "key") is None
