"""A pytest plugin that runs the fast tests of the public kernel library on this project's NKI.

    python -m pytest -p tests.nki.public_library.plugin --noconftest -m fast PATH/test/integration

The library's own fixtures start compilers and devices; these run the kernel here and compare as the library compares.
README.md has the command and what passes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neurontools.nki import memory
from neurontools.nki.instructions import matrix
from tests.nki.public_library import stand_ins
from tests.nki.public_library.cases import Cases

stand_ins.install()
sys.path.insert(0, str(Path(__file__).parents[3] / "neurontools" / "compat"))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the library's marks, and compute what its references of release 2.29 expect."""
    if config.getoption("--cases"):
        options = [config.getoption(name) for name in ("--cases", "--platform-target", "--sample", "--cpu-s")]
        config.pluginmanager.register(Cases(*options))
    matrix._SCALE_HEADROOM = 0  # since 2.31 scales of microscaling formats are twice as large
    memory._UNWRITTEN_INTEGER = memory._UNWRITTEN_FLOAT = (
        0  # references hold zeros where kernels write nothing
    )
    for mark in (
        "fast",
        "coverage_parametrize",
        "platforms",
        "slow_simulation",
        "simulation",
        "trace_only",
        "compile_only",
    ):
        config.addinivalue_line("markers", f"{mark}: of the library")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the target and for many cases."""
    parser.addoption("--platform-target", default="trn2")
    parser.addoption("--cases", type=Path, help="add a line for each case to this file, and bound each")
    parser.addoption(
        "--cpu-s", type=int, default=60, help="CPU seconds beyond which a case is too large, with --cases"
    )
    parser.addoption("--sample", type=int, default=sys.maxsize, help="the most cases of a file, with --cases")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that the library excludes on the target."""
    target = config.getoption("--platform-target")
    for item in items:
        mark = item.get_closest_marker("platforms")
        if mark and target in {str(platform) for platform in mark.kwargs.get("exclude") or ()}:
            item.add_marker(pytest.mark.skip(reason=f"not for {target}, the library says"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the fast cases of the library's ranges and coverings, without those that must fail."""
    if not any(mark.name == "fast" for mark in metafunc.definition.iter_markers()):
        if "range_test_options" in metafunc.fixturenames:
            metafunc.parametrize("range_test_options", [])
        for mark in metafunc.definition.iter_markers("coverage_parametrize"):
            names = [name for name in mark.kwargs if name in metafunc.fixturenames]
            metafunc.parametrize(names, [])
        return
    if "range_test_options" in metafunc.fixturenames:
        from test.utils.ranged_test_harness import RANGE_TEST_CONFIG_ATTR_KEY, RangeTestHarness

        names, cases = RangeTestHarness(
            getattr(metafunc.function, RANGE_TEST_CONFIG_ATTR_KEY)
        ).get_unique_test_cases()
        metafunc.parametrize("range_test_options", cases, ids=names)
    mark = metafunc.definition.get_closest_marker("coverage_parametrize")
    if mark is not None:
        _parametrize_covering(metafunc, dict(mark.kwargs))


def _parametrize_covering(metafunc: pytest.Metafunc, options: dict[str, Any]) -> None:
    from test.utils.coverage_parametrized_tests import (
        extract_parametrize_args,
        generate_parametrized_test_case,
    )

    chosen = {name: options.pop(name, None) for name in ("coverage", "filter")}
    options = {
        name: value for name, value in options.items() if not name.startswith(("enable_", "n_tests_", "max_"))
    }
    cases = generate_parametrized_test_case(
        options,
        chosen["coverage"] or "singles",
        chosen["filter"],
        enable_automatic_boundary_tests=False,
        enable_invalid_combination_tests=False,
    )
    names, values, ids = extract_parametrize_args(options, cases)
    metafunc.parametrize(names, values, ids=ids)


class Runner:
    """Runs a kernel as the library's orchestrator would, and compares.

    Args:
        case: the test.
    """

    def __init__(self, case: pytest.Item) -> None:
        self._case = case

    def execute(self, kernel_args: Any, **_options: Any) -> None:
        """Run a kernel on its ranks and compare the results of each with the reference."""
        from neurontools.nki.launch import Kernel, run_ranks

        compiler = kernel_args.compiler_input
        os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = compiler.platform_target.get_compile_target()
        given = kernel_args.kernel_input or {}
        ranks = getattr(getattr(kernel_args, "inference_args", None), "collective_ranks", None) or 1
        self._case.user_properties.append(("ranks", ranks))
        stand_ins.name_packed_types()
        by_rank = [given.for_rank(rank) if hasattr(given, "for_rank") else given for rank in range(ranks)]
        calls = [
            ((), {name.removesuffix(".must_alias_input"): _own(value) for name, value in inputs.items()})
            for inputs in by_rank
        ]
        function = kernel_args.kernel_func
        kernel = function if isinstance(function, Kernel) else Kernel(function)
        runs = run_ranks(kernel[compiler.logical_nc_config], calls)
        golden = kernel_args.validation_args.golden_output
        for rank, finished in enumerate(runs):
            wanted = (
                golden.for_rank(rank) if hasattr(golden, "for_rank") else getattr(golden, "golden", golden)
            )
            if wanted is not None:
                _compare(finished.results, wanted, kernel_args.validation_args)


def _own(value: Any) -> Any:
    """Return a copy of an array: each rank has memory of its own, and references are made from the caller's."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _compare(results: Any, wanted: dict[str, Any], validation: Any) -> None:
    from test.integration.nkilib.utils.comparators import maxAllClose

    outputs = [] if results is None else list(results) if isinstance(results, list | tuple) else [results]
    # Results have the names of the declared outputs, of which a reference may leave out some.
    names = list(getattr(validation.golden_output, "output_ndarray", None) or wanted)
    by_name = dict(zip(names, outputs, strict=False))
    for name, expected in wanted.items():
        actual = np.asarray(by_name[name])
        if hasattr(expected, "validator"):
            validator = expected.validator
            made = validator() if isinstance(validator, type) else validator
            assert made.validate(actual), name
            continue
        reference = np.asarray(expected)
        if actual.dtype.itemsize == reference.dtype.itemsize:  # the library reads the bytes of a file
            actual = actual.view(reference.dtype)
        assert maxAllClose(
            actual.astype(np.float32).reshape(reference.shape),
            reference.astype(np.float32),
            rtol=validation.relative_accuracy,
            atol=validation.absolute_accuracy,
            verbose=1,
        ), name


@pytest.fixture
def test_manager(request: pytest.FixtureRequest) -> Runner:
    """Return what runs kernels."""
    return Runner(request.node)


@pytest.fixture
def platform_target(request: pytest.FixtureRequest) -> Any:
    """Return the target of the run."""
    from test.utils.common_dataclasses import Platforms

    return Platforms(request.config.getoption("--platform-target"))


@pytest.fixture
def collector() -> Any:
    """Return a collector of nothing."""
    from test.utils.metrics_collector import NoopMetricsCollector

    return NoopMetricsCollector()
