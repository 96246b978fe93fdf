"""A Python process that has loaded modules once; what it runs are processes of their own that come from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SERVE = """
import gc, json, os, sys
{preamble}
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        for number, path in enumerate(("/dev/null", order["out"], order["err"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
        sys.stdin = open(0, closefd=False)
        os.chdir(order["directory"])
        os.environ.clear()
        os.environ.update(order["environ"])
        exec(compile(order["body"], "<string>", "exec"), {{"__name__": "__main__"}})
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class TemplateProcess:
    """Runs programs in forks of a process that has executed `preamble`. Close it at the end."""

    def __init__(self, preamble: str) -> None:
        # -P: the checkout comes last, as in this process.
        command = [sys.executable, "-P", "-c", SERVE.format(preamble=preamble)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )

    def run(self, body: str, directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a program with the variables of this process and `environ`; its output goes through `directory`."""
        out, err = directory / "out", directory / "err"
        order = {
            "body": textwrap.dedent(body),
            "directory": str(directory),
            "environ": {**os.environ, **environ},
            "out": str(out),
            "err": str(err),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        done = subprocess.CompletedProcess([], code, out.read_text(), err.read_text())
        out.unlink()
        err.unlink()
        return done

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
