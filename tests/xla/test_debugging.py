"""Debugging output: analyses of PT_XLA_DEBUG, graphs and metrics in files, eager mode, explained compiles."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from neurontools.cache.graph_facts import TensorType
from neurontools.cache.store import CompileCache
from neurontools.compiler.graph import Graph, Node, Slot, View
from neurontools.errors import UsageError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.xla import api
from neurontools.xla.debugging import debug_analysis, metrics
from neurontools.xla.debugging.compile_log import Frame
from neurontools.xla.debugging.debug_analysis import cause_text, debug_level, metric_findings
from neurontools.xla.simulated_accelerator import CompileExplainer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.xla.conftest import InMemoryAccelerator

    Capture = pytest.CaptureFixture[str]
    Patch = pytest.MonkeyPatch

RULE = "=" * 80


def step(size: int = 4) -> torch.Tensor:
    """One step: a graph of two operators."""
    result = (torch.ones(size).to("xla") + 1).exp()
    api.mark_step()
    return result


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, 0),
        ({"PT_XLA_DEBUG": "1"}, 100),
        ({"PT_XLA_DEBUG_LEVEL": "2"}, 2),
        ({"PT_XLA_DEBUG": "1", "PT_XLA_DEBUG_LEVEL": "1"}, 1),
        ({"PT_XLA_DEBUG": "0"}, 0),
    ],
)
def test_the_debug_level_follows_the_environment(
    environ: dict[str, str], level: int, monkeypatch: Patch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert debug_level() == level


def test_level_1_shows_each_compilation_and_its_sizes(
    machine: InMemoryAccelerator, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    step()
    step()
    lines = capsys.readouterr().err.splitlines()
    digest = machine.graphs[0].digest()[:32]
    assert lines[:7] == [
        "",
        f"Compilation Analysis: {RULE}",
        "Compilation Analysis: Compilation Cause",
        "Compilation Analysis:   user torch_xla.sync",
        "Compilation Analysis: Graph Info: ",
        f"Compilation Analysis:   Graph Hash: {digest}",
        "Compilation Analysis:   Number of Graph Inputs: 1",
    ]
    assert re.fullmatch(r"Compilation Analysis:   step \(.*test_debugging\.py:\d+\)", lines[9])
    assert "Post Compilation Analysis: Graph input size: 0.000000 GB" in lines
    assert sum(line.endswith("Compilation Cause") for line in lines) == 1
    assert not any(line.startswith("Execution Analysis") for line in lines)


def test_level_2_shows_each_execution_and_the_file_takes_it_all(
    machine: InMemoryAccelerator, monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "2")
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(tmp_path / "debug"))
    step()
    step().tolist()
    (torch.ones(3).to("xla") * 2).tolist()
    text = (tmp_path / "debug").read_text()
    assert text.count("Execution Analysis: Execution Cause\n") == 3
    assert "trying to access tensor value before torch_xla.sync\n" in text
    assert capsys.readouterr().err == ""


def test_other_workers_of_the_machine_are_quiet(
    machine: InMemoryAccelerator, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("PT_XLA_DEBUG", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    step()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("cause", "frames", "text"),
    [
        ("mark_step", [Frame("main", "train.py", 3)], "user torch_xla.sync"),
        (
            "mark_step",
            [Frame("__iter__", "/x/parallel_loader.py", 61), Frame("main", "train.py", 3)],
            "torch_xla.sync in parallel loader at step end",
        ),
        (
            "mark_step",
            [Frame("__exit__", "/x/debug/profiler.py", 40)],
            "torch_xla.sync when exiting a profiler StepTrace region",
        ),
        ("copy to the CPU", [], "most likely user code trying to access tensor value before torch_xla.sync"),
    ],
)
def test_a_cause_has_the_words_of_pytorch_xla(cause: str, frames: list[Frame], text: str) -> None:
    assert cause_text(cause, frames) == text


def test_unusual_metrics_are_named_after_a_step(
    machine: InMemoryAccelerator, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("PT_XLA_DEBUG", "1")
    for size in range(1, 12):
        step(size)
    assert "pt-xla-profiler: CompileTime too frequent: 11 counts during 11 steps\n" in capsys.readouterr().err
    metrics.sample("ExecuteTime", 31e9)
    metrics.count("aten::nonzero")
    assert "ExecuteTime too slow: longest instance took 31s000ms000.000us" in set(metric_findings())
    assert "Op(s) not lowered: aten::nonzero; they ran on the CPU" in set(metric_findings())


def test_each_graph_is_appended_to_a_file_as_text(
    machine: InMemoryAccelerator, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    result = step()
    torch.max(result, 0)
    api.mark_step()
    text = (tmp_path / "graphs.0").read_text()
    assert text.count("[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n  step (") == 1
    assert text.count(f"\nGraph Hash: {machine.graphs[0].digest()[:32]}\n\n## END_GRAPH\n") == 1
    first = text.partition("## BEGIN_GRAPH\n")[2].partition("\n\n")[0]
    assert re.sub(r", location=\S+:\d+", "", first) == (
        "IR {\n"
        "  %0 = f32[4]{0} xla::device_data(), device=xla:0\n"
        "  %1 = f32[4]{0} aten::add.Tensor(%0), arguments=(1)\n"
        "  %2 = f32[4]{0} aten::exp.default(%1), ROOT=0\n"
        "}"
    ).replace("aten::add.Tensor", re.findall(r"aten::add\.\w+", first)[0])
    assert "(f32[], s64[]) aten::max.dim(%0), num_outputs=2" in text


def test_graphs_are_written_for_graphviz_and_not_as_hlo(
    machine: InMemoryAccelerator, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "dot")
    step()
    text = (tmp_path / "graphs.0").read_text()
    assert "digraph G {\n" in text
    assert "  node0 -> node1\n" in text
    assert 'node2 [label="aten::exp.default\\nf32[4]{0}' in text
    api.shutdown()
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "hlo")
    with pytest.raises(UsageError, match="graphs have no HLO here"):
        step()


def test_the_metrics_report_is_appended_at_each_step(
    machine: InMemoryAccelerator, monkeypatch: Patch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setenv("XLA_METRICS_FILE", str(tmp_path / "metrics"))
    step()
    step()
    steps = re.findall(r"^\[MetricsData; step=(\d+)\]$", (tmp_path / "metrics").read_text(), re.MULTILINE)
    assert int(steps[1]) == int(steps[0]) + 1
    monkeypatch.setenv("XLA_METRICS_FILE", "STDERR")
    step()
    assert "Counter: MarkStep\n  Value: 3\n" in capsys.readouterr().err
    monkeypatch.setenv("XLA_METRICS_FILE", str(tmp_path / "ranks"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    step()
    assert sorted(os.listdir(tmp_path)) == ["metrics", "ranks.0"]


@pytest.mark.parametrize(
    ("variable", "others"),
    [
        ("XLA_METRICS_FILE", {}),
        ("XLA_SAVE_TENSORS_FILE", {}),
        ("PT_XLA_DEBUG_FILE", {"PT_XLA_DEBUG": "1"}),
    ],
)
def test_a_file_that_cannot_be_written_is_named(
    machine: InMemoryAccelerator, monkeypatch: Patch, variable: str, others: dict[str, str], tmp_path: Path
) -> None:
    for name, value in {variable: str(tmp_path / "none" / "file"), **others}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=rf"cannot write .*/none/file.* \({variable}\): No such file"):
        step()


def test_eager_mode_runs_each_operator_as_a_graph(machine: InMemoryAccelerator) -> None:
    x = torch.arange(4.0).to("xla")
    api.set_eager(True)
    try:
        y = (x + 1).exp()
        assert machine.executions == 2
        y.add_(x)
        assert machine.executions == 3
        assert torch.equal(y.cpu(), (torch.arange(4.0) + 1).exp() + torch.arange(4.0))
        assert machine.executions == 3
        (x + 1).exp()
        assert len(machine.graphs) == 3  # the same operators again compile nothing
    finally:
        api.set_eager(False)
    y = (x + 1).exp()
    assert machine.executions == 5
    api.mark_step()
    assert machine.executions == 6


def test_eager_mode_trains_as_the_lazy_device(machine: InMemoryAccelerator) -> None:
    def train() -> list[float]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)).to(
            "xla"
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4).to("xla")).sum()
            loss.backward()
            optimizer.step()
            api.mark_step()
            losses.append(loss.item())
        return losses

    lazy = train()
    api.set_eager(True)
    try:
        assert train() == lazy
    finally:
        api.set_eager(False)


def relu_graph(size: int, cut: str = "mark_step at train.py:9") -> Graph:
    """A relu of `size` numbers."""
    x, y = (View(slot, "float32", (size,), (1,), 0) for slot in (0, 1))
    nodes = tuple(Node("aten.relu.default", (x,), (), (y,), source="train.py:7") for _ in range(4))
    return Graph((Slot(4 * size), Slot(4 * size)), (0,), 0, nodes, (1,), cut=cut)


def test_a_compile_is_explained_when_it_happens(home: Path, capsys: Capture, monkeypatch: Patch) -> None:
    cache = CompileCache.open()
    explainer = CompileExplainer(cache)
    device = instance_type("trn1.2xlarge").device

    def compile_one(graph: Graph) -> str:
        explainer.explain(graph, cache.get_or_compile(graph, device, "n"))
        return capsys.readouterr().err

    first = compile_one(relu_graph(8))
    assert first.startswith("1. MODULE_")
    assert "   graph      4 operators, up to mark_step\n   line       train.py:9\n" in first
    assert "first compile" in first
    second = compile_one(relu_graph(3))
    assert "   against    " in second
    assert "last partial batch" in second
    assert "(8 -> 3)" in second
    assert max(map(len, second.splitlines())) <= 80
    assert "\x1b" not in second
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1m3. MODULE_" in compile_one(relu_graph(5))
    eager = replace(relu_graph(6), cut="eager mode at train.py:1")
    assert "not explained" in compile_one(eager)
    assert compile_one(replace(eager, lifted=1)) == ""


def test_what_is_not_stored_is_not_compared(home: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--no_cache")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    cache = CompileCache.open()
    graph = relu_graph(8)
    CompileExplainer(cache).explain(
        graph, cache.get_or_compile(graph, instance_type("trn1.2xlarge").device, "n")
    )
    said = capsys.readouterr().err
    assert said.startswith("rank 1: 1. compiled, but not stored")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *(("float16", "f16"), ("float32", "f32"), ("float64", "f64"), ("bfloat16", "bf16"), ("bool", "pred")),
        *(("int8", "s8"), ("int16", "s16"), ("int32", "s32"), ("int64", "s64"), ("uint8", "u8")),
        *(
            ("uint16", "u16"),
            ("uint32", "u32"),
            ("uint64", "u64"),
            ("complex64", "c64"),
            ("complex128", "c128"),
        ),
    ],
)
def test_types_are_named_as_xla_names_them(dtype: str, name: str) -> None:
    assert debug_analysis._shape(TensorType(dtype, (2, 3))) == f"{name}[2,3]{{1,0}}"
