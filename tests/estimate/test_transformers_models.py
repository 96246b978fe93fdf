"""Models that transformers builds, if it is installed: their graphs are those of the device."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neurontools.errors import MissingDependencyError
from neurontools.estimate.graphs import ModelPhase, graph_of
from neurontools.estimate.model_files import read_model
from neurontools.estimate.models import ModelError
from neurontools.estimate.parallel import RankMesh, recorded_rank
from neurontools.xla.distributed.worker_group import WorkerGroup
from tests.estimate.test_recorded_graphs import assert_same, run_phase

if TYPE_CHECKING:
    from pathlib import Path

    from tests.xla.conftest import InMemoryAccelerator

pytestmark = pytest.mark.torch

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "vocab_size": 40, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    "tie_word_embeddings": False,
}  # fmt: skip
BERT = {
    "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip


def written(path: Path, fields: dict[str, Any]) -> str:
    file = path / "config.json"
    file.write_text(json.dumps(fields))
    return str(file)


@pytest.mark.parametrize(
    ("fields", "phase", "mesh"),
    [
        pytest.param(fields, phase, mesh, id=f"{fields['model_type']}-{phase}-{mesh.tensor}")
        for fields, meshes in (
            (LLAMA, (RankMesh(), RankMesh(2))),
            (GPT2, (RankMesh(),)),
            (BERT, (RankMesh(),)),
        )
        for mesh in meshes
        for phase in ModelPhase
        if fields is not BERT or phase is ModelPhase.PROMPT
    ],
)
def test_models_of_transformers_are_recorded_as_on_the_device(
    machine: InMemoryAccelerator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    phase: ModelPhase,
    mesh: RankMesh,
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr(WorkerGroup, "all_reduce", lambda *_: None)
    model = read_model(written(tmp_path, fields))
    with recorded_rank(mesh):
        part = model.build(mesh, 2).to(torch.bfloat16).to("xla")
        run_phase(part, phase, mesh, 2, 16, vocabulary=20, causal=model.causal)
    assert_same(graph_of(model, phase, 2, 16, mesh.tensor), machine.graphs[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llamma"}, "does not know the architecture 'llamma'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"hidden_size": "big"}, "does not describe a transformer with one stack of layers"),
        ({"num_attention_heads": 5, "head_dim": None}, "transformers cannot run"),
        ({"model_type": "t5"}, "config.json"),
        ({"model_type": "resnet"}, "transformers cannot build"),
        ({"hidden_act": "grelu"}, "transformers cannot build"),
    ],
)
def test_bad_configuration_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ModelError) as caught:
        graph_of(read_model(written(tmp_path, LLAMA | change)), ModelPhase.PROMPT, 1, 8)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_layers_without_a_plan_are_not_shared(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ModelError, match="no tensor-parallel plan for GPT2LMHeadModel"):
        graph_of(read_model(written(tmp_path, GPT2)), ModelPhase.PROMPT, 1, 8, 2)


def test_transformers_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"a config\.json needs transformers"):
        read_model(written(tmp_path, LLAMA))
