"""Models that transformers builds, if it is installed: their graphs are those of the device."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neurontools.errors import MissingDependencyError
from neurontools.estimate.graphs import record_run
from neurontools.estimate.model_files import read_model
from neurontools.estimate.models import ModelError, ModelPhase, RankRun
from neurontools.estimate.parallel import RankMesh, recorded_rank
from neurontools.estimate.steps import Steps
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


MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
QWEN3_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "head_dim": 8,
}  # fmt: skip
DEEPSEEK = LLAMA | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
T5 = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 48,
    "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 40, "dropout_rate": 0.0,
    "tie_word_embeddings": False, "is_encoder_decoder": True,
}  # fmt: skip
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "vocab_size": 40, "max_source_positions": 12, "max_target_positions": 32,
    "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "dropout": 0.0, "is_encoder_decoder": True, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "llama": (LLAMA, 2), "gpt2": (GPT2, 1), "bert": (BERT, 2), "mixtral": (MIXTRAL, 2), "qwen3_moe": (QWEN3_MOE, 2),
    "deepseek_v3": (DEEPSEEK, 1), "t5": (T5, 2), "whisper": (WHISPER, 2),
}  # fmt: skip
"""Configurations by family, and the largest tensor-parallel degree to compare."""


def written(path: Path, fields: dict[str, Any]) -> str:
    file = path / "config.json"
    file.write_text(json.dumps(fields))
    return str(file)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("family", "phase", "degree"),
    [
        (family, phase, degree)
        for family, (_, most) in FAMILIES.items()
        for phase in (ModelPhase.PROMPT, ModelPhase.DECODING, ModelPhase.TRAINING)
        for degree in range(1, most + 1)
        if family != "bert" or phase is ModelPhase.PROMPT
        if family != "deepseek_v3"
        or phase is ModelPhase.DECODING  # torch adds masks in place, not so on meta
    ],
)
def test_models_of_transformers_are_recorded_as_on_the_device(
    machine: InMemoryAccelerator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    phase: ModelPhase,
    degree: int,
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr(WorkerGroup, "all_reduce", lambda *_: None)
    model = read_model(written(tmp_path, FAMILIES[family][0]))
    facts, mesh = model.facts, RankMesh(degree)
    is_first = facts.has_encoder and phase is ModelPhase.PROMPT
    source = (facts.source or 12) if facts.has_encoder else 0
    run = RankRun(phase, 2, 1 if is_first else 16, degree, source=source)
    with recorded_rank(mesh):
        part = model.build(mesh, facts.stacks).to(torch.bfloat16).to("xla")
        run_phase(part, run, mesh, vocabulary=20, causal=facts.causal, has_encoder=facts.has_encoder)
    graph, on_device = record_run(model, run).graph, machine.graphs[-1]
    if family == "t5":  # the device returns the result of an `out=` call too
        assert set(graph.outputs) <= set(on_device.outputs)
        graph = replace(graph, outputs=on_device.outputs)
    assert_same(graph, on_device)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llamma"}, "does not know the architecture 'llamma'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"hidden_size": "big"}, "does not describe a transformer that can be estimated"),
        ({"num_attention_heads": 5, "head_dim": None}, "transformers cannot run"),
        ({"model_type": "resnet"}, "transformers cannot build"),
        ({"model_type": "mamba"}, "transformers cannot build"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "neither int8 nor fp8"),
        ({"hidden_act": "grelu"}, "transformers cannot build"),
    ],
)
def test_bad_configuration_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ModelError) as caught:
        record_run(read_model(written(tmp_path, LLAMA | change)), RankRun(ModelPhase.PROMPT, 1, 8))
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_layers_without_a_plan_are_not_shared(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ModelError, match="no tensor-parallel plan for GPT2LMHeadModel"):
        record_run(read_model(written(tmp_path, GPT2)), RankRun(ModelPhase.PROMPT, 1, 8, 2))
    assert not Steps(read_model(written(tmp_path, GPT2))).can_share(2)


@pytest.mark.parametrize("fields", [MIXTRAL, QWEN3_MOE], ids=["mixtral", "qwen3_moe"])
def test_each_rank_has_the_whole_router(tmp_path: Path, fields: dict[str, Any]) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = read_model(written(tmp_path, fields))
    part = model.build(RankMesh(4), (2,))
    routers = [
        weight
        for name, weight in part.named_parameters()
        if name.endswith(("moe.gate.weight", "mlp.gate.weight"))
    ]
    assert [tuple(weight.shape) for weight in routers] == [(4, 32)] * 2


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}},
         "int8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}},
         "fp8"),
    ],
)  # fmt: skip
def test_quantization_of_a_configuration(tmp_path: Path, given: dict[str, Any], stored: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    steps = Steps(read_model(written(tmp_path, LLAMA | {"quantization_config": given})))
    plain = Steps(read_model(written(tmp_path, LLAMA)))
    assert steps.facts.weights == stored
    assert steps.weight_bytes(1) < plain.weight_bytes(1)


def test_transformers_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"a config\.json needs transformers"):
        _ = read_model(written(tmp_path, LLAMA)).facts
