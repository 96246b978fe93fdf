"""Run the tests on every supported Python that this computer has: `nox`, or `nox -s tests-3.12`.

A session uses the oldest patch release it finds: on PATH, or among pyenv's versions. Without an interpreter, the session
is skipped and says so. torch is installed only where a CPU build is available (TORCH_INDEX adds an index), because the
CUDA build takes several gigabytes; without torch, the tests that need it are skipped.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import nox

PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("profile", "collectives", "completion", "prometheus", "archive", "s3", "dev")
TORCH = re.search(r"^torch==(\S+)$", Path("constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)

nox.needs_version = ">=2024.4"
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False


def find_interpreter(version: str) -> str | None:
    """Return the path of the oldest patch release of Python `version` on this computer, None without one."""
    places = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places += [folder / "bin" for folder in pyenv.glob(f"versions/{version}.*")]
    found: dict[tuple[int, ...], str] = {}
    for place in places:
        python = place / f"python{version}"
        run = python.is_file() and subprocess.run(
            [python, "-c", "import ensurepip, sys; print(*sys.version_info[:3])"],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if run and run.returncode == 0:  # pyenv's shims of versions that are not selected fail
            found.setdefault(tuple(map(int, run.stdout.split())), str(python))
    return found[min(found)] if found else None


def has_cpu_torch(session: nox.Session, index: list[str]) -> bool:
    """Return whether pip finds a CPU build of the tested torch release: PyPI's own builds for x86-64 are CUDA builds."""
    if TORCH is None:
        return False
    listing = session.run(
        "python", "-m", "pip", "index", "versions", "torch", *index, silent=True, success_codes=[0, 1]
    )
    versions = re.split(r"[\s,]+", str(listing))
    return f"{TORCH[1]}+cpu" in versions or (platform.machine() == "aarch64" and TORCH[1] in versions)


def tests(session: nox.Session) -> None:
    """Install the package with its extras and run the tests; arguments after `--` go to pytest."""
    index = ["--extra-index-url", os.environ["TORCH_INDEX"]] if "TORCH_INDEX" in os.environ else []
    extras = [*EXTRAS, "torch", "libraries"] if has_cpu_torch(session, index) else EXTRAS
    session.install("-c", "constraints.txt", *index, f".[{','.join(extras)}]")
    session.run("python", "-VV")
    session.log(
        "torch: %s", TORCH[1] if TORCH and "torch" in extras else "no CPU build for this Python, left out"
    )
    session.run("pytest", *(session.posargs or ("-n", "3", "--dist", "loadfile", "tests")))


for _version in PYTHONS:
    nox.session(tests, python=find_interpreter(_version) or _version, name=f"tests-{_version}")
