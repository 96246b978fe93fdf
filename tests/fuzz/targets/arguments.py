"""Values of flags and environment variables: sizes, durations, filters, lists of cores and devices, addresses."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS = ("B", "kB", "MiB", "G", "ns", "us", "ms", "s", "m", "h", "d", "w", ".", "-", "+", " ")


def _parsed(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def _check_numbers(text: str) -> None:
    from neurontools.base.units import (
        format_duration,
        format_size,
        parse_duration,
        parse_duration_ns,
        parse_size,
    )
    from neurontools.errors import UsageError

    for parse in (parse_size, parse_duration, parse_duration_ns):
        try:
            value = parse(text)
        except UsageError:
            continue
        format_size(value)
        format_duration(value)


def _check_lists(text: str) -> None:
    from neurontools.errors import UsageError
    from neurontools.machine.machine_names import check_name, parse_indices
    from neurontools.monitor.scrape_server import scrape_address
    from neurontools.profiler.capture.settings import parse_numbers
    from neurontools.sources.remote import scrape_url

    for parse in (check_name, scrape_address, scrape_url, lambda value: parse_numbers(value, "--nc")):
        with suppress(UsageError):
            parse(text)
    try:
        parse_indices(text)
    except ValueError as error:
        str(error)  # what it raises, for callers who know the flag


# Nothing here writes files or connects: an argument of a mutant may be any path or address.
_COMMANDS = (
    "neuron-cache ls --filter 'size>10MB and state=done' --sort size --limit 3",
    "neuron-cache ls --filter used<30d --filter tag~v1 --json",
    "neuron-cache stats --json",
    "neuron-top --once --interval 0.5 --filter 'owner=me tag~train' --page processes",
    "neuron-top --once --machine a,b",
    "neuron-ls --source sim --filter pid=3 --sort mem",
    "neurontools fault kinds",
    "neurontools fault inject ecc --device 3 --amount 4 --every 2s --duration 1m",
    "neurontools fault inject slow-core --core 0 --factor 2.5 --count 2 --tag a",
    "neurontools scenario show idle --json",
    "neurontools config show --json",
    "neuron-profile summary out --nc 0,2,4-7 --from 1.5ms --to 20ms",
    "nccom-test allr -r 2 -b 8 -e 1KB -f 2 -n 1 -w 0 -d fp32",
    "nccom-test allg alltoall -r 4 --minbytes 1MB --stepbytes 512K --maxbytes 2MB --data-parallel-dimension 2",
    "neurond status --machine x",
    "neurond logs --machine x",
)


def _commands() -> list[bytes]:
    return [json.dumps(shlex.split(line)).encode() for line in _COMMANDS]


def _check_command(data: bytes) -> None:
    from neurontools.commands import cache, ls, nccom_test, neurond, neurontools, profile, top

    mains = {
        "neuron-cache": cache.main,
        "neuron-top": top.main,
        "neuron-ls": ls.main,
        "neurontools": neurontools.main,
    }
    mains |= {"neuron-profile": profile.main, "nccom-test": nccom_test.main, "neurond": neurond.main}
    try:
        words = json.loads(data)
    except (ValueError, RecursionError):
        return
    words = [_argument(str(word)) for word in words] if isinstance(words, list) else []
    if words and words[0] in mains and words[1:2] not in _WRITING:
        run(mains[words[0]], *words[1:])


def _argument(text: str) -> str:
    """Return a text as the system passes it to a program: bytes without NUL."""
    return os.fsdecode(text.replace("\0", "").encode("utf-8", "surrogatepass"))


_WRITING = (["link"], ["run"], ["demo"], ["sysfs"], ["customop"], ["parallel-compile"])


_VARIABLES = {
    "NEURON_RT_VISIBLE_CORES": "0-3,4",
    "NEURON_RT_NUM_CORES": "2",
    "NEURON_RT_INSPECT_ENABLE": "1",
    "NEURON_RT_INSPECT_DEVICE_PROFILE": "session",
    "NEURON_RT_INSPECT_EVENT_FILTER_NC": "0,2,4-7",
    "NEURON_RT_INSPECT_EVENT_FILTER_TYPE": "hardware,^nrt_load",
    "NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC": "1000",
    "NEURON_CC_FLAGS": "--target=trn1 --auto-cast-type fp16 --cache_dir='/a b' -O2 --retry_failed_compilation",
    "NEURON_COMPILE_CACHE_URL": "file:///var/tmp/cache",
    "RANK": "3",
    "WORLD_SIZE": "8",
}


def _check_environment(data: bytes) -> None:
    from neurontools.cache import location
    from neurontools.cache.flags import parse_environment_flags
    from neurontools.compiler.options import device_of, read_flags
    from neurontools.errors import NeuronToolsError
    from neurontools.machine.instances.catalogue import instance_type
    from neurontools.profiler.capture.settings import options_from_environ
    from neurontools.runtime.core_claim import parse_core_request

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    pairs = given.items() if isinstance(given, dict) else ()
    environ = {name: _argument(value) for name, value in pairs if isinstance(value, str)}

    def compile_options() -> None:
        flags = parse_environment_flags(environ).compiler
        read_flags(flags, instance_type("trn1.2xlarge").device)
        device_of(flags)

    readers = (parse_core_request, options_from_environ, location.resolve, lambda _: compile_options())
    for read in readers:
        try:
            read(environ)
        except NeuronToolsError:
            continue


TARGETS = (
    Target(
        "arguments/numbers",
        Format.TEXT,
        lambda: [b"12MiB", b"20GB", b"4096", b"1.5k", b"250ms", b"1h30m", b"30d", b"5", b"2 min"],
        _parsed(_check_numbers),
        words=_UNITS,
    ),
    Target(
        "arguments/lists",
        Format.TEXT,
        lambda: [
            b"0,4-7",
            b"13",
            b"all",
            b"ci",
            b":8000",
            b"[::1]:9",
            b"http://a:1/metrics",
            b"https://u:p@h/x?y#z",
        ],
        _parsed(_check_lists),
        words=(",", "-", ":", "[", "]", "/", "@", "%", "://"),
    ),
    Target(
        "arguments/environment", Format.JSON, lambda: [json.dumps(_VARIABLES).encode()], _check_environment
    ),
    Target("arguments/commands", Format.JSON, _commands, _check_command),
)
