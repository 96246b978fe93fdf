"""A pool of compile processes, one per thread.

A process that dies is replaced. Its entry's lock ends with it; the entry is retried as often as allowed.
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


_EXIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of an entry: `error` is "" for success, `retries` counts tries after the first, seconds of the last try."""

    entry: str
    error: str
    retries: int
    seconds: float


def worker_command(root: str) -> tuple[str, ...]:
    """Return the command line of a compile process."""
    return (sys.executable, "-P", "-m", "neurontools.precompile.worker", root)


def compile_all(
    entries: Sequence[str],
    command: Sequence[str],
    environ: Mapping[str, str],
    parallel: int,
    retries: int = 0,
) -> Generator[CompileResult, None, None]:
    """Compile entries and yield the result of each as it ends. Closing the iterator ends the processes.

    Args:
        entries: directories of the entries.
        command: of the compile process.
        environ: environment of the compile processes.
        parallel: number of processes.
        retries: number of further tries after a failure.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for entry in entries:
        waiting.put(entry)
    finished: queue.SimpleQueue[CompileResult] = queue.SimpleQueue()
    stop = threading.Event()
    count = min(parallel, len(entries))
    workers = [_WorkerProcess(command, environ) for _ in range(count)]
    threads = [
        threading.Thread(target=_work, args=(worker, waiting, finished.put, retries, stop), daemon=True)
        for worker in workers
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in entries:
            yield finished.get()
    finally:
        stop.set()
        for worker in workers:
            worker.terminate()
        for thread in threads:
            thread.join()


def worker_environment(base: Mapping[str, str], run: str) -> dict[str, str]:
    """Return the environment of compile processes: all count as one run in the cache's statistics."""
    return {**base, env.CACHE_RUN: run}


def _work(
    worker: _WorkerProcess,
    waiting: queue.SimpleQueue[str],
    done: Callable[[CompileResult], None],
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


def _try(worker: _WorkerProcess, entry: str, retries: int) -> CompileResult:
    for retry in range(retries + 1):
        started = time.monotonic()
        error = worker.compile(entry)
        result = CompileResult(entry, error, retry, time.monotonic() - started)
        if not error:
            break
    return result


class _WorkerProcess:
    """A compile process, started when needed and restarted when it has died."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = environ
        self._process: subprocess.Popen[str] | None = None
        self._terminated = False
        self._lock = threading.Lock()

    def compile(self, entry: str) -> str:
        """Return "" if the entry was compiled, else the error."""
        try:
            process = self._start()
        except OSError as error:
            return f"the compile process cannot start: {error.strerror}"
        if process is None or process.stdin is None or process.stdout is None:
            return "interrupted"
        try:
            process.stdin.write(entry + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            return str(json.loads(answer)["error"]) if answer else self._wait_exit(process)
        except BrokenPipeError:
            return self._wait_exit(process)
        except (KeyError, TypeError, ValueError):
            process.kill()
            return f"the compile process sent an invalid answer; {self._wait_exit(process)}"

    def terminate(self) -> None:
        """Terminate the process; may be called from another thread."""
        with self._lock:
            self._terminated = True
            if self._process is not None:
                self._process.terminate()

    def close(self) -> None:
        """End the process and forget it."""
        self.terminate()
        if self._process is not None:
            self._wait_exit(self._process)

    def _start(self) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._terminated:
                return None
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    encoding="utf-8",
                    env=self._environ,
                    # Ctrl-C reaches this process only; it terminates the workers, which release their locks.
                    process_group=0,
                )
            return self._process

    def _wait_exit(self, process: subprocess.Popen[str]) -> str:
        try:
            code = process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        with self._lock:
            self._process = None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # unread requests of a dead process
                    stream.close()
        return (
            f"the compile process was killed by signal {-code}"
            if code < 0
            else f"it ended with exit code {code}"
        )
