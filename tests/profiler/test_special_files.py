"""Pipes, sockets, devices and directories in place of files: each is refused in a line, and nothing waits for them."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import duckdb
import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Maker

    Tool = Callable[..., subprocess.CompletedProcess[str]]

KINDS = ("pipe", "socket", "device", "directory", "link to a pipe", "link to a device")


def make_special(path: Path, kind: str) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            here = os.open(path.parent, os.O_RDONLY)  # the path of a socket is short
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
        case "directory":
            path.mkdir()
        case "link to a pipe":
            os.mkfifo(path.with_name(f"{path.name}.pipe"))
            path.symlink_to(f"{path.name}.pipe")
        case _:
            path.symlink_to("/dev/zero" if kind == "device" else "/dev/full")


def check_one_line(run: subprocess.CompletedProcess[str], exit_code: int | None = None) -> None:
    assert "Traceback" not in run.stderr
    assert exit_code is None or run.returncode == exit_code, run
    assert len([line for line in run.stderr.splitlines() if line.startswith("error: ")]) <= 1
    if run.returncode:
        assert run.stderr.startswith("error: "), run


COMMANDS = (
    ("neuron-profile", "top", "FILE.json"),
    ("neuron-profile", "summary", "FILE"),
    ("neuron-profile", "view", "FILE.json.gz", "--output-format", "csv", "--output-file", "o.csv"),
    ("neuron-profile", "diff", "FILE.json", "FILE.json"),
    ("neuron-profile", "what-if", "FILE.neff", "--batch", "2"),
    ("neuron-packager", "info", "FILE.neff"),
    ("neuron-packager", "unpack", "FILE.neff"),
    ("neuron-cache", "copy", "--from", "FILE.tar.gz"),
    ("neuron-ls", "--source", "FILE.jsonl"),
    ("neuron-top", "--once", "--source", "FILE.jsonl"),
    ("neurontools", "scenario", "replay", "FILE.jsonl"),
    ("neurontools", "scenario", "check", "./FILE.yaml"),
    ("neuron-monitor", "-c", "FILE.json"),
    ("nccom-test", "allr", "-r", "2", "--custom-replica-groups", "FILE.json", "--instance", "trn1.32xlarge"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_file_that_is_no_file_is_refused_in_a_line(
    home: Path, tool: Tool, command: tuple[str, ...]
) -> None:
    for number, kind in enumerate(KINDS):
        (name,) = {word for word in command if "FILE" in word}
        path = home / name.replace("FILE", f"f{number}")
        make_special(path, kind)
        words = (str(path) if "FILE" in word else word for word in command)
        run = tool(*words, cwd=home)
        check_one_line(run)
        is_cache = kind == "directory" and command[1] == "copy"  # a directory is a cache to copy from
        assert run.returncode or is_cache, (kind, run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_with_special_files_is_read_without_them(
    home: Path, tool: Tool, maker: Maker, kind: str
) -> None:
    maker.finished(home / "prof")
    (meta,) = (home / "prof").rglob("meta.json")
    for path in sorted(meta.parent.iterdir()):
        if path.name.startswith(("models", "strings", "neff_", "events", "meta")):
            aside = home / "aside"
            path.rename(aside)
            make_special(path, kind)
            check_one_line(tool("neuron-profile", "summary", "prof", cwd=home))
            path.rmdir() if kind == "directory" else path.unlink()
            aside.rename(path)
            path.with_name(f"{path.name}.pipe").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Instruction", "Instruction_1", "Summary", "Metadata"])
def test_a_table_that_is_no_file_is_left_out(home: Path, tool: Tool, kind: str, name: str) -> None:
    tables = home / "tables"
    tables.mkdir()
    query = "SELECT i AS start_ts, 1 AS duration_ns, 'mm' AS hlo_name FROM range(9) t(i)"
    for table in {"Instruction", "DmaPacketAggregated"} - {name}:
        duckdb.sql(f"COPY ({query}) TO '{tables}/{table}.parquet' (FORMAT parquet)")
    make_special(tables / f"{name}.parquet", kind)
    run = tool("neuron-profile", "summary", "tables", cwd=home)
    check_one_line(run, 0)
    what = f"the table {name}" if name in {"Summary", "Metadata"} else f"{name}.parquet"
    assert f"warning: {what} is left out: " in run.stdout
