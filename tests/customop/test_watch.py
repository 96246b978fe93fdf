"""--watch: what counts as a change, and the whole loop in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from neurontools.customop.building.freshness import stamps, wait_for_change

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KERNEL = "#include <torch/torch.h>\ntorch::Tensor k(const torch::Tensor& x) { return x; }\n"
SHAPE = """#include <torch/torch.h>
#include "torchneuron/register.h"
torch::Tensor same(torch::Tensor x) { return torch::zeros(x.sizes(), torch::kFloat); }
NEURON_LIBRARY(watched, m) { m.def("k", &same, "k"); }
"""


def acting(*actions: Callable[[], object]) -> Callable[[float], None]:
    """Return a sleep that does something each time, and fails when it is asked too often."""
    waiting = iter((*actions, lambda: None, lambda: None))
    return lambda _: next(waiting)() and None


def test_a_save_by_rename_a_deletion_and_a_write_are_changes(scratch: Path) -> None:
    one, two = scratch / "one", scratch / "two"
    one.write_text("1")
    two.write_text("2")
    paths = (str(one), str(two))

    def rename() -> None:
        (scratch / "new").write_text("1")
        os.utime(scratch / "new", ns=(one.stat().st_atime_ns, one.stat().st_mtime_ns))
        (scratch / "new").rename(one)

    assert wait_for_change(stamps(paths), acting(lambda: None, rename)) == (str(one),)
    assert wait_for_change(stamps(paths), acting(two.unlink)) == (str(two),)
    assert wait_for_change(stamps(paths), acting(lambda: two.write_text("22"))) == (str(two),)


def test_a_file_that_is_being_written_is_waited_for(scratch: Path) -> None:
    path = scratch / "one"
    path.write_text("1")
    grown: list[str] = []

    def grow() -> None:
        grown.append("x")
        path.write_text("".join(grown) + "1")

    assert wait_for_change(stamps((str(path),)), acting(grow, grow, grow)) == (str(path),)
    assert len(grown) == 3


def test_build_watch_until_interrupted(scratch: Path) -> None:
    (scratch / "k.cpp").write_text(KERNEL)
    (scratch / "shape.cpp").write_text(SHAPE)
    (scratch / "customop.yaml").write_text("name: k\ncompute: [k.cpp]\nshape: [shape.cpp]\ncflags: [-O0]\n")
    code = "from neurontools.commands.customop import main; raise SystemExit(main(['build', '--watch']))"
    job = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    assert job.stderr is not None
    assert "libk.so  built in" in job.stdout.readline()
    assert "watched::k(Tensor _0)" in job.stdout.readline()
    (scratch / "k.cpp").write_text("no C++\n")
    assert job.stderr.readline() == "error: cannot compile k.cpp\n"
    (scratch / "customop.yaml").write_text("name: k\ncompute: [l.cpp]\nshape: [shape.cpp]\ncflags: [-O0]\n")
    (scratch / "l.cpp").write_text(KERNEL)
    assert "libk.so  built in" in job.stdout.readline()
    job.send_signal(signal.SIGINT)
    _, err = job.communicate()
    assert job.returncode == 130
    assert "Traceback" not in err
