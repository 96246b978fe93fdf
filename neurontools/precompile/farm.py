"""Compiles entries side by side: one process per thread, which survives the death of any of them.

A compile process that dies is replaced. Its entry's lock ends with it; the entry is tried again as often as allowed.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools import env

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence


_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """What became of an entry: `error` is "" for a success; `retries` after the first try; seconds of the last one."""

    entry: str
    error: str
    retries: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FarmOptions:
    """How to compile: that many at a time, so many further tries of what failed."""

    parallel: int
    retries: int = 0


def worker_command(root: str) -> tuple[str, ...]:
    """Return the command line of a compile process."""
    return (sys.executable, "-P", "-m", "neurontools.precompile.worker", root)


def compile_all(
    entries: Sequence[str], command: Sequence[str], options: FarmOptions, environ: Mapping[str, str]
) -> Generator[Job, None, None]:
    """Compile entries and yield what became of each, as they end. Closing the iterator ends the processes.

    Args:
        entries: directories of the entries.
        command: the compile process.
        options: how many at a time, how many tries.
        environ: environment of the compile processes.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for entry in entries:
        waiting.put(entry)
    ended: queue.SimpleQueue[Job] = queue.SimpleQueue()
    stop = threading.Event()
    count = min(options.parallel, len(entries))
    workers = [_Worker(command, environ) for _ in range(count)]
    threads = [
        threading.Thread(target=_work, args=(worker, waiting, ended.put, options.retries, stop), daemon=True)
        for worker in workers
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in entries:
            yield ended.get()
    finally:
        stop.set()
        for worker in workers:
            worker.end()
        for thread in threads:
            thread.join()


def environment(base: Mapping[str, str], run: str) -> dict[str, str]:
    """Return the environment of compile processes: what they do counts for one run of the cache's statistics."""
    return {**base, env.CACHE_RUN: run}


def _work(
    worker: _Worker,
    waiting: queue.SimpleQueue[str],
    done: Callable[[Job], None],
    retries: int,
    stop: threading.Event,
) -> None:
    with closing(worker):
        while not stop.is_set():
            try:
                entry = waiting.get_nowait()
            except queue.Empty:
                return
            done(_try(worker, entry, retries))


def _try(worker: _Worker, entry: str, retries: int) -> Job:
    for retry in range(retries + 1):
        started = time.monotonic()
        error = worker.compile(entry)
        job = Job(entry, error, retry, time.monotonic() - started)
        if not error:
            break
    return job


class _Worker:
    """A compile process, started when it is needed and again when it has died."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = environ
        self._process: subprocess.Popen[str] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def compile(self, entry: str) -> str:
        """Return "" when the entry is compiled, else why it is not."""
        try:
            process = self._running()
        except OSError as error:
            return f"the compile process does not start: {error.strerror}"
        if process is None or process.stdin is None or process.stdout is None:
            return "interrupted"
        try:
            process.stdin.write(entry + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            return str(json.loads(answer)["error"]) if answer else self._death(process)
        except BrokenPipeError:
            return self._death(process)
        except (KeyError, TypeError, ValueError):
            process.kill()
            return f"the compile process answered nonsense; {self._death(process)}"

    def end(self) -> None:
        """End the process from another thread, whatever it is doing."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.terminate()

    def close(self) -> None:
        """End the process and forget it."""
        self.end()
        if self._process is not None:
            self._death(self._process)

    def _running(self) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._ended:
                return None
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=self._environ,
                    # Ctrl-C is for us: we end the processes, and they give their locks back.
                    process_group=0,
                )
            return self._process

    def _death(self, process: subprocess.Popen[str]) -> str:
        try:
            code = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        with self._lock:
            self._process = None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # what a dead process did not read
                    stream.close()
        return (
            f"the compile process was killed by signal {-code}"
            if code < 0
            else f"it ended with exit code {code}"
        )
