"""bench: where modelled time goes, what to do about it, other numbers of cores."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from neurontools import gpsimd
from neurontools.base.units import format_ns
from neurontools.customop.bench import advice, report
from neurontools.customop.bench.bench import (
    BenchSettings,
    bench,
    bind,
    default_templates,
    parse_shape,
    parse_template,
)
from neurontools.customop.bench.report import OUTPUT, TEMPORARY, CoreCount, Way, report_text
from neurontools.customop.building.build import build
from neurontools.customop.checking.inputs import Pattern
from neurontools.customop.cost import TensorOperand
from neurontools.customop.package import Package, find_operator, read_package
from neurontools.customop.probe import operator_ns, remember_operator
from neurontools.customop.runner import TensorInput
from neurontools.errors import UsageError
from tests.customop.conftest import Read, request_for

if TYPE_CHECKING:
    from neurontools.customop.bench.report import BenchReport

KERNELS = Path(__file__).parent / "kernels"
ROOT = Path(__file__).parents[2]
CALIBRATION = yaml.safe_load((ROOT / "fixtures" / "gpsimd" / "calibration.yaml").read_text())


def benched(
    package: Package,
    op: str,
    *inputs: str,
    shape: str | None = None,
    calls: int = 0,
    cores: int | None = None,
) -> BenchReport:
    settings = BenchSettings(
        tuple(map(parse_template, inputs)),
        shape=parse_shape(shape) if shape else None,
        calls=calls,
        cores=cores,
    )
    return bench(package, find_operator(package, op), settings)


def advice_by_kind(report: BenchReport) -> dict[str, str]:
    return {advice.kind: f"{advice.text} at {advice.location}" for advice in report.advice}


def line_of(name: str, words: str) -> int:
    lines = (KERNELS / name / "compute.cpp").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"// {words}"))


ADVICE = [
    (
        "elements",
        ("65536:float32",),
        "element",
        "the element accessor costs over 99 % of the time",
        "elements",
    ),
    ("small_tiles", ("65536:float32",), "tiles", "8192 copies of 64 B: use larger tiles", "piece"),
    (
        "bias_again",
        ("1024x16:float32", "16:float32"),
        "fits",
        "input 1 (64 B) is copied 1024 times",
        "bias",
    ),
    (
        "bias_elements",
        ("1024x16:float32", "16:float32"),
        "fits",
        "input 1 (64 B) fits in TCM and is read 1024 times over",
        "bias elements",
    ),
    ("streams", ("65536:float32",), "streams", "1 stream has no buffer and costs 95 %", "the fifth"),
    ("returned", ("65536:float32",), "move", "filling a tensor costs 38 %", "fill"),
]


@pytest.mark.parametrize(("op", "inputs", "kind", "words", "place"), ADVICE, ids=lambda value: value)
def test_each_way_to_be_slow_is_reported_with_its_line(
    package: Read, op: str, inputs: tuple[str, ...], kind: str, words: str, place: str
) -> None:
    report = benched(package("advice"), op, *inputs)
    found = [advice for advice in report.advice if advice.kind == kind]
    text = " / ".join(f"{advice.text} at {advice.location}" for advice in found)
    assert words in text
    assert f"compute.cpp:{line_of('advice', place)}" in text
    assert all(0 < advice.saves_ns < report.modelled_ns for advice in found)


def test_advice_without_a_line(package: Read) -> None:
    assert (
        "2.25 MiB in all; one loop over pieces in TCM that does all steps moves 512 KiB"
        in (advice_by_kind(benched(package("advice"), "functions", shape="64K"))["functions"])
    )
    assert (
        "the launch costs" in advice_by_kind(benched(package("advice"), "large_tiles", shape="0"))["launch"]
    )
    returned = [advice.text for advice in benched(package("advice"), "returned", shape="64K").advice]
    assert any("write to get_dst_tensor() instead" in text for text in returned)


def test_the_element_kernel_saves_what_the_tcm_kernel_takes(package: Read) -> None:
    slow = benched(package("advice"), "elements", shape="64K")
    fast = benched(package("advice"), "large_tiles", shape="64K")
    (advice,) = slow.advice
    assert slow.modelled_ns - advice.saves_ns == pytest.approx(fast.modelled_ns, rel=0.01)


def test_a_fast_kernel_gets_the_limit_reported(package: Read) -> None:
    one_core = advice_by_kind(benched(package("advice"), "large_tiles", shape="64K"))
    assert list(one_core) == ["cores"]
    assert one_core["cores"].startswith("1 of 8 cores works: ")
    stream = advice_by_kind(benched(package("advice"), "stream", shape="64K"))
    assert stream["cores"].startswith("already at the stream's limit; ")
    all_cores = advice_by_kind(benched(package("relu_multicore"), "forward", shape="32x4096"))
    assert list(all_cores) == ["limit"]
    assert all_cores["limit"].startswith(
        "already at the limit of copies: all 8 cores move 1.00 MiB for 1.00 MiB of"
    )


def test_cores_that_share_badly(package: Read) -> None:
    report = benched(package("multicore_advice"), "uneven", shape="80K")
    assert report.slowest_core == 3
    assert report.core_times[3].share == pytest.approx(0.4, rel=0.001)
    assert (
        "core 3 does 40 % of the work: split evenly, 12.5 % for each core"
        in advice_by_kind(report)["balance"]
    )
    assert [row.problem for row in report.core_counts] == ["check: for eight cores"] * 7 + [""]
    idle = benched(package("multicore_advice"), "one_works", shape="80K")
    assert "core 0 does 100 % of the work; 7 of 8 cores do nothing" in advice_by_kind(idle)["balance"]
    assert [row.balance for row in idle.core_counts] == pytest.approx([1 / n for n in range(1, 9)])


def test_one_to_eight_cores(package: Read) -> None:
    report = benched(package("relu_multicore"), "forward", shape="32x4096")
    speedups = [row.speedup for row in report.core_counts]
    assert speedups == pytest.approx(range(1, 9), rel=0.02)
    assert report.balance == 1
    alone = benched(package("relu_multicore"), "forward", shape="32x4096", cores=1)
    assert alone.modelled_ns == report.core_counts[0].modelled_ns
    assert alone.cores == 1
    with pytest.raises(UsageError, match="was built for one core"):
        benched(package("relu_tcm"), "forward", shape="8", cores=8)


@pytest.mark.parametrize(
    ("home", "op", "inputs"),
    [
        ("advice", "functions", ("1000:float32",)),
        ("advice", "streams", ("1000:float32",)),
        ("advice", "returned", ("1000:float32",)),
        ("relu_element", "backward", ("37x53:float32", "37x53:float32")),
        ("relu_multicore", "backward", ("37x53:float32", "37x53:float32")),
        ("multicore_advice", "one_works", ("1000:float32",)),
        ("styles", "scaled", ("10:float32", "2.5", "3", "1")),
    ],
)
def test_the_parts_are_the_whole(package: Read, home: str, op: str, inputs: tuple[str, ...]) -> None:
    report = benched(package(home), op, *inputs)
    assert sum(part.share for part in report.parts) == pytest.approx(1)
    assert sum(part.modelled_ns for part in report.parts) == pytest.approx(report.modelled_ns, abs=1)
    assert sum(core.share for core in report.core_times) == pytest.approx(1)
    slowest = [place for place in report.places if place.core == report.slowest_core]
    for name in {place.way for place in slowest}:
        placed = sum(place.modelled_ns for place in slowest if place.way == name)
        assert placed == pytest.approx(sum(part.modelled_ns for part in report.parts if part.name == name))
    assert format_ns(report.modelled_ns) in report_text(report, 80)


def test_tensors_are_distinguished(package: Read) -> None:
    report = benched(package("relu_element"), "forward", "8x8:float32")
    found = {(place.way, place.tensor): (place.count, place.nbytes) for place in report.places}
    assert found == {
        (Way.ELEMENT, 0): (64, 256),
        (Way.ELEMENT, TEMPORARY): (64, 256),
        (Way.RETURNED, TEMPORARY): (1, 256),
    }
    written = benched(package("relu_tcm"), "forward", "8x8:float32").places
    assert {place.tensor for place in written} == {0, OUTPUT}


def test_counting_by_place_changes_no_count(package: Read) -> None:
    for home in ("relu_element", "relu_tcm", "relu_multicore"):
        contents = package(home)
        report = benched(contents, "forward", "37x53:float32:0")
        remember_operator(contents, 0)
        assert operator_ns(f"{home}::forward", (TensorOperand((37, 53), "float32"),)) == report.modelled_ns


@pytest.mark.parametrize("style", ["element", "tcm", "multicore"])
def test_bench_reproduces_the_documented_throughputs(package: Read, style: str) -> None:
    home = "multicore_calibration" if style == "multicore" else "calibration"
    reports = [
        benched(package(home), style, shape="x".join(map(str, shape))) for shape in CALIBRATION["shapes"]
    ]
    throughput = 1e9 / (sum(report.modelled_ns for report in reports) + CALIBRATION["rest_ms"] * 1e6)
    assert throughput == pytest.approx(CALIBRATION["iterations_per_s"][style], rel=CALIBRATION["tolerance"])


def test_sources_with_blanks_and_letters_beyond_ascii_in_their_names(tmp_path: Path) -> None:
    home = tmp_path / "a dir ü"
    shutil.copytree(KERNELS / "calibration", home)
    (home / "compute.cpp").rename(home / "my kernels é.cpp")
    request = replace(
        request_for("calibration"), compute=(home / "my kernels é.cpp",), shape=(home / "shape.cpp",)
    )
    report = benched(read_package(build(replace(request, directory=tmp_path)).path), "tcm", shape="1K")
    files = {place.location.rpartition("/")[2].partition(":")[0] for place in report.places}
    assert files - {""} == {"my kernels é.cpp"}  # the copy of the returned tensor has no line


def test_it_works_inside_python_too(package: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = benched(package("relu_multicore"), "forward", "37x53:float32")
    monkeypatch.setenv("NEURONTOOLS_CUSTOMOP_INPROCESS", "1")
    inside = benched(package("relu_multicore"), "forward", "37x53:float32", calls=1)
    assert inside.parts == outside.parts
    assert inside.places == outside.places


def test_measured_times_are_distinguished(package: Read) -> None:
    report = benched(package("advice"), "stream", shape="1024", calls=7)
    measured = report.measured
    assert measured is not None
    assert (measured.calls, measured.warm_up) == (7, 3)
    assert 0 < measured.kernel_best_ns <= measured.kernel_median_ns <= measured.kernel_p99_ns
    assert 0 < measured.call_median_ns <= measured.call_p99_ns
    assert "on this computer: says nothing about the device" in report_text(report, 400)
    assert benched(package("advice"), "stream", shape="1024").measured is None


def test_inputs_are_tried_out_when_none_are_given(package: Read) -> None:
    assert benched(package("relu_element"), "forward").inputs == ("512x512:float32:0",)
    assert benched(package("advice"), "elements").inputs == ("262144:float32:0",)
    with pytest.raises(
        UsageError, match="found no inputs that the operator accepts: custom operator faults::bad_shape"
    ):
        benched(package("faults"), "bad_shape")


def test_more_elements_never_take_less_time(package: Read) -> None:
    for op in ("elements", "small_tiles", "large_tiles", "functions", "returned", "streams", "stream"):
        taken = [
            benched(package("advice"), op, shape=str(size)).modelled_ns
            for size in (1, 16, 17, 1023, 1024, 1025, 5000)
        ]
        assert taken == sorted(taken)


def test_shapes() -> None:
    assert parse_shape("2x4Kx1M") == (2, 4096, 1 << 20)
    assert parse_shape("scalar") == ()
    for wrong in ("4q", "x", "", "-1"):
        with pytest.raises(UsageError):
            parse_shape(wrong)
    templates = tuple(map(parse_template, ("*:int8", "7x7:float32:9", "1.5")))
    assert bind(templates, (5,)) == (TensorInput((5,), "int8", 0), TensorInput((7, 7), "float32", 9), 1.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32x4K:float32", TensorInput((32, 4096), "float32", 0)),
        ("1Kx1K:int8:3", TensorInput((1024, 1024), "int8", 3)),
        ("2M:float32", TensorInput((2 << 20,), "float32", 0)),
        ("4Q:float32", None),
        ("NxM:int8", None),
        ("32x4096:float32:7", TensorInput((32, 4096), "float32", 7)),
        ("*:float32", Pattern(None, "float32")),
        ("0.5", 0.5),
        ("3", 3),
        ("N:int64", None),
        ("", None),
    ],
)
def test_inputs(text: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(UsageError):
            parse_template(text)
    else:
        assert parse_template(text) == expected


def test_default_inputs_are_of_the_dtype(package: Read) -> None:
    entry = package("styles").manifest.operators[-1]
    assert default_templates(entry, "int8") == (Pattern(None, "int8"), 0.5, 1, 0.5)
    with pytest.raises(UsageError, match="not supported by the device"):
        default_templates(entry, "int64")


def test_advice_says_what_eight_cores_save() -> None:
    subject: Any = SimpleNamespace(
        multicore=False, share=lambda *_: 1.0, report=SimpleNamespace(modelled_ns=8_000_000)
    )
    (found,) = advice._more_cores(subject)
    assert f"about {format_ns(1_000_000)} on all 8" in found.text
    assert found.saves_ns == 7_000_000
    subject.multicore = True
    assert list(advice._more_cores(subject)) == []


def test_advice_to_keep_a_tensor_in_tcm_saves_all_copies_but_one() -> None:
    place = SimpleNamespace(tensor=0, nbytes=6400, modelled_ns=1_000_000, location="kernel.cpp:3")
    subject: Any = SimpleNamespace(
        tensors={0: 64}, places=lambda *_: [place], report=SimpleNamespace(modelled_ns=1_000_000)
    )
    (found,) = advice._read_again(subject)
    assert (found.kind, found.location) == ("fits", "kernel.cpp:3")
    assert found.saves_ns == round(1_000_000 - gpsimd.rates().transfer_ns(64))
    assert 0 < found.saves_ns < 1_000_000


def test_a_tensor_of_half_the_tcm_that_is_copied_twice_is_copied_again() -> None:
    half = gpsimd.rates().tcm_bytes // 2

    def subject(nbytes: int, moved: int) -> Any:
        places = [SimpleNamespace(tensor=0, nbytes=moved), SimpleNamespace(tensor=1, nbytes=1 << 20)]
        return SimpleNamespace(tensors={0: nbytes}, places=lambda *_: places)

    assert advice._copied_again(subject(half, 2 * half), 0)
    assert not advice._copied_again(subject(half + 1, 4 * half), 0)
    assert not advice._copied_again(subject(half, 2 * half - 1), 0)
    assert not advice._copied_again(subject(half, 2 * half), 1)


def test_counts_of_cores_are_a_table_and_failures_are_joined() -> None:
    counts = (
        CoreCount(1, 2_000_000, None, 1.0),
        CoreCount(2, 1_000_000, 2.0, 0.5),
        CoreCount(3, None, None, None, "check: no"),
        CoreCount(4, None, None, None, "check: no"),
    )
    bench: Any = SimpleNamespace(core_counts=counts)
    lines = report._cores_table(bench).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["modelled", "speed-up", "balance"],
        ["1", "2.000", "ms", "-", "100", "%"],
        ["2", "1.000", "ms", "2.00", "50", "%"],
    ]
    assert lines[3] == "fails on 3, 4: check: no"
