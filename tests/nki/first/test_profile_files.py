"""Files that decorators of the first generation write: NEFFs, and profiles in the form of every profile."""

from __future__ import annotations

import os
from pathlib import Path

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.compiler.neff import parse
from neurontools.errors import NeuronToolsError
from neurontools.profiler.trace.open import load

DATA = np.ones((128, 64), np.float32)


def doubled(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(a) * 2)
    return out


def test_decorators_write_what_they_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nki.baremetal(doubled)(DATA)
    nki.simulate_kernel(nki.baremetal(save_neff_name="none.neff")(doubled), DATA)
    assert os.listdir() == []
    nki.baremetal(save_neff_name="one.neff")(doubled)(DATA)
    nki.benchmark(save_neff_name="b/two.neff", save_trace_name="b/two.ntff")(doubled)[1](DATA)
    nki.profile(working_directory=f"{tmp_path}/p")(doubled)(DATA)
    nki.profile(working_directory=f"{tmp_path}/q", save_trace_name="t.ntff", profile_nth=3)(doubled)(DATA)
    written = [f"{folder}/{name}" for folder in (".", "b", "p", "q") for name in sorted(os.listdir(folder))]
    assert [name for name in written if name.endswith("ff")] == [
        "./one.neff",
        "b/two.neff",
        "b/two.ntff",
        "p/file.neff",
        "p/profile.ntff",
        "q/file.neff",
        "q/t_exec_3.ntff",
    ]
    operations = parse(Path("one.neff").read_bytes()).cost.ops
    assert [each.opcode for each in operations] == ["DMA_DIRECT2D", "TENSOR_SCALAR", "DMA_DIRECT2D"]
    assert all(each.source.startswith(f"{__file__}:") for each in operations)
    for name in ("b/two.ntff", "p/profile.ntff"):
        assert load(name).models[0].name == "doubled"
    assert load("q/t_exec_3.ntff").runs[0].number.tolist() == [3]


def test_files_of_another_run_are_replaced_only_if_the_decorator_says_so(tmp_path):
    (tmp_path / "file.neff").write_text("old")
    with pytest.raises(NeuronToolsError, match=r"file\.neff exists") as error:
        nki.profile(working_directory=str(tmp_path))(doubled)(DATA)
    assert "overwrite=True" in error.value.remedy
    nki.profile(working_directory=str(tmp_path), overwrite=True)(doubled)(DATA)
    assert parse((tmp_path / "file.neff").read_bytes()).graph.nodes[0].op == "nki.doubled.default"
    nki.profile(working_directory=str(tmp_path))(doubled)(DATA)  # this process wrote them
    with pytest.raises(NeuronToolsError, match="cannot write"):
        nki.profile(working_directory=f"{tmp_path}/file.neff")(doubled)(DATA)
