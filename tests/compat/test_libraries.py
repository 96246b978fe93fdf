"""accelerate and transformers on the device, where they are installed: `pip install 'neurontools[libraries]'`."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("accelerate", "transformers")),
        reason="accelerate and transformers are not installed: neurontools[libraries]",
    ),
]

BERT = """
    import os, torch
    from transformers import BertConfig, BertForSequenceClassification
    os.environ["HF_HUB_OFFLINE"] = "1"
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    torch.manual_seed(0)
    data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)} for i in range(16)]
"""
ACCELERATE = """
    from accelerate import Accelerator
    accelerator = Accelerator()
    print(accelerator.device, accelerator.distributed_type)
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def epoch():
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    epoch()
    accelerator.save_state("state")
    first = epoch()
    accelerator.load_state("state")
    print(first == epoch())
    accelerator.unwrap_model(model).save_pretrained("saved")
    print(BertForSequenceClassification.from_pretrained("saved").num_labels)
"""
TRAINER = """
    from transformers import Trainer, TrainingArguments

    def make():
        torch.manual_seed(1)
        options = TrainingArguments(
            "out", max_steps=4, per_device_train_batch_size=4, save_steps=2, logging_steps=1, report_to=[],
            learning_rate=1e-3, disable_tqdm=True,
        )
        return Trainer(BertForSequenceClassification(config), options, train_dataset=data)

    def losses(trainer):
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    whole, resumed = make(), make()
    whole.train()
    resumed.train(resume_from_checkpoint="out/checkpoint-2")
    print(whole.args.device, losses(whole) == losses(resumed))
"""
TRACE = """
    import torch_neuronx
    model = BertForSequenceClassification(config).eval()
    tokens = torch.randint(0, 50, (2, 8))
    example = (tokens, torch.ones_like(tokens))
    traced = torch_neuronx.trace(model, example)
    torch.jit.save(traced, "bert.pt")
    print(torch.equal(torch.jit.load("bert.pt")(*example)["logits"], model(*example).logits))
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ACCELERATE, ["xla:0 DistributedType.XLA", "True", "2"]),
        (TRAINER, ["xla:0 True"]),
        (TRACE, ["True"]),
    ],
    ids=["accelerate", "trainer", "trace"],
)
def test_a_library_runs_as_it_is(tool, home, body, expected):
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    (home / "program.py").write_text(textwrap.dedent(BERT) + textwrap.dedent(body))
    run = tool("neuron-run", "--", "python", "-W", "ignore", "program.py")
    assert run.returncode == 0, run.stderr
    printed = [line for line in run.stdout.splitlines() if not line.startswith("{")]
    assert printed == expected
