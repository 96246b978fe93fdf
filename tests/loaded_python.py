"""A Python whose processes start with modules loaded: they are copies of a process that has imported them.

Importing torch and its compiler takes 2.5 seconds of processor time, a copy a few hundredths. What differs from a new
process: the program is not a child of who starts it, and modules are not torn down at its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from tests import loaded_python_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).parent
_IGNORED_AT_START = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}  # the fixture home removes them
EXECUTABLE = """#!{python} -IS
import sys
sys.path.insert(0, {directory!r})
import loaded_python_client
loaded_python_client.main({address!r})
"""


def variables_of_python(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a new Python reads."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("PYTHON", "LC_", "LANG", "TZ")) and name not in _IGNORED_AT_START
    }


class LoadedPython:
    """Starts the process that executes `preamble` and is copied from then on; `close` ends it and its copies.

    Attributes:
        address: socket of the process.
        variables: those that Python read when the process started.
        executable: a program to use in place of python, with its options -c, -m, -u, -B, -P and -W. It sends its
            arguments, environment and files to the process, passes signals on to the copy, and ends as that does.
    """

    def __init__(self, preamble: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="nt-python-", dir="/tmp")
        self.address = f"{self._directory.name}/socket"
        self.variables = variables_of_python(os.environ)
        self.executable = f"{self._directory.name}/python"
        program = EXECUTABLE.format(python=sys.executable, directory=str(HERE), address=self.address)
        Path(self.executable).write_text(program)
        Path(self.executable).chmod(0o700)
        # -P: the checkout comes last, as in this process. No threads: copies would not have them.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "loaded_python_server.py"), self.address, preamble],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": "1",
            },
        )
        assert cast("IO[str]", self._process.stdout).readline() == "ready\n"

    def run(
        self,
        arguments: Sequence[str],
        directory: Path,
        environ: Mapping[str, str] = os.environ,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a directory, with the variables of this process or others, and kill it after a time."""
        with (
            open(os.devnull) as none,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            files = {0: none.fileno(), 1: out.fileno(), 2: err.fileno()}
            code = loaded_python_client.run(
                self.address, arguments, str(directory), environ, files, timeout_s=timeout_s
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([*arguments], code, out.read(), err.read())

    def close(self) -> None:
        """End the process and what still runs of its copies."""
        cast("IO[str]", self._process.stdin).close()
        self._process.wait()
        cast("IO[str]", self._process.stdout).close()
        self._directory.cleanup()
