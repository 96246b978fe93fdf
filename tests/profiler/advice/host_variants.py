"""Variants of one training: what keeps the device waiting, and the same without it; each in a profile of its name."""

import time

import torch
import torch_xla
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neurontools

STEPS, BATCH, WIDTH = 10, 16, 256
LATE_S = 0.02


class Late(TensorDataset):
    """Samples that take their time."""

    def __getitem__(self, index):
        time.sleep(LATE_S)
        return super().__getitem__(index)


def train(name, dataset=TensorDataset, item=False, grow=False, sleep_s=0.0):
    """Train a perceptron with a fault or without."""
    model = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, WIDTH)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(dataset(torch.randn(STEPS * BATCH, WIDTH)), batch_size=BATCH)
    with neurontools.profile(name):
        for step, (batch,) in enumerate(loader):
            optimizer.zero_grad()
            loss = model(batch[: BATCH - step if grow else BATCH].to("xla")).square().mean()
            if item:
                loss.item()
            time.sleep(sleep_s)
            loss.backward()
            optimizer.step()
            torch_xla.sync()


train("plain")
train("cut", item=True)
train("late", dataset=Late)
train("busy", sleep_s=0.3)
train("shapes", grow=True)
