"""Accesses outside of TCM blocks and tensors: which check fails, and which line the sanitizers name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.customop.building.build import build
from neurontools.customop.checking.check import check
from neurontools.customop.checking.inputs import parse_pattern
from neurontools.customop.checking.report import CheckReport, CheckSettings
from neurontools.customop.package import read_package
from tests.customop.conftest import KERNELS, request_for
from tests.customop.reports import told

MEMORY = "results depend on memory that the kernel did not write"
BLOCK = "of a TCM block of 32 bytes"
HEAP = "sanitizer: heap-buffer-overflow: "

# number -> failed check, its message, the marked line; the same with --sanitize
TCM = {
    1: ("memory", MEMORY, "", f"tcm: read of 4 bytes before the beginning {BLOCK}", "read-before"),
    2: ("memory", MEMORY, "", f"tcm: read of 4 bytes past the end {BLOCK}", "read-past"),
    3: ("shapes", f"tcm: write past the end {BLOCK}", "malloc", "tcm: write of 4 bytes past the end", "write-past"),
    4: ("shapes", f"tcm: write before the beginning {BLOCK}", "malloc", "tcm: write of 4 bytes before", "write-before"),
    5: ("memory", MEMORY, "", "tcm: read of 4 bytes", "read-far"),
    6: ("shapes", f"tcm: write past the end {BLOCK}", "malloc", "tcm: write of 33 bytes", "memset"),
    7: ("shapes", f"tcm: write past the end {BLOCK}", "malloc", "tcm: write of", "copy"),
    8: ("memory", MEMORY, "", f"tcm: read of 1 bytes past the end {BLOCK}", "byte"),
    9: ("shapes", "address: ", "read-elsewhere", "address: ", "read-elsewhere"),
    10: ("shapes", "address: ", "write-elsewhere", "address: ", "write-elsewhere"),
    11: ("shapes", f"tcm: write before the beginning {BLOCK}", "malloc", "tcm: write of 4 bytes before", "beside-stream"),
    12: ("shapes", f"tcm: write past the end {BLOCK}", "malloc", "tcm: write of 4 bytes past", "owner"),
    20: ("memory", MEMORY, "", "tcm: read of 4 bytes in a freed TCM block of 32 bytes", "read-freed"),
    21: ("shapes", "tcm: write in a freed TCM block of 32 bytes", "malloc", "tcm: write of 4 bytes in a freed TCM block", "write-freed"),
    22: ("shapes", "tcm: copy with a pointer in a freed TCM block of 32 bytes", "copy-freed", "tcm: copy with a pointer in a freed TCM block", "copy-freed"),
    23: ("memory", MEMORY, "", "tcm: read of 4 bytes past the end of a TCM block of 0 bytes", "read-empty"),
    24: ("shapes", "tcm: write past the end of a TCM block of 0 bytes", "malloc", "tcm: write of 4 bytes past the end of a TCM block of 0 bytes", "write-empty"),
    25: ("shapes", "tcm: write past the end of a TCM block of 5 bytes", "", "tcm: write of 1 bytes past the end of a TCM block of 5 bytes", "odd-size"),
    26: ("memory", MEMORY, "", "", ""),
    27: ("memory", MEMORY, "", "", ""),
}  # fmt: skip
TENSORS = {
    30: ("memory", MEMORY, "", f"{HEAP}read of 4 bytes", "argument-before"),
    31: ("shapes", "bounds: access 0 bytes past the end of argument 0", "argument-past", f"{HEAP}read", "argument-past"),
    32: ("memory", MEMORY, "", f"{HEAP}read of 4 bytes", "temporary-before"),
    33: ("memory", MEMORY, "", f"{HEAP}read of 4 bytes", "temporary-past"),
    34: ("shapes", "bounds: write before the beginning of a temporary tensor of 24 bytes", "", f"{HEAP}write", "temporary-write-before"),
    35: ("shapes", "bounds: write past the end of a temporary tensor of 24 bytes", "", f"{HEAP}write", "temporary-write-past"),
    36: ("memory", MEMORY, "", "", ""),
    37: ("shapes", "bounds: index -1 is out of bounds", "accessor-before", "bounds: index -1", "accessor-before"),
    38: ("shapes", "bounds: index ", "accessor-past", "bounds: index ", "accessor-past"),
}  # fmt: skip
CASES = {**TCM, **TENSORS}


def checked(name: str, which: int, *, sanitize: bool = False, release: bool = False) -> CheckReport:
    request = replace(request_for(name), sanitize=sanitize, release=release)
    patterns = (parse_pattern("8:float32" if "multicore" in name else "N:float32"), which)
    return check(read_package(build(request).path), 0, CheckSettings(patterns=patterns, count=2))


def place_of(name: str, mark: str) -> str:
    lines = (KERNELS / name / "compute.cpp").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith(f"// {mark}"))
    return f" at {KERNELS / name / 'compute.cpp'}:{line}"


@pytest.mark.parametrize("which", CASES)
def test_a_check_finds_it(which: int) -> None:
    wanted, message, mark, _, _ = CASES[which]
    found = told(checked("outside", which))
    assert next(iter(found)) == wanted  # a page before a tensor ends the kernel
    assert found[wanted].startswith(message)
    if mark:
        assert found[wanted].endswith(place_of("outside", mark).rpartition("/")[2])


@pytest.mark.parametrize("which", CASES)
def test_the_sanitizers_name_the_line(which: int) -> None:
    found = told(checked("outside", which, sanitize=True))
    _, _, _, message, mark = CASES[which]
    assert list(found) == ["shapes" if mark else "memory"]
    assert next(iter(found.values())).startswith(message)
    if mark:
        assert found["shapes"].endswith(place_of("outside", mark).rpartition("/")[2])


def test_accessors_of_a_release_build() -> None:
    assert "memory" in told(checked("outside", 37, release=True))
    past = told(checked("outside", 38, release=True))
    assert past["shapes"].startswith("bounds: access 0 bytes past the end of argument 0")


@pytest.mark.parametrize(("which", "mark", "plain"), [(1, "read", "memory"), (2, "write", "shapes")])
def test_blocks_of_another_core(which: int, mark: str, plain: str) -> None:
    found = told(checked("multicore_outside", which))
    assert plain in found
    found = told(checked("multicore_outside", which, sanitize=True))
    assert found["shapes"].startswith(f"tcm on core 3: {mark} of 4 bytes outside of all TCM blocks")
    assert found["shapes"].endswith(place_of("multicore_outside", mark).rpartition("/")[2])


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize(
    ("name", "which"), [("outside", 0), ("outside", 29), ("outside", 39), ("multicore_outside", 0)]
)
def test_the_same_kernels_without_a_fault_pass(name: str, which: int, sanitize: bool) -> None:
    assert told(checked(name, which, sanitize=sanitize)) == {}
