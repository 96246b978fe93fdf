"""Library files: truncated, foreign, damaged ones are told apart and never loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.customop.errors import CustomOpLibraryError
from neurontools.customop.package import (
    Package,
    manifest_from_bytes,
    read_package,
    shared_library_problem,
    write_package,
)

Read = Callable[[str], Package]


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
