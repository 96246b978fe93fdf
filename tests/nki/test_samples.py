"""NKI kernels of the samples, and those that `neurontools new nki` writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neurontools.commands.new import main as new
from neurontools.nki.kernel_file import load_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = Path(__file__).parents[2] / "fixtures" / "customops" / "nki_kernels.py"


@pytest.mark.torch
@pytest.mark.parametrize("sizes", [(1, 8), (3, 37), (128, 512), (129, 513), (300, 1000)])
def test_kernels_of_the_samples_compute_what_torch_computes(
    sizes: tuple[int, int], target: Callable[[str], None]
) -> None:
    import torch

    target("trn1")
    relu, gradient_of_relu, topk, layer_norm = (
        load_kernel(f"{SAMPLES}::{name}") for name in ("relu", "relu_gradient", "topk", "layer_norm")
    )
    generator = torch.Generator().manual_seed(1)
    x, gradient = (torch.randn(sizes, generator=generator) for _ in range(2))
    weight, bias = (torch.randn(sizes[1], generator=generator) for _ in range(2))
    torch.testing.assert_close(relu(x), torch.relu(x))
    (expected,) = torch.autograd.grad(torch.relu(x.requires_grad_()), x, gradient)
    torch.testing.assert_close(gradient_of_relu(gradient, x), expected)
    for count in (1, 7, 8):
        values, positions = topk(x, count)
        torch.testing.assert_close(values, torch.topk(x, count).values)
        torch.testing.assert_close(x.gather(1, positions.long()), values)
    torch.testing.assert_close(
        layer_norm(x, weight, bias), torch.nn.functional.layer_norm(x, sizes[1:], weight, bias)
    )


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_kernel_passes_its_own_tests(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new(["nki", "silu"]) == 0
    assert capsys.readouterr().out.splitlines() == ["silu/silu.py", "silu/test_silu.py"]
    from neurontools import compat

    environment = os.environ | {"PYTHONPATH": f"{compat.__path__[0]}/site"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "silu"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert "5 passed" in done.stdout, done.stdout
    source = empty / "silu" / "silu.py"
    source.write_text(source.read_text().replace("nl.sigmoid", "nl.tanh"))
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert "5 failed" in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["for", "a-b", "1a", "", "a/b", "nl", "nki", "numpy", "json", "min"])
def test_names_that_kernels_cannot_have(empty: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert new(["nki", name]) == 1
    assert capsys.readouterr().err.startswith(f'error: invalid kernel name "{name}"\nhint: use letters')
    assert list(empty.iterdir()) == []


def test_a_new_kernel_replaces_no_file(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (empty / "other").mkdir()
    (empty / "other" / "test_silu.py").write_text("mine")
    assert new(["nki", "silu", "other"]) == 1
    assert capsys.readouterr().err.startswith("error: other/test_silu.py already exists\nhint: ")
    assert [path.name for path in (empty / "other").iterdir()] == ["test_silu.py"]
    assert new(["nki", "silu", "other/test_silu.py/below"]) == 1
    assert capsys.readouterr().err.startswith("error: cannot write other/test_silu.py/below: ")
