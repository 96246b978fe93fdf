"""One compile process: takes directories of entries on stdin, one a line, answers each with a line of JSON on stdout."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, TextIO

from neurontools.base.json_reader import load_json
from neurontools.cache import layouts
from neurontools.cache.extraction import read_libraries, remove_libraries
from neurontools.cache.flags import parse_environment_flags
from neurontools.cache.locks import remove_lock_of_process
from neurontools.cache.logs import apply_level, show_cache_lines
from neurontools.cache.lookup import CacheRoot, CompileRequest, Lookup
from neurontools.cache.store import bucket_behind
from neurontools.compiler.graph import graph_from_bytes
from neurontools.compiler.neff import network_name
from neurontools.compiler.options import device_of
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from neurontools.compiler.graph import Graph
    from neurontools.compiler.neff import NativePart


def serve(root: str, requests: TextIO, answers: TextIO) -> None:
    """Compile requested entries until the input ends. An answer has `error`, "" for success, and `seconds`."""
    files = CacheRoot(root, bucket_behind(root))
    tries: Counter[str] = Counter()
    for line in requests:
        started = time.monotonic()
        entry = line.rstrip("\n")
        try:
            compile_entry(files, entry, tries[entry])
            error = ""
        except NeuronToolsError as failure:
            error = failure.message
        except OSError as failure:
            error = f"{failure.filename or line.strip()}: {failure.strerror or failure}"
        except SystemExit:
            # SIGTERM may come when the lock is made but not yet, or no longer, under `finally`.
            remove_lock_of_process(root, entry)
            raise
        tries[entry] += 1
        answers.write(json.dumps({"error": error, "seconds": time.monotonic() - started}) + "\n")
        answers.flush()
    files.close()


def compile_entry(root: CacheRoot, entry: str, retries: int = 0) -> None:
    """Compile an extracted entry (its directory) into the cache, unless another process has done so meanwhile.

    `retries` is which further try this is, 0 for the first.

    Raises:
        NeuronToolsError: the graph or its flags cannot be read, or the compiler refuses it.
        OSError: the entry cannot be read or written to.
    """
    with layouts.open_entry(entry) as directory:
        graph = graph_from_bytes(directory.read(layouts.GRAPH))
    flags = _flags(entry)
    lookup = Lookup(
        root,
        CompileRequest(
            graph=graph,
            digest=graph.digest(),
            device=device_of(flags),
            name=network_name(graph),
            flags=flags,
            libraries=_libraries(entry, graph),
            entry=entry,
            retry_failed=True,
            validate_hash=False,
            retries=retries,
        ),
    )
    if not lookup.run().entry:
        raise NeuronToolsError("the NEFF could not be stored", "see the cache's warning above")
    remove_libraries(entry)


def _flags(entry: str) -> tuple[str, ...]:
    path = f"{entry}/{layouts.FLAGS}"
    with layouts.open_entry(entry) as directory:
        data = directory.read(layouts.FLAGS)
    try:
        flags = load_json(data)
    except ValueError as error:
        raise NeuronToolsError(f"{path} is not JSON", "extract the graph again") from error
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise NeuronToolsError(f"{path} is not a list of flags", "extract the graph again")
    return tuple(flags)


def _libraries(entry: str, graph: Graph) -> tuple[NativePart, ...]:
    if not graph.libraries:
        return ()
    try:
        found = read_libraries(entry)
    except (KeyError, TypeError, ValueError):
        found = ()
    if len(found) < len(graph.libraries):
        raise NeuronToolsError(
            f"{len(graph.libraries)} libraries of custom operators belong to the graph, "
            f"and {len(found)} are stored with it",
            "extract the graph again",
        )
    return found


def main(root: str) -> None:
    """Serve stdin and stdout; SIGTERM and the end of the parent release the locks."""
    is_ending = False

    def end(number: int, _: object) -> None:
        nonlocal is_ending
        # A second signal must not interrupt the exit.
        if not is_ending:
            is_ending = True
            _block_sigterm()
            raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    show_cache_lines()
    apply_level(parse_environment_flags(os.environ).log_level)
    try:
        serve(root, sys.stdin, sys.stdout)
    except BrokenPipeError:
        # Flushing the buffer at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    is_ending = True
    _block_sigterm()


def _block_sigterm() -> None:
    # The interpreter removes its handlers when it ends, and writes a traceback about a signal that arrives meanwhile.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


if __name__ == "__main__":
    main(sys.argv[1])
