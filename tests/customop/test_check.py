"""check: finds what is wrong with operators that are wrong in one way each, and nothing in right ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from neurontools.commands.customop import main
from neurontools.customop.checking.calls import CheckedOperator
from neurontools.customop.checking.check import TOLERANCES, _Check, _place, check, first_difference
from neurontools.customop.checking.inputs import Pattern, _assignments, cases, parse_pattern
from neurontools.customop.checking.report import CheckSettings
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.package import find_operator
from neurontools.customop.runner import TensorInput, parse_input
from neurontools.errors import UsageError
from tests.customop.reports import checked, told

if TYPE_CHECKING:
    from tests.customop.conftest import Library, Read


@pytest.mark.parametrize("name", ["relu_element", "relu_tcm", "relu_multicore"])
def test_the_samples_are_right(package: Read, name: str) -> None:
    report = checked(package(name), "forward", reference="torch.relu(x0)")
    assert report.findings == ()
    assert {"shapes", "repeats", "memory", "reference", "gradient"} <= set(report.passed)
    assert ("cores" in report.passed) is (name == "relu_multicore")
    assert report.dtypes == ("float32",)
    assert report.ranks == ((2,) if name == "relu_element" else (2, 1, 3, 4, 5, 6, 7, 8, 0))
    assert report.warnings == report.refused == ()


WRONG = [
    ("unwritten", "memory", "results depend on memory that the kernel did not write", "1x1:float32:0"),
    ("stateful", "repeats", "a second call gave other results; first at [0, 0]: ", "1x1:float32:0"),
    ("lying", "shapes", "its shape function promised ", "1x1:float32:0"),
    ("odd", "shapes", "bounds: index 1 is out of bounds for dimension 0 of size 1 at ", "1x1:float32:0"),
    ("square", "gradient", "square_backward(g, x0): element 0 is ", "1x1:float32:0"),
]


@pytest.mark.parametrize(("op", "which", "message", "smallest"), WRONG)
def test_each_fault_is_found_by_the_check_for_it(
    package: Read, op: str, which: str, message: str, smallest: str
) -> None:
    report = checked(package("wrong"), op)
    assert list(told(report)) == [which]
    assert message in told(report)[which]
    assert report.findings[0].inputs == (smallest,)
    assert which not in report.passed
    assert parse_input(smallest)  # what `run` takes


def test_an_error_names_the_line(package: Read) -> None:
    source = Path(__file__).parent / "kernels" / "wrong" / "compute.cpp"
    line = next(i for i, text in enumerate(source.read_text().splitlines(), 1) if text.endswith("// odd"))
    assert f"compute.cpp:{line}" in told(checked(package("wrong"), "odd"))["shapes"]


def test_a_remainder_that_is_shared_wrongly(package: Read) -> None:
    report = checked(package("multicore_wrong"), "remainder", "N:float32")
    assert told(report)["shapes"].startswith(("bounds on core ", "coverage on core "))
    assert parse_input(report.findings[0].inputs[0]).sizes[0] % 8 != 0  # type: ignore[union-attr]
    assert checked(package("multicore_wrong"), "remainder", "Nx8:float32").findings == ()


def test_cores_that_must_run_in_order(package: Read) -> None:
    report = checked(package("multicore_wrong"), "ordered", "Nx8:float32")
    assert set(told(report)) == {"cores"}
    assert "results depend on the order in which the cores run" in told(report)["cores"]


def test_what_a_kernel_refuses_is_not_a_fault(package: Read) -> None:
    report = checked(package("wrong"), "eights")
    assert report.findings == ()
    assert [reason.partition(" at ")[0] for reason, _ in report.refused] == ["check: only multiples of 8"]
    assert report.cases > 0


def test_dimensions_that_are_not_there_are_a_refusal(package: Read) -> None:
    report = checked(package("wrong"), "product")
    assert report.ranks == (2,)
    assert report.findings == ()
    assert [reason.partition(" at ")[0] for reason, _ in report.refused] == ["check: sizes do not fit"]
    assert "inputs" in [name for name, _ in report.skipped]


def test_a_kernel_that_refuses_everything_is_one(package: Read) -> None:
    report = checked(package("wrong"), "eights", "3x5:float32")
    assert told(report) == {"inputs": "the operator rejected all; give others with --input"}
    assert report.passed == ()
    report = checked(package("wrong"), "product", "NxN:float32", "NxN:uint8", "0.5")
    assert told(report)["shapes"].startswith(
        "dtype: accessor with Float elements on a tensor of dtype Byte at "
    )


def test_patterns_gradients_and_reference_of_several_inputs(package: Read) -> None:
    inputs = ("NxK:float32", "KxM:float32", "0.5")
    right = ((0, "g @ x1.T * x2"), (1, "x0.T @ g * x2"))
    report = checked(
        package("wrong"), "product", *inputs, reference="x0 @ x1 * x2", tolerance=1e-4, backward=right
    )
    assert report.findings == ()
    assert {"reference", "gradient"} <= set(report.passed)
    wrong = ((0, "g @ x1.T * x2"), (1, "x0.T @ g"))
    report = checked(package("wrong"), "product", *inputs, reference="x0 @ x1", backward=wrong)
    assert set(told(report)) == {"reference", "gradient"}
    assert "worst at [" in told(report)["reference"]
    assert told(report)["gradient"].startswith("x0.T @ g: element ")


def test_references_of_another_shape_or_that_fail_on_some_inputs(package: Read) -> None:
    report = checked(package("wrong"), "cube", "N:float32", reference="(x ** 3).reshape(1, -1)")
    assert told(report)["reference"].startswith("gives 1:float32, the reference 1x1:float32")
    report = checked(package("wrong"), "cube", "N:float32", reference="x ** 3 if len(x) != 3 else 1 / 0")
    assert told(report)["reference"].endswith("fails: ZeroDivisionError: division by zero")


def test_tolerances_are_those_of_torch() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        relative, absolute = TOLERANCES[str(dtype)]
        base = torch.full((2,), 100.0, dtype=dtype)
        for factor, close in ((0.5, True), (4.0, False)):
            other = (base.double() + factor * (absolute + relative * 100.0)).to(dtype)
            if close:
                torch.testing.assert_close(base, other)
            else:
                with pytest.raises(AssertionError):
                    torch.testing.assert_close(base, other)
            assert torch.isclose(base, other, rtol=relative, atol=absolute).all() == close


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reference": "torch.no_such(x0)"}, "torch.no_such(x0) fails: AttributeError"),
        ({"reference": "x0 +"}, "x0 + fails: SyntaxError"),
        ({"reference": "3"}, "3 does not return a tensor"),
        ({"backward": ((1, "g"),)}, "input 1 is not a tensor"),
        ({"patterns": (0.5,)}, "input 0 must be a"),
        ({"patterns": (Pattern(None, "float32"), 1)}, "takes 1 input, 2 given"),
    ],
)
def test_invalid_settings(package: Read, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked(package("wrong"), "cube", **settings)
    assert message in caught.value.message


def test_sizes_that_kernels_get_wrong_come_first() -> None:
    made = [case.inputs[0] for case in cases((Pattern(None, "float32"),), (1, 2), 3, 0)]
    sizes = [value.sizes for value in made if isinstance(value, TensorInput)]
    assert {(0,), (1,), (1023,), (1025,), (37,), (65535,), (1, 1), (3, 5), (0, 5), (3, 0), (37, 5)} <= set(
        sizes
    )
    assert len(sizes) == len(set(sizes))
    again = [case.words for case in cases((Pattern(None, "float32"),), (1, 2), 3, 0)]
    assert again == [case.words for case in cases((Pattern(None, "float32"),), (1, 2), 3, 0)]
    letters = (Pattern(("N", 4), "int32"), Pattern(("N",), "float32"), 7)
    for case in cases(letters, (0,), 3, 0):
        matrix, vector, number = case.inputs
        assert isinstance(matrix, TensorInput)
        assert isinstance(vector, TensorInput)
        assert (matrix.sizes[1], number) == (4, 7)
        assert matrix.sizes[0] == vector.sizes[0]
        assert [parse_input(word) for word in case.words] == list(case.inputs)


@pytest.mark.parametrize(
    "text", ["NxM", "nxm:float32", "4x:float32", "N:int64", "x:float32", ":float32", "ab"]
)
def test_invalid_patterns(text: str) -> None:
    with pytest.raises(UsageError, match=f"input {text}"):
        parse_pattern(text)


def test_bytes_are_compared_not_values() -> None:
    assert first_difference(torch.tensor([float("nan"), 1]), torch.tensor([float("nan"), 1])) is None
    assert first_difference(torch.tensor([[0.0, 1]]), torch.tensor([[-0.0, 1]])) == "[0, 0]: 0 and -0"
    assert first_difference(torch.zeros(2), torch.zeros(3)) == "2:float32 and 3:float32"


def test_the_command(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "ERROR")  # is set by the command: put back after the test
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "20")
    path = str(library("wrong"))
    assert main(["check", path, "odd", "--cases", "0"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("wrong::odd(Tensor _0) -> Tensor\n")
    assert "\n  FAILED   shapes     " in out
    assert f"neuron-customop run {path} odd --input 1x1:float32:0\n" in out
    assert (
        main(["check", path, "cube", "--input", "*:float32", "--reference", "x**3", "--cases", "0", "--json"])
        == 0
    )
    (report,) = json.loads(capsys.readouterr().out)
    assert report["findings"] == []
    assert report["ranks"] == [2, 1, 3, 4, 5, 6, 7, 8, 0]
    assert main(["check", path, "--reference", "x"]) == 2
    assert "--input, --reference and --backward need one operator" in capsys.readouterr().err
    assert main(["check", path, "none"]) == 1
    assert "has no operator none" in capsys.readouterr().err


def test_crashes_and_hangs_are_findings_and_few_of_them_are_enough(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "0.2")
    fault = ("check", str(library("faults")), "fault", "--input", "N:float32", "--input", "N:float32")
    assert main([*fault, "--input", "60"]) == 1
    out, err = capsys.readouterr()
    assert "abort: abort() called at " in out
    assert err == ""
    assert main([*fault, "--input", "63"]) == 1
    out, err = capsys.readouterr()
    assert "1 input: timeout: no result after 0.2 s at " in out
    assert main([*fault, "--input", "24", "--cases", "0"]) == 0
    assert "warning             tcm: 1 TCM block (4096 bytes) not freed" in capsys.readouterr().out


def test_the_first_endless_call_ends_the_check(package: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "0.2")
    faults = package("faults")
    calls: list[int] = []
    settings = CheckSettings(tuple(map(parse_pattern, ("N:float32", "N:float32", "63"))), count=12)
    report = check(faults, find_operator(faults, "fault"), settings, calls.append)
    assert calls == [1]
    (finding,) = report.findings
    assert (finding.check, finding.count) == ("shapes", 1)
    assert finding.message.startswith("timeout: no result after 0.2 s")


def test_a_time_limit_of_the_command_line_is_stronger_than_the_environment(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_EXEC_TIMEOUT", "60")
    inputs = ("--input", "8:float32", "--input", "8:float32", "--input", "63")
    assert main(["run", str(library("faults")), "fault", *inputs, "--timeout", "200ms"]) == 1
    assert "timeout: no result after 0.2 s at " in capsys.readouterr().err
    for wrong in ("0", "soon", "1e9"):
        assert main(["run", str(library("faults")), "fault", *inputs, "--timeout", wrong]) == 2
    assert capsys.readouterr().err.count("--timeout") == 3


def test_a_place_is_given_by_its_indices_outermost_first() -> None:
    assert _place(torch.zeros(2, 3, 4), 6) == "[0, 1, 2]"
    assert _place(torch.zeros(2, 3, 4), 23) == "[1, 2, 3]"


def test_random_sizes_start_at_one() -> None:
    class Least(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return a

    assert list(_assignments(2, 3, Least()))[-3:] == [(1, 1)] * 3


def test_refusals_that_differ_only_in_numbers_are_counted_together() -> None:
    operator = CheckedOperator.__new__(CheckedOperator)
    operator._refused = {}
    for reason in ("9 is too large", "8 is too large", "wrong dtype"):
        operator.refuse(NeuronCustomOpError("x::y", "shape", reason))
    assert [count for _, count in operator.refused] == [2, 1]


@pytest.mark.parametrize(("again", "same"), [([1.0], True), ([2.0], False), (None, False)])
def test_a_call_that_fails_when_it_is_repeated_is_no_success(again: list[float] | None, same: bool) -> None:
    def call() -> torch.Tensor:
        if again is None:
            raise NeuronCustomOpError("x::y", "bounds", "outside")
        return torch.tensor(again)

    found: list[str] = []
    run: Any = SimpleNamespace(
        failures=0, findings=SimpleNamespace(add=lambda *finding: found.append(finding[2]))
    )
    assert _Check._again(run, "repeats", "it differs", cast("Any", None), torch.tensor([1.0]), call) is same
    assert len(found) == (0 if same else 1)
    assert run.failures == (1 if again is None else 0)
