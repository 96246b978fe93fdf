"""Library files: truncated, foreign, damaged ones are told apart and never loaded.

Every item of the reference's interface works, and docs/reference/customop-api.md lists what a kernel here shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.commands.customop import main
from neurontools.customop.building.request import write_compile_commands
from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.marshalling import execute
from neurontools.customop.package import (
    Package,
    Parts,
    SourceEntry,
    manifest_from_bytes,
    read_package,
    shared_library_problem,
    write_package,
)
from neurontools.customop.scaffold import create_project
from tests.customop.conftest import Read, request_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.customop.operation import CustomOperator


def refusal(path: Path) -> str:
    with pytest.raises(CustomOpLibraryError) as caught:
        read_package(path)
    assert caught.value.remedy
    return caught.value.message


def test_a_library_is_a_shared_library_that_carries_its_kernels(package: Read) -> None:
    contents = package("faults")
    assert Path(contents.path).read_bytes().startswith(b"\x7fELF")
    assert [entry.name for entry in contents.manifest.operators] == ["fault", "copy", "nap", "bad_shape"]
    assert contents.manifest.operators[0].schema == "fault(Tensor _0, Tensor _1, int _2) -> Tensor"
    assert contents.parts.sha256 == contents.manifest.parts_sha256
    assert shared_library_problem(contents.parts.kernel) == ""


def test_a_manifest_survives_its_json(package: Read) -> None:
    manifest = package("faults").manifest
    assert manifest_from_bytes(manifest.to_bytes()) == manifest


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_library_is_refused_wherever_it_ends(package: Read, scratch: Path, share: float) -> None:
    whole = Path(package("faults").path).read_bytes()
    (scratch / "cut.so").write_bytes(whole[: int(len(whole) * share)])
    refusal(scratch / "cut.so")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_a_changed_byte_in_the_code_is_noticed(
    package: Read, scratch: Path, share: float, change: int
) -> None:
    contents = package("faults")
    data = bytearray(Path(contents.path).read_bytes())
    code = len(contents.parts.shape) + len(contents.parts.kernel) + len(contents.parts.worker)
    data[int(code * share)] ^= change
    (scratch / "bad.so").write_bytes(data)
    refusal(scratch / "bad.so")


def test_what_is_not_a_library_of_ours_is_named_so(scratch: Path, package: Read) -> None:
    contents = package("faults")
    (scratch / "text.so").write_text("not a library")
    (scratch / "foreign.so").write_bytes(contents.parts.kernel)
    assert refusal(scratch / "text.so").endswith("text.so is not a shared library")
    assert "is a shared library but not a custom operator library" in refusal(scratch / "foreign.so")
    assert refusal(scratch / "none.so").endswith("none.so: No such file or directory")
    assert "Is a directory" in refusal(scratch)


def test_code_for_another_processor_and_another_interface_are_refused(scratch: Path, package: Read) -> None:
    contents = package("faults")
    kernel = bytearray(contents.parts.kernel)
    kernel[18] = 40
    parts = replace(contents.parts, kernel=bytes(kernel))
    write_package(scratch / "arm.so", replace(contents.manifest, parts_sha256=parts.sha256), parts)
    assert "it is for arm" in refusal(scratch / "arm.so")
    write_package(scratch / "new.so", replace(contents.manifest, abi=99), contents.parts)
    assert "built for ABI 99" in refusal(scratch / "new.so")


@pytest.mark.parametrize("change", ["operators", "format", "extra", "not json"])
def test_a_manifest_that_is_none_is_refused(package: Read, change: str) -> None:
    raw = json.loads(package("faults").manifest.to_bytes())
    if change == "extra":
        raw["something"] = 1
    else:
        raw.pop(change, None)
    data = b"{" if change == "not json" else json.dumps(raw).encode()
    with pytest.raises(ValueError, match=r".+"):
        manifest_from_bytes(data)


def change_operator(raw: dict[str, Any], **fields: object) -> None:
    raw["operators"][0].update(fields)


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "unknown parameter": lambda raw: change_operator(raw, parameters=["tensor", "float"]),
    "parameters are one text": lambda raw: change_operator(raw, parameters="tensor"),
    "parameter is a list": lambda raw: change_operator(raw, parameters=[["tensor"]]),
    "17 parameters": lambda raw: change_operator(raw, parameters=["tensor"] * 17),
    "operator name": lambda raw: change_operator(raw, name="fault\n"),
    "operator is a list": lambda raw: raw.update(operators=[[]]),
    "operators are a number": lambda raw: raw.update(operators=5),
    "access": lambda raw: change_operator(raw, access={}),
    "kernel index below 0": lambda raw: change_operator(raw, kernel_index=-1),
    "kernel index of 1000 digits": lambda raw: change_operator(raw, kernel_index=10**1000),
    "kernel index is true": lambda raw: change_operator(raw, kernel_index=True),
    "infinite stack": lambda raw: raw.update(stack_bytes=float("inf")),
    "stack is a text": lambda raw: raw.update(stack_bytes="8192"),
    "flag is a number": lambda raw: raw.update(release=1),
    "flags are null": lambda raw: raw.update(cflags=None),
    "flag of the compiler is a list": lambda raw: raw.update(cflags=[["-O2"]]),
    "compiler is a surrogate": lambda raw: raw.update(compiler="g++ \ud800"),
    "source is a number": lambda raw: raw.update(sources=[{"path": 5, "sha256": "00"}]),
    "source with a null character": lambda raw: raw.update(sources=[{"path": "a\0b", "sha256": "00"}]),
    "source without a digest": lambda raw: raw.update(sources=[{"path": "a"}]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_library_with_a_damaged_manifest_is_an_error_of_one_line(
    scratch: Path, package: Read, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    contents = package("faults")
    raw = json.loads(contents.manifest.to_bytes())
    DAMAGES[damage](raw)
    write_raw(scratch / "bad.so", json.dumps(raw).encode(), contents)
    for option in ([], ["--json"]):
        assert main(["inspect", "bad.so", *option]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"error: cannot load bad\.so: [^\n]+\nhint: [^\n]+\n", err)


def test_a_library_whose_kernel_is_not_there_cannot_be_loaded(
    scratch: Path, package: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = package("faults")
    raw = json.loads(contents.manifest.to_bytes())
    change_operator(raw, kernel_index=99)
    write_raw(scratch / "bad.so", json.dumps(raw).encode(), contents)
    assert main(["load", "bad.so"]) == 1
    assert "its operators differ from its manifest" in capsys.readouterr().err


def test_a_source_that_is_a_pipe_has_changed(
    scratch: Path, package: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = package("faults")
    os.mkfifo(scratch / "pipe")
    sources = (SourceEntry(str(scratch / "pipe"), "00"), SourceEntry("/dev/zero", "00"))
    write_package(scratch / "bad.so", replace(contents.manifest, sources=sources), contents.parts)
    assert main(["inspect", "bad.so"]) == 0
    assert capsys.readouterr().out.count("CHANGED since") == 2


def write_raw(path: Path, manifest: bytes, contents: Package) -> None:
    """Write a library file with any manifest."""
    parts = (contents.parts.shape, contents.parts.kernel, contents.parts.worker, manifest)
    path.write_bytes(b"".join(parts) + struct.pack("<QQQQ8s", *map(len, parts), b"NTCUSTOP"))


def test_new_files_obey_the_umask(scratch: Path, package: Read) -> None:
    contents = package("faults")
    before = os.umask(0o077)
    try:
        write_package(scratch / "libfaults.so", contents.manifest, contents.parts)
        write_compile_commands(request_for("faults"), scratch)
        create_project("scale", scratch / "scale")
    finally:
        os.umask(before)
    files = [path for path in scratch.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


def test_the_digest_of_a_library_covers_each_part_with_its_length() -> None:
    expected = hashlib.sha256()
    for part in (b"a", b"", b"bc"):
        expected.update(len(part).to_bytes(8, "little") + part)
    assert Parts(b"a", b"", b"bc").sha256 == expected.hexdigest()
    assert Parts(b"", b"a", b"bc").sha256 != expected.hexdigest()


SOURCES = Path(__file__).parent / "kernels" / "interface"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "customop-api.md"


@pytest.mark.parametrize("items", ["dtypes", "factories", "operations", "bits", "members", "streams", "tcm"])
def test_items_do_what_they_should(operation: Callable[[str], CustomOperator], items: str) -> None:
    output, completed = execute(operation(f"interface::{items}"), (torch.arange(8.0),))
    assert output[0] == 1
    assert completed.warnings == ()


def test_every_kind_of_parameter(operation: Callable[[str], CustomOperator]) -> None:
    x = torch.ones(2)
    output, _ = execute(operation("interface::parameters"), (x, x, x, 1.5, 0.5, 3))
    assert output.tolist() == [1]


def test_the_page_lists_the_items_that_are_tested() -> None:
    text = "".join(path.read_text() for path in sorted(SOURCES.glob("*.cpp")))
    tested = re.findall(r"\[([\w:=]+)\]", "".join(re.findall(r"//((?: \[[\w:=]+\])+)$", text, re.MULTILINE)))
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and "| yes" in line]
    listed = [item for row in rows for item in re.findall(r"`([\w:=]+)[^`]*`", row.split("|")[1])]
    assert sorted(listed) == sorted(tested)
