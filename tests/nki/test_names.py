"""`nki` offers the names and parameters of the documents: `fixtures/engines/nki.yaml` is the list."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from neurontools.nki.limits import document
from neurontools.nki.operators import MathOperator

FUNCTIONS = [
    (module, name, parameters)
    for module, functions in document()["functions"].items()
    for name, parameters in functions.items()
]


def _names(parameters: str) -> list[str]:
    return [part.partition("=")[0].partition(":")[0].strip() for part in parameters.split(", ") if part]


@pytest.mark.parametrize(
    ("module", "name", "parameters"), FUNCTIONS, ids=[f"{m}.{n}" for m, n, _ in FUNCTIONS]
)
def test_functions_exist_with_their_parameters(module: str, name: str, parameters: str) -> None:
    found = getattr(import_module(f"neurontools.compat.nki.{module}"), name)
    if isinstance(found, MathOperator):
        assert "dtype" in _names(parameters)
        assert found.arity == len(_names(parameters)) - 1
    else:
        ours = [name for name in inspect.signature(found).parameters if not name.startswith("_")]
        assert ours == _names(parameters)


def test_the_documented_number_of_functions() -> None:
    counts = {module: len(functions) for module, functions in document()["functions"].items()}
    assert counts == {"isa": 52, "language": 103, "collectives": 11}


def _run(code: str) -> str:
    """Return what a program prints that imports `nki` as users do."""
    compat = Path(import_module("neurontools.compat").__file__ or "").parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(compat)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_importing_nki_loads_numpy_and_not_torch() -> None:
    code = "import nki, nki.language, nki.isa, nki.collectives, sys; print('numpy' in sys.modules, 'torch' in sys.modules)"
    assert _run(code).split() == ["True", "False"]


@pytest.mark.parametrize("name", ["baremetal", "benchmark", "profile", "simulate_kernel"])
def test_names_of_the_first_generation_are_refused_with_a_reason(name: str) -> None:
    assert f"no attribute '{name}': it belongs to neuronxcc.nki, the first generation; here: " in _run(
        f"import nki; nki.{name}"
    )
