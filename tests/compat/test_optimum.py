"""Models of optimum-neuron, where it is installed: docs/how-to/optimum-neuron.md says how."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1260)]

CLIP = """
    import torch, transformers
    from optimum.neuron import NeuronCLIPModel
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37)
    text = dict(sizes, vocab_size=99, max_position_embeddings=16, eos_token_id=98)
    vision = dict(sizes, image_size=32, patch_size=8)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained("clip")
    shapes = dict(text_batch_size=2, image_batch_size=1, sequence_length=8, num_channels=3, width=32, height=32)
    for inline in (True, False):
        NeuronCLIPModel.from_pretrained(
            "clip", export=True, disable_neuron_cache=True, task="feature-extraction",
            inline_weights_to_neff=inline, **shapes,
        ).save_pretrained("compiled")
        loaded = NeuronCLIPModel.from_pretrained("compiled")
        tokens = torch.randint(3, 98, (2, 8))
        inputs = dict(pixel_values=torch.rand(1, 3, 32, 32), input_ids=tokens, attention_mask=torch.ones_like(tokens))
        with torch.no_grad():
            wanted, got = model(**inputs), loaded(**inputs)
        nested = [(wanted[part], got[part]) for part in ("text_model_output", "vision_model_output")]
        pairs = [(wanted.logits_per_text, got.logits_per_text)]
        pairs += [(a.last_hidden_state, b.last_hidden_state) for a, b in nested]
        print(all(torch.allclose(a, b, atol=1e-5) for a, b in pairs))
"""
T5 = """
    import torch, transformers
    from optimum.neuron import NeuronModelForSeq2SeqLM
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    model.save_pretrained("t5")
    for beams in (1, 4):
        NeuronModelForSeq2SeqLM.from_pretrained(
            "t5", export=True, disable_neuron_cache=True, batch_size=1, sequence_length=8, num_beams=beams
        ).save_pretrained("compiled")
        loaded = NeuronModelForSeq2SeqLM.from_pretrained("compiled")
        tokens = torch.randint(3, 99, (1, 8))
        options = dict(max_length=8, num_beams=beams)
        got = loaded.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), **options)
        print(torch.equal(got, model.generate(tokens, **options)))
"""


@pytest.mark.parametrize("program", [CLIP, T5], ids=["clip", "t5"])
def test_a_model_gives_the_values_of_the_cpu(tool, home, monkeypatch, program):
    if importlib.util.find_spec("optimum") is None or importlib.util.find_spec("optimum.neuron") is None:
        pytest.skip("not installed: optimum-neuron; docs/how-to/optimum-neuron.md says how")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    (home / "program.py").write_text(textwrap.dedent(program))
    run = tool("neuron-run", "--", "python", "-W", "ignore", "program.py", timeout=1200)
    assert run.returncode == 0, run.stderr
    assert [line for line in run.stdout.splitlines() if line in {"True", "False"}] == ["True", "True"]
