"""All collectives of torch.distributed between four workers, on the device and on the host."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.nn import functional as differentiable

WORLD = 4


def full(value, *shape, device="neuron", dtype=torch.float32):
    return torch.full(shape or (2,), value, device=device, dtype=dtype)


def parts(count=WORLD, *shape, device="neuron"):
    return [full(-1.0, *shape, device=device) for _ in range(count)]


def numbers(value):
    return [numbers(one) for one in value] if isinstance(value, (list, tuple)) else value.tolist()


def reductions():
    rank = dist.get_rank()
    found = {}
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT"):
        value = full(rank + 1.0)
        dist.all_reduce(value, getattr(dist.ReduceOp, name))
        found[name] = value[0].item()
    for name in ("BAND", "BOR"):
        value = full(1 << rank | 16, dtype=torch.int32)
        dist.all_reduce(value, getattr(dist.ReduceOp, name))
        found[name] = value[0].item()
    for dtype in (torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        value = full(True, dtype=dtype)
        dist.all_reduce(value)
        found[str(dtype)] = value.tolist()
    value = full(rank + 1.0)
    dist.all_reduce(value, dist._make_nccl_premul_sum(0.5))  # FSDP's, with a gradient divide factor
    found["PREMUL_SUM"] = value[0].item()
    value = full(rank + 1.0)
    dist.reduce(value, dst=2)
    return found | {"reduce": value[0].item() if rank == 2 else None}


def exchanges(device):
    """Return what each collective gives for tensors on a device."""
    rank = dist.get_rank()
    own = full(float(rank), device=device)
    found = {}
    value = own.clone()
    dist.broadcast(value, src=1)
    found["broadcast"] = value
    dist.all_gather(listed := parts(device=device), own)
    found["all_gather"] = listed
    dist.all_gather(
        uneven := [full(0.0, n + 1, device=device) for n in range(WORLD)],
        full(float(rank), rank + 1, device=device),
    )
    found["all_gather uneven"] = uneven
    dist.all_gather_into_tensor(flat := full(0.0, 8, device=device), own)
    found["all_gather_into_tensor"] = flat
    dist.gather(own, listed := parts(device=device) if rank == 3 else None, dst=3)
    found["gather"] = listed or []
    value = full(0.0, device=device)
    dist.scatter(value, [own + n * 10 for n in range(WORLD)] if rank == 1 else None, src=1)
    found["scatter"] = value
    rows = [own + n * 10 for n in range(WORLD)]
    dist.reduce_scatter(value := full(0.0, device=device), rows)
    found["reduce_scatter"] = value
    dist.reduce_scatter(
        value := full(0.0, rank + 1, device=device),
        [full(float(rank), n + 1, device=device) for n in range(WORLD)],
    )
    found["reduce_scatter uneven"] = value
    dist.reduce_scatter_tensor(value := full(0.0, device=device), torch.cat(rows), dist.ReduceOp.AVG)
    found["reduce_scatter_tensor"] = value
    dist.all_to_all(listed := parts(device=device), rows)
    found["all_to_all"] = listed
    dist.all_to_all(
        listed := [full(0.0, n + 1, device=device) for n in range(WORLD)],
        [full(float(rank), rank + 1, device=device) for _ in range(WORLD)],
    )
    found["all_to_all uneven"] = listed
    dist.all_to_all_single(flat := full(0.0, 8, device=device), torch.cat(rows))
    found["all_to_all_single"] = flat
    sizes = [(rank + n) % 3 for n in range(WORLD)]
    sent = torch.arange(float(sum(sizes)), device=device) + 10 * rank
    dist.all_to_all_single(flat := full(0.0, sum(sizes), device=device), sent, sizes, sizes)
    found["all_to_all_single uneven"] = flat
    return {name: numbers(value) for name, value in found.items()}


def collectives_on_the_device():
    return exchanges("neuron")


def collectives_on_the_host():
    return exchanges("cpu")


def coalesced():
    rank = dist.get_rank()
    first, second = full(float(rank)), full(float(rank), 3)
    dist.all_reduce_coalesced([first, second])
    with dist._coalescing_manager(device=torch.device("neuron")) as works:
        dist.all_reduce(third := full(1.0))
        dist.all_reduce(fourth := full(2.0))
    with dist._coalescing_manager(device=torch.device("neuron"), async_ops=True) as works:
        dist.all_gather_into_tensor(fifth := full(0.0, 8), full(float(rank)))
        dist.all_gather_into_tensor(sixth := full(0.0, 4), full(float(rank), 1))
    works.wait()
    with dist._coalescing_manager(device=torch.device("neuron")):
        dist.reduce_scatter_tensor(seventh := full(0.0, 1), full(float(rank), 4))
        dist.reduce_scatter_tensor(eighth := full(0.0, 2), full(float(rank), 8))
    return numbers([first, second, third, fourth, fifth, sixth, seventh, eighth])


def asynchronous():
    works = [
        dist.all_reduce(first := full(1.0), async_op=True),
        dist.broadcast(second := full(1.0), 0, async_op=True),
    ]
    waited = [work.wait() for work in works]
    future = dist.all_reduce(third := full(2.0), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    return [
        waited,
        [work.is_completed() for work in (*works, barrier)],
        numbers([first, second, third, doubled]),
    ]


def objects():
    rank = dist.get_rank()
    dist.all_gather_object(gathered := [None] * WORLD, {"rank": rank})
    dist.broadcast_object_list(cast := [rank, "text"], src=2)
    dist.gather_object(rank, at_root := [None] * WORLD if rank == 0 else None)
    dist.scatter_object_list(
        scattered := [None], [f"for {n}" for n in range(WORLD)] if rank == 1 else None, src=1
    )
    return [gathered, cast, at_root, scattered]


def groups():
    rank = dist.get_rank()
    odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
    mine = odd if rank % 2 else even
    value = full(float(rank))
    dist.all_reduce(value, group=mine)
    halves, _ = dist.new_subgroups(2)
    dist.all_reduce(half := full(float(rank)), group=halves)
    dist.broadcast(third := full(float(rank)), group=mine, group_src=1)
    dist.barrier(mine)
    dist.all_gather_object(names := [None] * 2, rank, group=mine)
    try:
        dist.monitored_barrier(mine)
    except ValueError as error:
        refused = str(error)
    return {
        "odd": numbers(value),
        "half": numbers(half),
        "cast": numbers(third),
        "names": names,
        "sizes": [mine.size(), mine.rank(), dist.get_backend(mine)],
        "ranks": dist.get_process_group_ranks(mine),
        "monitored": refused,
    }


def functional_collectives():
    group, rank = dist.group.WORLD, dist.get_rank()
    own = full(float(rank), 4)
    found = [
        functional.all_reduce(own, "sum", group),
        functional.all_gather_tensor(own, 0, group),
        functional.reduce_scatter_tensor(own, "avg", 0, group),
        functional.all_to_all_single(own, None, None, group),
        functional.broadcast(own, 1, group),
        functional.permute_tensor(own, [1, 2, 3, 0], group),
        *functional.all_reduce_coalesced([own, own], "max", group),
    ]
    leaf = full(float(rank), 4).requires_grad_()
    differentiable.all_reduce(leaf * 2).sum().backward()
    other = full(float(rank), 4).requires_grad_()
    (functional.all_gather_tensor_autograd(other, 0, group) * (rank + 1)).sum().backward()
    return [*numbers(found), leaf.grad.tolist(), other.grad.tolist()]


CHECKS = (
    reductions,
    collectives_on_the_device,
    collectives_on_the_host,
    coalesced,
    asynchronous,
    objects,
    groups,
    functional_collectives,
)
