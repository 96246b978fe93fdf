"""Libraries on top of torch train on the device, where they are installed: `pip install 'neurontools[libraries]'`."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = [pytest.mark.torch, pytest.mark.timeout(660)]

# PyPI's torchvision for x86-64 is built for CUDA; beside torch's CPU build it does not import without these operators.
PREPARE = """
    import importlib.util, sys, torch
    if importlib.util.find_spec("torchvision"):
        try:
            import torchvision
        except RuntimeError:
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            for name in ("nms", "qnms"):
                schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                torch.library.define(f"torchvision::{name}", schema)
"""
BERT = """
    import os
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
# A Trainer saves the random numbers of CUDA, XLA and others, but not those of the native device.
WITHOUT_DROPOUT = """
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
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


XLA = """
    import torch_xla
    DEVICE, sync = "xla", torch_xla.sync
"""
NEURON = """
    DEVICE, sync = "neuron", lambda: None
"""
COMPARE = """
    def losses(make, loss_of, device):
        torch.manual_seed(0)
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        data = torch.Generator().manual_seed(1)
        torch.manual_seed(2)  # dropout, which is drawn on the device
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, data, device)
            loss.backward()
            optimizer.step()
            sync()
            seen.append(loss.item())
        return seen

    def compare(make, loss_of, tolerance=0.0):
        pairs = zip(losses(make, loss_of, "cpu"), losses(make, loss_of, DEVICE), strict=True)
        print(all(abs(cpu - device) <= tolerance for cpu, device in pairs))

    def image_loss(model, data, device):
        images, labels = torch.randn(2, 3, 32, 32, generator=data), torch.tensor([1, 2])
        return torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
"""
TIMM = """
    import timm
    compare(lambda: timm.create_model("resnet10t", num_classes=4), image_loss)
    vit = dict(img_size=32, depth=2, num_classes=4)
    compare(lambda: timm.create_model("vit_tiny_patch16_224", **vit), image_loss)
"""
TORCHVISION = """
    import torchvision
    from torchvision.transforms import v2
    compare(lambda: torchvision.models.mobilenet_v3_small(num_classes=4), image_loss)
    prepare = v2.Compose([v2.Resize(32), v2.Normalize([0.5] * 3, [0.5] * 3)])
    images = torch.rand(2, 3, 40, 40)
    print(torch.equal(prepare(images.to(DEVICE)).cpu(), prepare(images)))
"""
DIFFUSERS = """
    from diffusers import DDPMScheduler, UNet2DModel
    noise_of = DDPMScheduler(num_train_timesteps=50)

    def make():
        return UNet2DModel(
            sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, attention_head_dim=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )

    def loss_of(model, data, device):
        images, noise = torch.randn(2, 2, 3, 8, 8, generator=data).to(device)
        times = torch.randint(0, 50, (2,), generator=data).to(device)
        predicted = model(noise_of.add_noise(images, noise, times), times).sample
        return torch.nn.functional.mse_loss(predicted, noise)

    compare(make, loss_of, 1e-6)  # torch's gradient of a GroupNorm in channels-last order
"""
PEFT = """
    import os
    os.environ["HF_HUB_OFFLINE"] = "1"
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )

    def make():
        adapters = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        return get_peft_model(LlamaForCausalLM(config), adapters)

    def loss_of(model, data, device):
        tokens = torch.randint(0, 50, (2, 6), generator=data).to(device)
        return model(input_ids=tokens, labels=tokens).loss

    compare(make, loss_of)
    make().to(DEVICE).save_pretrained("adapters")
    loaded = PeftModel.from_pretrained(LlamaForCausalLM(config).to(DEVICE), "adapters")
    print({weight.device.type for weight in loaded.parameters()})
    merged = loaded.merge_and_unload().eval()
    tokens = torch.ones(1, 3, dtype=torch.long)
    options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0)
    generated = merged.generate(tokens.to(DEVICE), **options)
    print(torch.equal(generated.cpu(), merged.cpu().generate(tokens, **options)))
"""
METRICS = """
    import datasets, torchmetrics
    rows = {"x": torch.randn(12, 3).tolist(), "label": [i % 3 for i in range(12)]}
    loader = torch.utils.data.DataLoader(datasets.Dataset.from_dict(rows).with_format("torch"), batch_size=4)
    scores = {}
    for device in ("cpu", DEVICE):
        measured = torchmetrics.MetricCollection([
            torchmetrics.Accuracy("multiclass", num_classes=3), torchmetrics.F1Score("multiclass", num_classes=3),
            torchmetrics.AUROC("multiclass", num_classes=3), torchmetrics.ConfusionMatrix("multiclass", num_classes=3),
        ]).to(device)
        mean = torchmetrics.MeanMetric().to(device)
        for batch in loader:
            measured.update(batch["x"].to(device), batch["label"].to(device))
            mean.update(batch["x"].to(device).mean())
            sync()
        scores[device] = [*measured.compute().values(), mean.compute()]
    print({score.device.type for score in scores[DEVICE]})
    print(all(torch.equal(a, b.cpu()) for a, b in zip(scores["cpu"], scores[DEVICE], strict=True)))
"""
LIGHTNING = """
    import logging
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    import pytorch_lightning as lightning
    from pytorch_lightning.accelerators import Accelerator
    from pytorch_lightning.strategies import SingleDeviceStrategy, SingleDeviceXLAStrategy
    Strategy = SingleDeviceXLAStrategy if DEVICE == "xla" else SingleDeviceStrategy

    class Neuron(Accelerator):
        setup_device = teardown = lambda self, *_: None
        parse_devices = staticmethod(lambda devices: devices)
        get_parallel_devices = staticmethod(lambda devices: [torch.device(DEVICE, 0)])
        auto_device_count = staticmethod(lambda: 1)
        is_available = staticmethod(lambda: True)
        name = staticmethod(lambda: "neuron")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
            self.devices, self.losses = set(), []
        def training_step(self, batch, index):
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            self.devices.add(loss.device.type)
            self.losses.append(loss.detach())
            return loss
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    def fit(epochs, resume=None, **options):
        lightning.seed_everything(0, verbose=False)
        net, rows = Net(), torch.utils.data.TensorDataset(torch.randn(16, 4), torch.arange(16) % 2)
        trainer = lightning.Trainer(
            max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False, **options
        )
        trainer.fit(net, torch.utils.data.DataLoader(rows, batch_size=4), ckpt_path=resume, weights_only=False)
        return net.devices, [loss.item() for loss in net.losses], trainer.checkpoint_callback.best_model_path

    def device():
        return dict(accelerator=Neuron(), strategy=Strategy(torch.device(DEVICE, 0)), devices=1)

    on_cpu, cpu, _ = fit(2)
    on_device, whole, _ = fit(2, **device())
    *_, saved = fit(1, **device())
    _, resumed, _ = fit(2, saved, **device())
    print(on_cpu, on_device, cpu == whole, whole[4:] == resumed)
"""
SAFETENSORS = """
    from safetensors.torch import load_file, load_model, save_file, save_model
    weights = {"a": torch.arange(6.0, device=DEVICE).view(2, 3), "b": torch.ones(2, device=DEVICE).bfloat16()}
    save_file(weights, "weights.safetensors")
    loaded = load_file("weights.safetensors")
    print(all(torch.equal(loaded[name], value.cpu()) for name, value in weights.items()))

    def tied():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        model[1].weight = model[0].weight
        return model.to(DEVICE)

    first, second = tied(), tied()
    save_model(first, "model.safetensors")
    print(load_model(second, "model.safetensors"), torch.equal(first[1].weight, second[1].weight))
"""
LOGGED = ('{"', "{'loss'", "{'train_runtime'")
"""Beginnings of the lines that a Trainer prints."""

RUNS = {
    "accelerate": (
        ("accelerate", "transformers"),
        BERT + ACCELERATE,
        ["xla:0 DistributedType.XLA", "True", "2"],
    ),
    "trainer": (("accelerate", "transformers"), BERT + TRAINER, ["xla:0 True"]),
    "trace": (("transformers",), BERT + TRACE, ["True"]),
    "timm": (("timm",), XLA + COMPARE + TIMM, ["True", "True"]),
    "torchvision": (("torchvision",), XLA + COMPARE + TORCHVISION, ["True", "True"]),
    "diffusers": (("diffusers",), XLA + COMPARE + DIFFUSERS, ["True"]),
    "torchmetrics": (("torchmetrics", "datasets"), XLA + COMPARE + METRICS, ["{'xla'}", "True"]),
    "lightning": (("pytorch_lightning",), XLA + COMPARE + LIGHTNING, ["{'cpu'} {'xla'} True True"]),
}
NATIVE_RUNS = {
    "accelerate": (
        ("accelerate", "transformers"),
        BERT + ACCELERATE,
        ["neuron DistributedType.NO", "True", "2"],
    ),
    "trainer": (("accelerate", "transformers"), BERT + WITHOUT_DROPOUT + TRAINER, ["neuron:0 True"]),
    "timm": (("timm",), NEURON + COMPARE + TIMM, ["True", "True"]),
    "torchvision": (("torchvision",), NEURON + COMPARE + TORCHVISION, ["True", "True"]),
    "diffusers": (("diffusers",), NEURON + COMPARE + DIFFUSERS, ["True"]),
    "torchmetrics": (("torchmetrics", "datasets"), NEURON + COMPARE + METRICS, ["{'neuron'}", "True"]),
    "lightning": (("pytorch_lightning",), NEURON + COMPARE + LIGHTNING, ["{'cpu'} {'neuron'} True True"]),
    "peft": (("peft", "transformers"), NEURON + COMPARE + PEFT, ["True", "{'neuron'}", "True"]),
    "safetensors": (("safetensors",), NEURON + SAFETENSORS, ["True", "(set(), []) True"]),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_library_runs_as_it_is(tool, home, name):
    check(tool, home, RUNS[name])


@pytest.mark.parametrize("name", NATIVE_RUNS)
def test_a_library_runs_on_the_native_device(tool, home, name, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_DEVICE", "neuron")  # the programs of some name no device
    check(tool, home, NATIVE_RUNS[name], instance_type="trn2.3xlarge")


def check(tool, home, run, instance_type="trn1.2xlarge"):
    needed, program, expected = run
    missing = [library for library in needed if importlib.util.find_spec(library) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'neurontools[libraries]'")
    start(StartOptions(machine="default", instance_type=instance_type))
    (home / "program.py").write_text(textwrap.dedent(PREPARE + program))
    run = tool("neuron-run", "--", "python", "-W", "ignore", "program.py", timeout=600)
    assert run.returncode == 0, run.stderr
    printed = [line for line in run.stdout.splitlines() if not line.startswith(LOGGED)]
    assert printed == expected
