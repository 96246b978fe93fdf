"""A worker of torchrun: 24 training steps of a small model, the gradients averaged over the workers."""

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
from torch import nn

dist.init_process_group("xla")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(256, 512).to("xla")
for _ in range(24):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    xm.optimizer_step(optimizer, barrier=True)
