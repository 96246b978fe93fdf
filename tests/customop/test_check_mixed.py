"""check: operators whose inputs are of different kinds, and what is told of each fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.commands.customop import main
from neurontools.customop.checking.discovery import mixed_inputs
from neurontools.customop.checking.inputs import Pattern, cases, parse_pattern, pattern_words
from neurontools.customop.runner import TensorInput, make_tensor, parse_input
from neurontools.errors import UsageError
from tests.customop.reports import checked, told

if TYPE_CHECKING:
    from tests.customop.conftest import Library, Read


def test_inputs_of_different_ranks_and_dtypes_are_tried_out(package: Read) -> None:
    report = checked(package("mixed"), "gather", reference="x0[x1.long()]")
    assert report.assumed == (("inputs", "AxB:float32 C:int32%A"),)
    assert report.findings == ()
    assert {"shapes", "memory", "reference"} <= set(report.passed)
    assert report.dtypes == ("float32", "int32")
    assert [reason.partition(", got")[0] for reason, _ in report.refused] == ["check: rows of at most 1024"]
    assert report.skipped == (("gradient", "no backward operator; give one with --backward 'OP(g, x0)'"),)


def test_what_is_refused_with_other_numbers_is_one_line_with_its_place(package: Read) -> None:
    report = checked(package("mixed"), "gather", "VxD:float32", "B:int32")
    ((reason, count),) = [row for row in report.refused if "no row" in row[0]]
    assert count > 1
    assert "compute.cpp:" in reason


def test_a_backward_may_take_the_output(package: Read) -> None:
    report = checked(package("mixed"), "sigmoid")
    assert report.findings == ()
    assert report.assumed == (("gradient", "sigmoid_backward(g, y)"),)
    assert "gradient" in report.passed


def test_a_wrong_gradient_is_reported_with_the_ways_that_were_tried(package: Read) -> None:
    report = checked(package("wrong"), "square")
    (finding,) = report.findings
    assert finding.message.startswith("square_backward(g, x0): element 0 is ")
    assert finding.remedy == (
        "tried square_backward(g, x0) and square_backward(g, y); give the call with --backward"
    )


def test_what_fresh_tcm_holds_is_memory_too(package: Read) -> None:
    assert told(checked(package("mixed"), "stale"))["memory"].startswith(
        "results depend on memory that the kernel did not write"
    )


def test_what_a_kernel_keeps_from_call_to_call(package: Read) -> None:
    report = checked(package("mixed"), "remembers")
    assert set(told(report)) == {"repeats"}
    assert told(report)["repeats"].startswith("results depend on earlier calls: something static or global")
    assert "repeats" not in report.passed


def test_a_number_that_makes_an_output_of_some_size_is_found(package: Read) -> None:
    report = checked(package("mixed"), "repeated")
    message = told(report)["shapes"]
    assert message.startswith("bounds: index ")
    assert report.findings[0].inputs[1] == "3.0"
    assert report.findings[0].remedy == "compare the index with size(i) of the tensor"
    report = checked(package("mixed"), "repeated", "N:float32", "0.0")
    assert report.findings == ()
    assert (
        "outputs",
        "all were empty, so values are not checked; give numbers with --input",
    ) in report.skipped


def test_what_differs_in_numbers_only_is_warned_of_once(package: Read) -> None:
    report = checked(package("mixed"), "leaky")
    (warning,) = report.warnings
    assert "not freed when the kernel returned" in warning


def test_an_accessor_of_another_type_is_a_fault_where_the_inputs_were_given(package: Read) -> None:
    message = told(checked(package("mixed"), "longs", "N:int32"))["shapes"]
    assert message.startswith("dtype: accessor with Long elements on a tensor of dtype Int at ")
    assert "compute.cpp:" in message
    message = told(checked(package("mixed"), "longs"))["inputs"]
    assert message.startswith(
        "found no inputs that the operator accepts (dtype: accessor with Long elements on a tensor of dtype "
    )
    assert message.endswith("give them with --input, e.g. --input NxM:float32")


def test_a_reference_that_refuses_what_is_empty_is_not_a_fault(package: Read) -> None:
    reference = "x0[x1.long()] if x0.numel() else torch.zeros(0).max()"
    report = checked(package("mixed"), "gather", reference=reference)
    assert report.findings == ()
    assert "empty inputs: " in dict(report.skipped)["reference"]


def test_dimensions_that_depend_on_each_other_get_one_letter() -> None:
    def product(values: list[object], sizes: dict[str, int]) -> bool:
        left, right = values
        assert isinstance(left, Pattern)
        assert isinstance(right, Pattern)
        if (left.dtype, right.dtype) != ("float32", "uint8"):
            return False
        if (len(left.dims or ()), len(right.dims or ())) != (2, 2):
            return False
        return left.sized(sizes, (), 0).sizes[1] == right.sized(sizes, (), 0).sizes[0]

    any_shape = [Pattern(None, "float32"), Pattern(None, "float32")]
    found = mixed_inputs(any_shape, product)  # type: ignore[arg-type]
    assert found is not None
    assert pattern_words(found) == "AxB:float32 BxC:uint8"
    assert mixed_inputs(any_shape, lambda _values, _sizes: False) is None
    assert mixed_inputs(any_shape[:1], lambda _values, _sizes: True) is None


def test_integers_below_a_number_or_a_size() -> None:
    pattern = parse_pattern("BxL:int32%V")
    assert pattern == Pattern(("B", "L"), "int32", "V")
    made = list(cases((Pattern(("V",), "float32"), pattern), (0,), 8, 0))  # type: ignore[arg-type]
    assert len(made) > 8
    for case in made:
        table, index = case.inputs
        assert isinstance(table, TensorInput)
        assert isinstance(index, TensorInput)
        assert index.below == table.sizes[0]
        assert [parse_input(word) for word in case.words] == list(case.inputs)
        if 0 not in index.sizes:
            assert int(make_tensor(index).max()) < table.sizes[0]
    values = make_tensor(TensorInput((1000,), "uint8", 0, 2))
    assert set(values.tolist()) == {0, 1}
    assert int(make_tensor(TensorInput((1000,), "int8", 0, 70000)).max()) <= torch.iinfo(torch.int8).max
    assert parse_pattern("*:uint8%2") == Pattern(None, "uint8", 2)


@pytest.mark.parametrize("text", ["8:float32%4", "8:int32%0", "8:int32%"])
def test_bounds_of_invalid_values(text: str) -> None:
    with pytest.raises(UsageError, match=f"input {text}"):
        parse_input(text)
    with pytest.raises(UsageError, match=f"input {text}"):
        parse_pattern(text)


def test_a_report_in_colours(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NEURON_RT_LOG_LEVEL", "NEURON_RT_EXEC_TIMEOUT"):
        monkeypatch.setenv(name, "20" if name.endswith("TIMEOUT") else "ERROR")  # set by the command
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = ["check", str(library("mixed")), "gather", "--cases", "0"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "  assumed  inputs     AxB:float32 C:int32%A\n" in out
    assert "\n  \x1b[32mok\x1b[0m       shapes     " in out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(words) == 0
    assert "\x1b" not in capsys.readouterr().out
