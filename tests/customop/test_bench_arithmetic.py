"""Own arithmetic in a bench: what is counted, at which line, beside what; and what happens where it cannot be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import yaml

from neurontools.customop.bench import baseline, counted_runs
from neurontools.customop.bench.arithmetic_rates import arithmetic_rates, included_cycles, own_ns
from neurontools.customop.bench.bench import BenchSettings, bench
from neurontools.customop.bench.bench_inputs import Point, parse_shape, parse_template
from neurontools.customop.bench.bench_text import report_text
from neurontools.customop.bench.counting_library import CountingError, counting_library
from neurontools.customop.bench.parts import OWN
from neurontools.customop.building.build import build
from neurontools.customop.building.compilers import find_compiler
from neurontools.customop.calls import CoreWork
from neurontools.customop.package import Package, find_operator, read_package
from tests.customop.conftest import request_for

if TYPE_CHECKING:
    from neurontools.customop.bench.bench_report import BenchReport

Read = Callable[[str], Package]

KERNELS = Path(__file__).parent / "kernels"
ROOT = Path(__file__).parents[2]
CALIBRATION = yaml.safe_load((ROOT / "fixtures" / "gpsimd" / "calibration.yaml").read_text())
RATES = arithmetic_rates()
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]


def benched(package: Package, op: str, *inputs: str, shape: str = "") -> BenchReport:
    chosen = Point((), parse_shape(shape) if shape else None)
    settings = BenchSettings(tuple(map(parse_template, inputs)), points=(chosen,), calls=0)
    (report,) = bench(package, find_operator(package, op), settings)
    return report


def share(report: BenchReport) -> float:
    return sum(part.share for part in report.parts if part.name == OWN)


def line_of(words: str) -> str:
    lines = (KERNELS / "arithmetic" / "compute.cpp").read_text().splitlines()
    return f"compute.cpp:{next(n for n, line in enumerate(lines, 1) if line.endswith(f'// {words}'))}"


def hottest(report: BenchReport) -> str:
    assert report.arithmetic is not None
    return report.arithmetic.lines[0].location.rpartition("/")[2]


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CXX", request.param)
    return str(request.param)


@pytest.mark.parametrize("style", ["element", "tcm", "multicore"])
def test_the_documented_throughputs_stay(package: Read, compiler: str, style: str) -> None:
    taken = 0
    for rows, columns in CALIBRATION["shapes"]:
        home = "multicore_calibration" if style == "multicore" else "calibration"
        report = benched(package(home), style, shape=f"{rows}x{columns}")
        assert report.arithmetic is not None
        assert report.arithmetic.compiler == find_compiler().version
        taken += report.modelled_ns
    throughput = 1e9 / (taken + CALIBRATION["rest_ms"] * 1e6)
    assert throughput == pytest.approx(CALIBRATION["iterations_per_s"][style], rel=CALIBRATION["tolerance"])


def test_a_filter_is_bound_by_its_taps(package: Read, compiler: str) -> None:
    report = benched(package("arithmetic"), "fir", "16K:float32", "64:float32")
    assert share(report) > 0.95
    assert hottest(report) == line_of("tap")
    assert report.arithmetic is not None
    assert 4 * 64 * 16384 < report.arithmetic.cycles < 12 * 64 * 16384
    (advice,) = (advice for advice in report.advice if advice.kind == "compute")
    assert "compute-bound" in advice.text
    assert line_of("tap") in advice.location
    assert "estimate" in report_text(report, 80)


def test_library_functions_are_told(package: Read, compiler: str) -> None:
    report = benched(package("arithmetic"), "gelu", shape="16K")
    assert report.arithmetic is not None
    (function,) = report.arithmetic.functions
    assert (function.name, function.calls) == ("tanhf", 16384)
    assert function.cycles == 16384 * RATES.function_cycles["tanh"]
    assert hottest(report) == line_of("gelu")
    assert report.arithmetic.lines[0].function_cycles == function.cycles
    assert any("tanhf alone is" in advice.text for advice in report.advice)
    assert f"tanhf (16,384 calls, {100 * function.cycles / report.arithmetic.cycles:.0f} %)" in report_text(
        report, 1000
    )
    division = benched(package("arithmetic"), "sigmoid", shape="16K")
    halved = benched(package("arithmetic"), "halved", shape="16K")
    assert division.modelled_ns > report.memory_ns + 16384 * RATES.divide_cycles / RATES.clock_ghz
    assert halved.modelled_ns == pytest.approx(halved.memory_ns, rel=0.2)
    assert division.memory_ns == halved.memory_ns == report.memory_ns


def test_a_product_is_bound_by_its_sums(package: Read, compiler: str) -> None:
    small = benched(package("arithmetic"), "product", "64x32:float32", "32x64:float32")
    large = benched(package("arithmetic"), "product", "128x32:float32", "32x64:float32")
    assert share(small) > 0.5
    assert hottest(small) == line_of("product")
    assert small.arithmetic is not None
    assert large.arithmetic is not None
    assert large.arithmetic.cycles == pytest.approx(2 * small.arithmetic.cycles, rel=0.01)


def test_code_of_the_standard_library_counts_where_it_was_inlined(package: Read, compiler: str) -> None:
    report = benched(package("arithmetic"), "top", shape="32x1K")
    assert report.arithmetic is not None
    assert report.arithmetic.cycles > 32 * 1024 * 3
    lines = [line.location for line in report.arithmetic.lines]
    assert any(location.endswith(line_of("top")) or "/stl_" in location for location in lines)
    assert not any("neurontools/customop/include" in location for location in lines)


def test_counting_changes_nothing_that_a_kernel_does(package: Read, compiler: str) -> None:
    from neurontools.customop.marshalling import Codes, execute
    from neurontools.customop.operation import Operation, new_executor

    plain = package("arithmetic")
    variant = counting_library(plain, lambda _line: None).package
    inputs = {"fir": (torch.randn(3000), torch.randn(64)), "top": (torch.randn(5, 100),)}
    for op in ("gelu", "sigmoid", "fir", "top", "caught"):
        outputs = []
        for library in (plain, variant):
            executor = new_executor(library)
            operation = Operation(library, find_operator(library, op), executor)
            torch.manual_seed(7)
            arguments = inputs.get(op, (torch.linspace(-4, 4, 3001),))
            outputs.append(execute(operation, arguments, Codes())[0])
            executor.close()
        torch.testing.assert_close(outputs[0], outputs[1])


def test_the_same_bench_says_the_same(package: Read) -> None:
    first, second = (benched(package("arithmetic"), "top", shape="16x512") for _ in range(2))
    assert first == second


def test_cores_share_arithmetic(package: Read) -> None:
    report = benched(package("relu_multicore"), "forward", shape="32x4K")
    assert report.arithmetic is not None
    assert report.arithmetic.cycles == pytest.approx(5 * 32 * 4096 / 8, rel=0.2)
    assert [row.modelled_ns for row in report.core_counts][-1] == report.modelled_ns


def test_what_rates_hold_is_taken_off() -> None:
    work = CoreWork(element_accesses=10, transfers=2, transferred_bytes=8192)
    held = included_cycles(work)
    assert own_ns(work, held) == own_ns(work, 0) == 0
    assert own_ns(work, held + 1400) == pytest.approx(1000)
    # Moving more never takes less time, whatever is computed beside it.
    from neurontools.gpsimd import rates

    assert RATES.included_per_byte / RATES.clock_ghz <= rates().transfer_ns_per_byte
    assert RATES.included_per_transfer / RATES.clock_ghz <= rates().transfer_latency_ns
    assert RATES.included_per_access / RATES.clock_ghz <= rates().element_access_ns


def test_sources_that_changed_are_not_counted(tmp_path: Path) -> None:
    home = tmp_path / "arithmetic"
    shutil.copytree(KERNELS / "arithmetic", home)
    request = replace(request_for("arithmetic"), compute=(home / "compute.cpp",), shape=(home / "shape.cpp",))
    package = read_package(build(replace(request, directory=tmp_path)).path)
    assert benched(package, "gelu", shape="1K").notes == ()
    (home / "compute.cpp").unlink()
    report = benched(package, "gelu", shape="1K")
    assert report.arithmetic is None
    assert report.modelled_ns == report.memory_ns
    assert OWN not in {part.name for part in report.parts}
    (note,) = report.notes
    assert note.startswith("own arithmetic is not counted: ")
    assert "compute.cpp is gone, or has changed since the library was built" in note


def test_what_cannot_be_counted_is_benched_all_the_same(
    package: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_package: Package, _say: object) -> object:
        raise CountingError("no compiler")

    monkeypatch.setattr(counted_runs, "counting_library", refuse)
    report = benched(package("arithmetic"), "gelu", shape="1K")
    assert report.arithmetic is None
    assert report.notes == ("own arithmetic is not counted: no compiler",)


def test_without_a_compiler_or_on_another_processor(package: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = package("arithmetic")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        patch.setattr("neurontools.customop.building.compilers.find_spec", lambda _name: None)
        with pytest.raises(CountingError, match="no C\\+\\+ compiler found"):
            counting_library(contents, lambda _line: None)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(CountingError, match="takes x86-64 or aarch64, this computer is riscv64"):
        counting_library(contents, lambda _line: None)
    sanitized = replace(contents, manifest=replace(contents.manifest, sanitize=True))
    monkeypatch.undo()
    with pytest.raises(CountingError, match="built with sanitizers"):
        counting_library(sanitized, lambda _line: None)


def test_headers_count_at_their_own_line_without_addr2line(
    package: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_tool = benched(package("arithmetic"), "gelu", shape="4K")
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if "addr2line" in name else _which(name))
    without = benched(package("arithmetic"), "gelu", shape="4K")
    assert with_tool.arithmetic is not None
    assert without.arithmetic is not None
    assert without.arithmetic.cycles == pytest.approx(with_tool.arithmetic.cycles, rel=0.05)


_which = shutil.which


def test_a_baseline_of_another_compiler_compares_what_does_not_depend_on_it(
    package: Read, tmp_path: Path
) -> None:
    report = benched(package("arithmetic"), "gelu", shape="4K")
    assert report.arithmetic is not None
    baseline.save(tmp_path / "base.json", [report])
    slower = replace(report, modelled_ns=2 * report.modelled_ns)
    (same,) = baseline.compare(baseline.load(tmp_path / "base.json"), [slower])
    assert (same.baseline_ns, same.with_arithmetic) == (report.modelled_ns, True)
    assert same.slower(0.5)
    other = replace(slower, arithmetic=replace(report.arithmetic, compiler="another 1.0"))
    (found,) = baseline.compare(baseline.load(tmp_path / "base.json"), [other])
    assert (found.modelled_ns, found.baseline_ns) == (report.memory_ns, report.memory_ns)
    assert not found.with_arithmetic
    (found,) = baseline.compare(baseline.load(tmp_path / "base.json"), [replace(slower, arithmetic=None)])
    assert not found.with_arithmetic


def test_names_with_blanks_and_letters_beyond_ascii(tmp_path: Path, compiler: str) -> None:
    home = tmp_path / "a dir ü"
    shutil.copytree(KERNELS / "arithmetic", home)
    (home / "compute.cpp").rename(home / "my kernels é.cpp")
    request = replace(
        request_for("arithmetic"), compute=(home / "my kernels é.cpp",), shape=(home / "shape.cpp",)
    )
    package = read_package(build(replace(request, directory=tmp_path)).path)
    report = benched(package, "gelu", shape="1K")
    number = line_of("gelu").rpartition(":")[2]
    assert hottest(report) == f"my kernels é.cpp:{number}"
    assert {place.location.rpartition("/")[2].partition(":")[0] for place in report.places} == {
        "my kernels é.cpp"
    }


def test_arithmetic_of_each_core(package: Read) -> None:
    even = benched(package("multicore_arithmetic"), "even", shape="16K")
    assert [row.speedup for row in even.core_counts if row.cores in {1, 2, 4, 8}] == pytest.approx(
        [1, 2, 4, 8], rel=0.05
    )
    assert "coverage" in even.core_counts[2].problem
    uneven = benched(package("multicore_arithmetic"), "uneven", shape="16K")
    assert uneven.slowest_core == 5
    assert uneven.balance < 0.5
    assert uneven.arithmetic is not None
    assert even.arithmetic is not None
    assert uneven.arithmetic.cycles == pytest.approx(4 * even.arithmetic.cycles, rel=0.05)
    (advice,) = (advice for advice in uneven.advice if advice.kind == "balance")
    lines = (KERNELS / "multicore_arithmetic" / "compute.cpp").read_text().splitlines()
    assert advice.location.endswith(f":{next(n for n, line in enumerate(lines, 1) if '// exp' in line)}")
    assert uneven.core_times[5].modelled_ns + 1000 == pytest.approx(uneven.modelled_ns, abs=1)


def test_what_fails_with_counters_only_is_run_without(package: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = package("arithmetic")
    plain = benched(contents, "gelu", shape="1K").memory_ns

    def broken(found: Package, say: object) -> object:
        other = read_package(build(request_for("faults")).path)
        library = counting_library(found, lambda _line: None)
        return replace(library, package=replace(library.package, parts=other.parts))

    monkeypatch.setattr(counted_runs, "counting_library", broken)
    report = benched(contents, "gelu", shape="1K")
    assert report.modelled_ns == report.memory_ns == plain
    assert report.arithmetic is None
    assert report.notes[0].startswith("own arithmetic is not counted: with counters it fails: ")
