"""A random program on the device whose operators are interrupted, compared with the same operators on the CPU.

Usage: python interrupted_program.py xla|neuron COUNT SEED. Prints what it counted as JSON.

Every operator that returned is repeated on the CPU. After an exception the operator that was interrupted has happened
as a whole or not at all, and each tensor has the value of the CPU or raises `LostValueError`. Exceptions come from a
signal handler: at a chosen bytecode of the device's code, which a tracer counts, or after a random time.
"""

import _thread
import _weakrefset
import faulthandler
import json
import linecache
import logging
import os
import random
import signal
import sys
import time
import traceback
import weakref
from collections import Counter

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from neurontools.compiler.options import CompileError
from neurontools.xla import api
from neurontools.xla.accelerator import LostValueError


class StopNow(BaseException):
    pass


class UserError(Exception):
    pass


# Without AttributeError and StopIteration, which Python itself catches: in hasattr, in map.
ERRORS = (KeyboardInterrupt, TimeoutError, ConnectionResetError, OSError, MemoryError, RuntimeError, KeyError, IndexError, ValueError,
          StopNow, UserError)  # fmt: skip
SIGNAL = signal.SIGUSR1
WEAK_CALLBACKS = {"_remove", "remove"}
WEAK_FILES = {_weakrefset.__file__, weakref.__file__}
CATCHING = {
    ("get_code", "<frozen importlib._bootstrap_external>"),
    ("get", "<frozen _collections_abc>"),
    ("emit", logging.__file__),
    ("updatecache", linecache.__file__),
}
OPERATIONS = (
    lambda a, b, n: a + b if a.shape == b.shape else a * n,
    lambda a, b, n: a @ b.t() if a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1] else a - n,
    lambda a, b, n: a.t() if a.dim() == 2 else a.abs(),
    lambda a, b, n: a[n % 2 :] if a.dim() and a.shape[0] > 2 else a.tanh(),
    lambda a, b, n: a.view(-1)[n % 3 :] if torch._C.TensorBase.is_contiguous(a) and a.numel() > 4 else a.clone(),
    lambda a, b, n: torch.cat([a, a]) if a.dim() and a.numel() < 64 else a.relu(),
    lambda a, b, n: a.max(dim=0)[0] if a.dim() else a + 0.25,
    lambda a, b, n: a.sum(),
    lambda a, b, n: torch.where(a > 0, a, a * 0.5),
    lambda a, b, n: a.add_(n),
    lambda a, b, n: a.mul_(0.5),
    lambda a, b, n: a.neg_(),
    lambda a, b, n: a.copy_(b) if a.shape == b.shape else a.sub_(1),
    lambda a, b, n: a.__setitem__(n % a.shape[0], float(n)) if a.dim() else a.fill_(n),
    lambda a, b, n: a.copy_(torch.full(a.shape, float(n))),
    lambda a, b, n: torch._foreach_add_([a, b], n) if a.untyped_storage()._cdata != b.untyped_storage()._cdata else None,
    lambda a, b, n: torch._foreach_mul([a, b], 2.0)[0],
    lambda a, b, n: torch.add(a, n, out=torch.zeros_like(a)),
    lambda a, b, n: torch.nonzero(a).sum(),
    lambda a, b, n: torch.nn.functional.dropout(a, 0.5) * 0,
)  # fmt: skip


class Trip(int):
    """The number of a signal that arrives when `now` is read; its handler runs later, as no call has been made."""

    now = property(_thread.interrupt_main)


class Interrupts:
    """Lets a handler raise within the device's code."""

    def __init__(self, chance, *, tracing):
        self.chance = chance
        self.tracing = tracing
        self.armed = False
        self.counts = Counter()
        self.error = None
        self.left = 0
        self.trip = Trip(SIGNAL)
        signal.signal(SIGNAL, self.handle)
        signal.signal(signal.SIGALRM, self.handle)

    def handle(self, number, frame):
        if not self.armed:
            self.counts["handled late"] += 1
            self.error = None
            return
        if is_in_guard(frame) or is_dropped_by_python(frame):
            self.counts["dropped by torch or Python"] += 1
            self.error = None
            return
        self.counts["raised"] += 1
        self.error = self.chance.choice(ERRORS)("interrupt")
        self.place = "".join(traceback.format_stack(frame)[-7:])
        raise self.error

    def plan(self):
        self.left = int(10 ** self.chance.uniform(0, 4.7))
        if not self.tracing:
            signal.setitimer(signal.ITIMER_REAL, 10 ** self.chance.uniform(-4.3, -1.7))

    def call(self, work):
        if not self.tracing or self.left <= 0:
            return self.call_armed(work)
        sys.settrace(self.trace)
        try:
            return self.call_armed(work)
        finally:
            sys.settrace(None)

    def call_armed(self, work):
        self.armed = True
        try:
            return work()
        finally:
            self.armed = False

    def trace(self, frame, event, value):
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.step

    def step(self, frame, event, value):
        self.left -= 1
        if self.left == 0:
            self.counts["tripped"] += 1
            sys.settrace(None)  # or the handler would run in the next call of the tracer
            self.trip.now  # noqa: B018
        return self.step


def is_in_guard(frame):
    """Return whether torch checks a guard of compiled code, which drops what is raised in it, on every device."""
    while frame is not None:
        called_by_c = frame.f_back is not None and frame.f_back.f_code.co_name == "compile_wrapper"
        if called_by_c and frame.f_code.co_name in {"fn", "__eq__"}:
            return frame.f_code.co_filename.startswith(os.path.dirname(torch.__file__))
        frame = frame.f_back
    return False


def is_dropped_by_python(frame):
    """Return whether Python drops exceptions here.

    Callbacks of weak references and logging drop all, readers of modules and lines an OSError, `os.environ.get` a KeyError.
    """
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if (name in WEAK_CALLBACKS and file in WEAK_FILES) or (name, file) in CATCHING:
            return True
        frame = frame.f_back
    return False


class Mirror(TorchDispatchMode):
    """Repeats operators of the device on the CPU when they have returned."""

    def __init__(self, interrupts, device):
        super().__init__()
        self.interrupts = interrupts
        self.device = device
        self.storages = {}
        self.pending = None
        self.wrong = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.is_on_device((args, kwargs)):
            return func(*args, **kwargs)
        self.pending = (func, args, kwargs)
        outcome = self.interrupts.call(lambda: func(*args, **kwargs))
        self.repeat(func, args, kwargs, outcome)
        self.pending = None
        return outcome

    def is_on_device(self, arguments):
        devices = [getattr(value, "device", value) for value in tree_leaves(arguments)]
        return any(isinstance(device, torch.device) and device.type == self.device for device in devices)

    def repeat(self, func, args, kwargs, outcome):
        if func._schema.name in {"aten::native_dropout", "aten::bernoulli_"}:
            expected = tree_map(lambda t: t.cpu(), outcome)
        else:
            expected = self.on_cpu(func, args, kwargs, self.storages)
        for seen, wanted in zip(tree_leaves(outcome), tree_leaves(expected), strict=True):
            if isinstance(seen, torch.Tensor) and seen.device.type == self.device:
                key = seen.untyped_storage()._cdata
                if key not in self.storages:
                    self.storages[key] = (StorageWeakRef(seen.untyped_storage()), wanted.untyped_storage())
            elif not same(seen, wanted):
                self.wrong.append(f"{func}: {seen} instead of {wanted}")
        for key in [key for key, (weak, _) in self.storages.items() if weak.expired()]:
            del self.storages[key]

    def on_cpu(self, func, args, kwargs, storages):
        def down(value):
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return self.expected(value, storages) if isinstance(value, torch.Tensor) else value

        return func(*tree_map(down, list(args)), **tree_map(down, kwargs))

    def expected(self, tensor, storages):
        if tensor.device.type != self.device:
            return tensor
        _, storage = storages[tensor.untyped_storage()._cdata]
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    def check(self, tensors):
        """Compare tensors, after an exception with both values that the pending operator may have left; return lost ones."""
        after, pending = dict(self.storages), self.pending
        self.pending = None
        if pending is not None:
            after = {key: (weak, storage.clone()) for key, (weak, storage) in self.storages.items()}
            try:
                self.on_cpu(*pending, after)
            except (RuntimeError, KeyError):
                after = dict(self.storages)
        lost, happened = [], set()
        for tensor in tensors:
            try:
                seen = tensor.detach().cpu()
            except LostValueError:
                lost.append(tensor)
                continue
            old, new = self.expected(tensor, self.storages), self.expected(tensor, after)
            if same(old, new) and same(seen, old):
                continue
            if same(seen, new):
                happened.add(True)
            elif same(seen, old):
                happened.add(False)
            else:
                self.wrong.append(f"{pending and pending[0]}: {seen} instead of {old} or {new}")
        if len(happened) > 1:
            self.wrong.append(f"half of {pending[0]}")
        if True in happened:
            self.storages = after
        return lost


def same(one, other):
    if not isinstance(one, torch.Tensor):
        return one == other or one != one
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.detach().nan_to_num())


class Program:
    """Tensors, a model that learns, and compiled functions."""

    def __init__(self, device, interrupts):
        self.device = device
        self.interrupts = interrupts
        self.chance = interrupts.chance
        self.mirror = Mirror(interrupts, device)
        with self.mirror:
            self.pool = [
                torch.arange(6.0).view(2, 3).to(device),
                torch.linspace(-1, 1, 12).view(3, 4).to(device),
            ]
            self.renew_model()
        self.compiled = None
        if device == "neuron" and not interrupts.tracing:
            self.weight = torch.ones(4, 4).to(device)
            self.cpu_weight = torch.ones(4, 4)
            self.compiled = torch.compile(advance)

    def renew_model(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        self.model = model.to(self.device)
        kind = self.chance.choice((torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad))
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        self.optimizer = kind(
            self.model.parameters(), lr=0.1, foreach=self.chance.choice((True, False)), **options
        )

    def tensors(self):
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        grads = [parameter.grad for parameter in self.model.parameters()]
        everything = [*self.pool, *self.model.parameters(), *state, *grads]
        return [t for t in everything if isinstance(t, torch.Tensor) and t.device.type == self.device]

    def act(self):
        kind = self.chance.choice(
            ("operate",) * 8 + ("sync", "read", "upload", "drop", "train", "train", "refuse", "compiled")
        )
        if kind == "compiled":
            self.run_compiled()
            return
        try:
            with self.mirror:
                getattr(self, kind)()
        except CompileError as error:  # of the operator in `refuse`
            if is_about(error, self.interrupts.error):
                raise
            self.interrupts.counts["refused"] += 1
            self.mirror.pending = None

    def operate(self):
        operation = self.chance.choice(OPERATIONS)
        a, b = self.chance.choice(self.pool), self.chance.choice(self.pool)
        with torch.no_grad():
            made = operation(a, b, self.chance.randrange(5))
        if isinstance(made, torch.Tensor) and made.is_floating_point() and made.numel():
            self.pool.append(made)

    def sync(self):
        self.interrupts.call(self.chance.choice((api.mark_step, torch.accelerator.synchronize)))

    def read(self):
        self.chance.choice(self.pool).cpu()

    def refuse(self):
        torch.fft.fft(self.chance.choice(self.pool).reshape(-1)).abs().cpu()

    def upload(self):
        self.pool.append(torch.full((2, 3), self.chance.random()).to(self.device))

    def drop(self):
        while len(self.pool) > self.chance.randrange(2, 6):
            self.pool.pop(self.chance.randrange(len(self.pool)))

    def train(self):
        x = torch.full((3, 4), self.chance.random()).to(self.device)
        loss = self.model(x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.chance.random() < 0.5:
            loss.item()

    def run_compiled(self):
        if self.compiled is None:
            return
        before = self.cpu_weight.clone()
        x = torch.full((4, 4), self.chance.random())
        pending = True
        try:
            on_device = x.to(self.device)
            result = self.interrupts.call(lambda: self.compiled(self.weight, on_device))
            pending = False
        finally:
            expected = advance(self.cpu_weight, x)
            if not pending:
                values = (result, expected), (self.weight, self.cpu_weight)
            else:
                values = ((self.weight, (self.cpu_weight, before)),)
            try:
                for tensor, wanted in values:
                    seen = tensor.cpu()
                    if isinstance(wanted, tuple) and same(seen, wanted[1]):
                        self.cpu_weight = before
                    elif not same(seen, wanted[0] if isinstance(wanted, tuple) else wanted):
                        self.mirror.wrong.append(f"compiled: {seen} instead of {wanted}")
                        self.cpu_weight = seen.clone()
            except LostValueError:
                self.interrupts.counts["lost"] += 1
                self.weight.copy_(self.cpu_weight)

    def check(self):
        lost = self.mirror.check(self.tensors())
        self.interrupts.counts["lost"] += bool(lost)
        gone = {tensor.untyped_storage()._cdata for tensor in lost}
        with self.mirror:
            self.pool = [tensor for tensor in self.pool if tensor.untyped_storage()._cdata not in gone]
            self.pool += [torch.ones(2, 3).to(self.device)] * (len(self.pool) < 2)
            states = self.optimizer.state.values()  # torch fills the dictionary of a parameter value by value
            half_made = isinstance(self.optimizer, torch.optim.AdamW) and any(
                len(state) < 3 for state in states
            )
            if half_made or any(t.untyped_storage()._cdata in gone for t in self.tensors()):
                self.renew_model()


def advance(weight, x):
    weight.mul_(0.5).add_(x)
    return weight @ x


def run(device, count, seed):  # noqa: C901  one round after the other
    chance = random.Random(seed)
    torch.manual_seed(seed)
    interrupts = Interrupts(chance, tracing=seed % 2 == 0)
    program = Program(device, interrupts)
    counts, problems = interrupts.counts, []
    while counts["raised"] + counts["handled late"] < count:
        if counts["rounds"] % 50 == 49:
            program = Program(device, interrupts)
        counts["rounds"] += 1
        faulthandler.dump_traceback_later(60, exit=True)
        interrupts.plan()
        raised = counts["raised"]
        try:
            for _ in range(60):
                program.act()
                if counts["raised"] + counts["handled late"] > raised + counts["late before"]:
                    break
        except BaseException as error:
            if error is interrupts.error:
                counts["caught"] += 1
            elif is_about(error, interrupts.error):
                counts["caught as another error"] += 1
                counts[f"as {type(error).__name__}"] += 1
            else:
                counts["internal errors"] += 1
                problems.append("".join(traceback.format_exception(error))[-1500:])
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            if (
                counts["raised"] > raised
                and counts["caught"]
                + counts["caught as another error"]
                + counts["swallowed"]
                + counts["internal errors"]
                < counts["raised"]
            ):
                time.sleep(0.05)
                counts["swallowed"] += 1
                problems.append(f"swallowed {interrupts.error!r}: {interrupts.place}")
        except BaseException:
            counts["caught"] += 1
            counts["caught later"] += 1
        counts["late before"] = counts["handled late"]
        try:
            program.check()
            for what in program.mirror.wrong:
                counts["silent differences"] += 1
                problems.append(what)
            if program.mirror.wrong:
                program = Program(device, interrupts)
        except BaseException as error:
            counts["internal errors"] += 1
            problems.append("check: " + "".join(traceback.format_exception(error))[-1500:])
            program = Program(device, interrupts)
    return {"counts": dict(counts), "problems": problems[:30]}


def is_about(error, cause):
    """Return whether an error was raised from another one, or names it, as torch does for exceptions in hooks."""
    while error is not None:
        if error is cause:
            return True
        error = error.__cause__ or error.__context__
    return False


def main():
    device, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if device == "neuron":
        from neurontools.native import activation

        activation.activate()
    else:
        api.activate()
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(run(device, count, seed)))


if __name__ == "__main__":
    main()
