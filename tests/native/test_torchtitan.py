"""torchtitan's debug model trains on the device `neuron`, where torchtitan and triton are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

_NEEDED = ("torchtitan", "triton", "tokenizers")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, _NEEDED)), reason="torchtitan is not installed"),
]
_LOSS = re.compile(r"step:\D*(\d+).*?loss:\D*([\d.]+)")


def write_inputs(home):
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    for name in ("tokenizer", "text"):
        (home / name).mkdir()
    tokenizer.save(str(home / "tokenizer" / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    (home / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    lines = [json.dumps({"text": f"line {number} of a text " * 20}) for number in range(100)]
    (home / "text" / "lines.json").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, ""),
        (2, ""),
        (4, "--parallelism.tensor_parallel_degree 2"),
        (
            4,
            (
                "--parallelism.tensor_parallel_degree 2 --compile.enable --compile.backend neuron "
                "--activation_checkpoint.mode full"
            ),
        ),
    ],
    ids=["alone", "fsdp", "fsdp and tensor parallel", "compiled with checkpoints"],
)
def test_the_debug_model_learns(tool, home, workers, options):
    write_inputs(home)
    start(StartOptions(machine="default", instance_type="trn2.3xlarge"))
    arguments = (
        f"--standalone --nproc_per_node={workers} -m torchtitan.train --model.hf_assets_path ./tokenizer "
        "--training.dataset_path ./text --training.steps 4 --training.seq_len 64 --metrics.log_freq 1 "
        f"--training.local_batch_size {4 // workers} --lr_scheduler.warmup_steps 1 {options}"
    )
    environ = {**os.environ, "NEURONTOOLS_DEVICE": "neuron"}
    run = tool("neuron-run", "--", "torchrun", *arguments.split(), env=environ)
    assert run.returncode == 0, run.stderr
    losses = dict(_LOSS.findall(run.stdout + run.stderr))
    assert list(losses) == ["1", "2", "3", "4"]
    assert float(losses["4"]) < float(losses["1"]) - 1
