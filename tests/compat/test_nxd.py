"""Models of NxD and NxD Inference, where these libraries are installed: docs/how-to/nxd-inference.md says how."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1260)]

LAYERS = """
    import logging, torch
    logging.disable(logging.INFO)
    from neuronx_distributed.parallel_layers.layers import ColumnParallelLinear, RowParallelLinear

    class Parallel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = ColumnParallelLinear(16, 32, bias=True, gather_output=False)
            self.down = RowParallelLinear(32, 16, bias=True, input_is_parallel=True)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x, scale=None):
            self.calls += 1
            result = self.down(torch.relu(self.up(x)))
            return result if scale is None else result * scale

    class Dense(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

        def forward(self, x):
            return self.down(torch.relu(self.up(x)))

    torch.manual_seed(0)
    dense, other = Dense(), Dense()

    def weights(model):
        return {name: value.clone() for name, value in model.state_dict().items()}

    def is_close(got, wanted):
        return (got - wanted).abs().max().item() < 1e-5
"""
FIRST = (
    LAYERS
    + """
    from neuronx_distributed.trace.model_builder import BaseModelInstance, ModelBuilder

    builder = ModelBuilder(
        router=None, tp_degree=2, checkpoint_loader=lambda: weights(dense) | {"calls": torch.zeros(1)},
        compiler_workdir="work",
    )
    builder.add("layers", BaseModelInstance(Parallel, {}), [(torch.ones(2, 16),), (torch.ones(4, 16),)])
    model = builder.trace(initialize_model_weights=True)
    for size in (2, 4, 2):
        x = torch.rand(size, 16)
        print(is_close(model(x), dense(x)))
"""
)
SECOND = (
    LAYERS
    + """
    from neuronx_distributed.trace.functions import shard_checkpoint
    from neuronx_distributed.trace.model_builder_v2 import ModelBuilder
    from neuronx_distributed.trace.nxd_model import NxDModel
    from neuronx_distributed.trace.parallel_context import NxDParallelState

    with NxDParallelState(world_size=2, tensor_model_parallel_size=2):
        module = Parallel()
        builder = ModelBuilder(module).trace(args=torch.ones(2, 16), tag="two")
        builder.trace(kwargs={"x": torch.ones(4, 16), "scale": torch.ones(1)}, tag="four")
        model = builder.compile(priority_model_key="two")
        shards = [shard_checkpoint(weights(each), module) for each in (dense, other)]

    def check(model, wanted):
        x, y = torch.rand(2, 16), torch.rand(4, 16)
        print(is_close(model(x), wanted(x)), is_close(model(x=y, scale=torch.tensor([3.0])), 3 * wanted(y)))

    model.set_weights(shards[0])
    model.to_neuron()
    check(model, dense)
    model.replace_weights(shards[1])
    check(model, other)
    x = torch.rand(2, 16)
    model([x, x], forward_mode="ranked")
    print(model.read_from_neuron_buffer("calls", 1).item())  # `replace_weights` set it to zero
    model.save("model.pt")
    loaded = NxDModel.load("model.pt")
    loaded.set_weights(shards[0])
    loaded.to_neuron()
    check(loaded, dense)
"""
)
GENERATION = """
    import importlib, logging, os, torch
    logging.disable(logging.WARNING)
    import transformers
    from neuronx_distributed_inference.models.config import MoENeuronConfig, NeuronConfig
    from neuronx_distributed_inference.utils.hf_adapter import (
        HuggingFaceGenerationAdapter, load_pretrained_config,
    )

    sizes = dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=128, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False, head_dim=16,
    )
    experts = dict(num_experts_per_tok=2, num_local_experts=4, num_experts=4, moe_intermediate_size=64)
    prompts = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])
    options = dict(attention_mask=torch.ones_like(prompts))
    options["generation_config"] = transformers.GenerationConfig(
        max_new_tokens=12, do_sample=False, pad_token_id=0
    )

    def generate(package, name, ranks, **further):
        has_experts = name in ("Mixtral", "Qwen3Moe")
        chosen = {**sizes, **(experts if has_experts else {}), "norm_topk_prob": True, "sliding_window": None}
        torch.manual_seed(0)
        config = getattr(transformers, name + "Config")(**chosen)
        reference = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        reference.save_pretrained(package)
        module = importlib.import_module(f"neuronx_distributed_inference.models.{package}.modeling_{package}")
        if has_experts:
            further["blockwise_matmul_config"] = {"use_torch_block_wise": True}
        neuron = (MoENeuronConfig if has_experts else NeuronConfig)(
            tp_degree=ranks, batch_size=2, max_context_length=32, seq_len=64, torch_dtype=torch.float32, **further
        )
        config = getattr(module, name + "InferenceConfig")(neuron, load_config=load_pretrained_config(package))
        model = getattr(module, f"Neuron{name}ForCausalLM")(package, config)
        model.compile(f"{package}-compiled")
        model.load(f"{package}-compiled")
        tokens = HuggingFaceGenerationAdapter(model).generate(prompts, **options)
        print(torch.equal(tokens, reference.generate(prompts, **options)))
"""
RUNS = {
    "ModelBuilder": (FIRST, 3 * ["True"]),
    "ModelBuilder of version 2": (SECOND, ["True True", "True True", "3.0", "True True"]),
    "dense models": (
        GENERATION
        + """
    generate("llama", "Llama", 1)
    generate("llama", "Llama", 4, enable_bucketing=True, context_encoding_buckets=[16, 32])
    generate("llama", "Llama", 2, is_continuous_batching=True, ctx_batch_size=1, max_batch_size=2)
    generate("mistral", "Mistral", 2)
    generate("qwen2", "Qwen2", 2)
    generate("qwen3", "Qwen3", 2)
""",
        6 * ["True"],
    ),
    "models with experts": (
        GENERATION
        + """
    generate("mixtral", "Mixtral", 2)
    generate("qwen3_moe", "Qwen3Moe", 2)
""",
        2 * ["True"],
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_model_of_nxd_gives_the_values_of_the_cpu(tool, home, name, monkeypatch):
    program, expected = RUNS[name]
    for library in ("neuronx_distributed", "neuronx_distributed_inference", "transformers"):
        if library in program and importlib.util.find_spec(library) is None:
            pytest.skip(f"not installed: {library}; docs/how-to/nxd-inference.md")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    start(StartOptions(machine="default", instance_type="trn1.32xlarge"))
    (home / "program.py").write_text(textwrap.dedent(program))
    run = tool("neuron-run", "--", "python", "-W", "ignore", "program.py", timeout=1200)
    assert run.returncode == 0, run.stderr
    assert [
        line for line in run.stdout.splitlines() if line in {"True", "True True", "3.0", "False"}
    ] == expected


def test_the_serving_sample_generates_the_tokens_of_transformers(tool, home, monkeypatch):
    for library in ("vllm", "vllm_neuron", "neuronx_distributed_inference", "nkilib", "torchvision"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"not installed: {library}; docs/tutorials/serving.md")
    for name, value in {"HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": "neuron", "NEURON_RT_NUM_CORES": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(home / "cache"))
    start(StartOptions(machine="default", instance_type="trn1.32xlarge"))
    for arguments in (
        ("neurontools", "new", "sample", "serve_llm"),
        ("neuron-run", "--", "python", "serve_llm.py", "make"),
        ("neuron-run", "--", "python", "serve_llm.py", "generate"),
        ("neuron-run", "--", "python", "serve_llm.py", "generate"),  # from the compile cache
    ):
        run = tool(*arguments, timeout=600)
        assert run.returncode == 0, run.stderr
    assert [line.rpartition(": ")[2] for line in run.stdout.splitlines() if line.startswith("'")] == 3 * [
        "tokens of transformers"
    ]
