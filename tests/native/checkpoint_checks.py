"""Checkpoints of four workers, loaded by others: with other shards, on one device, on the CPU."""

import sys

import parallel_training as ways
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh


def step(model, optimizer, own):
    x, target = next(ways.batches(own))
    optimizer.zero_grad()
    ways.loss_of(model, x, target).backward()
    optimizer.step()


def difference(model, expected):
    return (ways.weights(model) - expected).abs().max().item()


def other_model():
    model = ways.make("cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def checkpoints():
    """Return by how much loaded weights differ from saved ones, before and after another step."""
    directory, rank = sys.argv[1], dist.get_rank()
    own = slice(rank, None, dist.get_world_size())
    flat = init_device_mesh("neuron", (4,))
    square = init_device_mesh("neuron", (2, 2), mesh_dim_names=("data", "tensor"))
    model = ways.shard(ways.make(), flat)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    step(model, optimizer, own)
    first = ways.weights(model)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save({**state, "step": 1}, checkpoint_id=f"{directory}/first")
    saving = dcp.async_save(state, checkpoint_id=f"{directory}/later")
    step(model, optimizer, own)
    saving.result()
    second = ways.weights(model)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    found = {}
    for name, mesh in (("first", square), ("later", flat)):
        loaded = ways.shard(other_model().to("neuron"), mesh)
        its_optimizer = torch.optim.AdamW(loaded.parameters(), lr=0.05)
        states = dict(zip(state, get_state_dict(loaded, its_optimizer), strict=True))
        dcp.load(states, checkpoint_id=f"{directory}/{name}")
        set_state_dict(
            loaded, its_optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )
        found[name] = difference(loaded, first)
        step(loaded, its_optimizer, own)
        found[f"{name}, next step"] = difference(loaded, second)
    for name, loaded in (
        ("cpu", other_model()),
        ("one device", other_model().to("neuron")),
        ("tensor parallel", ways.split(other_model().to("neuron"), flat)),
    ):
        states = {"model": loaded.state_dict()}
        dcp.load(states, checkpoint_id=f"{directory}/first")
        loaded.load_state_dict(states["model"])
        found[name] = difference(loaded, first)
    loaded = ways.shard(other_model().to("neuron"), square)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(loaded, whole if rank == 0 else {}, options=options)
    found["from the first worker"] = difference(loaded, second)
    torch.save(model.state_dict(), f"{directory}/shard{rank}.pt")
    loaded = ways.shard(other_model().to("neuron"), flat)
    loaded.load_state_dict(torch.load(f"{directory}/shard{rank}.pt", weights_only=False))
    found["torch.save"] = difference(loaded, second)
    return found


CHECKS = (checkpoints,)
