"""Run by test_forks.py on the device of its first argument: what forked children and workers of a DataLoader may do."""

import concurrent.futures
import json
import multiprocessing
import os
import sys
import threading

DEVICE = sys.argv[1]
import torch  # noqa: E402

from neurontools.native.autoload import autoload  # noqa: E402

autoload()  # of a copy of a process that has loaded torch; elsewhere torch has done it


def draw(seed):
    """Seed, draw on the host, meet the device's refusal, and go on."""
    torch.manual_seed(seed)
    first = torch.rand(1).item()
    own = torch.rand(1, generator=torch.Generator().manual_seed(seed)).item()
    try:
        (torch.ones(2, device=DEVICE) + 1).cpu()
    except RuntimeError as error:
        refused = "forked subprocess" in str(error)
    else:
        refused = False
    return first == own, refused, torch.rand(1).item()


def loaded(**options):
    """Return the sum of a data set that workers read, after a draw was recorded."""
    drawn = torch.randn(3, device=DEVICE)
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, **options)
    total = sum(batch.to(DEVICE).sum().item() for (batch,) in loader)
    return total, bool(drawn.isfinite().all().item())


def child_status(act):
    """Return the exit status of a forked child that acts and ends as a program does."""
    torch.randn(3, device=DEVICE)
    pid = os.fork()
    if not pid:
        act()
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def draw_until(ended, period):
    """Record draws and run them, until the end."""
    drawn = torch.zeros(4, device=DEVICE)
    while not ended.wait(0.01):
        for _ in range(period):
            drawn = torch.nn.functional.dropout(drawn + torch.randn(4, device=DEVICE), 0.5)
        drawn.cpu()


def busy_forks():
    """Return what children returned that were forked while threads draw and record."""
    ended = threading.Event()
    threads = [threading.Thread(target=draw_until, args=(ended, period)) for period in (1, 3)]
    for thread in threads:
        thread.start()
    try:
        statuses = [child_status(lambda: os._exit(draw(3)[0])) for _ in range(8)]
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=2)
        sums = [batch.sum().item() for batch in loader]
    finally:
        ended.set()
    for thread in threads:
        thread.join()
    return statuses, sums


def main():
    """Print what happens, as JSON."""
    seen = {"plain": loaded(), "generator": loaded(generator=torch.Generator().manual_seed(3), shuffle=True)}
    waiting = torch.randn(3, device=DEVICE)
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1) as pool:
        seen["pool"] = pool.map(draw, [1, 2])
    torch.randn(3, device=DEVICE)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fork) as pool:
        seen["executor"] = list(pool.map(draw, [1, 2]))
    seen["fork"] = [
        child_status(lambda: draw(3)),
        child_status(torch.seed),
        child_status(torch.accelerator.is_available),
        child_status(lambda: None),
    ]
    seen["busy"] = busy_forks()
    seen["parent"] = bool(waiting.isfinite().all().item()), (torch.ones(2, device=DEVICE) + 1).tolist()
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main()
