"""The same for asyncio: what is cancelled, shared, or cut off harms no later call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from neurontools import machine
from neurontools.errors import DaemonError, NoMachineError, UsageError
from neurontools.machine.connection import SilentDaemonError

pytestmark = pytest.mark.filterwarnings("error")


async def test_it_sees_what_the_synchronous_client_sees(running):
    async with await machine.aio.connect("api") as client:
        found = await client.snapshot()
        described = await client.call("describe")
    other = running.snapshot()
    assert (found.devices, found.processes) == (other.devices, other.processes)
    assert described["core_count"] == 32


async def test_a_machine_is_started_and_stopped():
    async with await machine.aio.start("inf2.xlarge", name="soon") as client:
        assert (await client.snapshot()).instance_type == "inf2.xlarge"
        assert (await client.stop()).machine == "soon"
    assert machine.list_machines() == ()


async def test_the_machine_is_that_of_the_environment(running, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_MACHINE", "api")
    async with await machine.aio.connect() as client:
        assert client.machine == "api"


async def test_watching_yields_at_once_and_goes_on(running):
    async with await machine.aio.connect("api") as client, aclosing(client.watch(0.05)) as stream:
        taken = [(await anext(stream)).taken_ns for _ in range(3)]
    assert taken == sorted(set(taken))


async def test_leaving_a_watch_closes_its_connection(running):
    async with await machine.aio.connect("api") as client:
        before = (await client.call("describe"))["client_count"]
        async for _ in client.watch(0.05):
            break
        while (await client.call("describe"))["client_count"] > before:
            pass


async def test_tasks_share_a_client(running):
    async with await machine.aio.connect("api") as client:
        answers = await asyncio.gather(*(client.call("describe") for _ in range(20)), client.snapshot())
    assert {answer["machine"] for answer in answers[:-1]} == {"api"}
    assert answers[-1].machine == "api"


async def test_many_clients_connect_at_once(running):
    clients = await asyncio.gather(*(machine.aio.connect("api") for _ in range(200)))
    counts = await asyncio.gather(*(client.call("describe") for client in clients))
    assert max(count["client_count"] for count in counts) >= 200
    for client in clients:
        await client.close()


async def test_calls_may_be_cancelled_at_any_moment(running):
    # After so many turns of the loop the call is wherever it is.
    async with await machine.aio.connect("api") as client:
        for turns in range(12):
            call = asyncio.ensure_future(client.snapshot())
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert (await client.call("describe"))["machine"] == "api"
        for waited_s in (0.0, 0.0002, 0.0005, 0.001, 0.002):
            with suppress(TimeoutError):
                await asyncio.wait_for(client.snapshot(), waited_s)
            assert (await client.snapshot()).machine == "api"


async def test_what_is_cancelled_while_it_connects_leaves_no_connection(running):
    async with await machine.aio.connect("api") as client:

        async def look():
            async with aclosing(client.watch(0.05)) as stream:
                await anext(stream)

        async def connect():
            await (await machine.aio.connect("api")).close()

        for turns in range(15):
            for attempt in (look, connect):
                task = asyncio.ensure_future(attempt())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        while (await client.call("describe"))["client_count"] > 2:  # `running` and this one
            pass


async def test_a_cancelled_watch_ends(running):
    async with await machine.aio.connect("api") as client:

        async def look():
            async for _ in client.watch(3600):
                seen.set()

        seen = asyncio.Event()
        task = asyncio.create_task(look())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.snapshot()).machine == "api"


async def test_calls_and_watches_survive_the_daemon(running, end_daemon):
    async with await machine.aio.connect("api") as client, aclosing(client.watch(0.05)) as stream:
        first = await anext(stream)
        end_daemon("api")
        assert (await client.snapshot()).instance_type == "trn1.32xlarge"
        while (await anext(stream)).taken_ns <= first.taken_ns:
            pass


async def test_without_reconnecting_the_end_of_the_daemon_is_an_error(running, end_daemon):
    async with await machine.aio.connect("api", reconnect=False) as client:
        end_daemon("api")
        with pytest.raises(DaemonError, match="neurond of machine 'api' ended"):
            await client.snapshot()


async def test_where_no_machine_may_be_started_the_end_is_final(running, end_daemon, monkeypatch):
    async with await machine.aio.connect("api") as client:
        end_daemon("api")
        monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "0")
        with pytest.raises(NoMachineError):
            await client.snapshot()
        with pytest.raises(NoMachineError):
            await anext(client.watch(1))


async def test_connecting_to_no_server_and_invalid_answers_are_errors(running):
    with pytest.raises(NoMachineError):
        await machine.aio.connect("nobody")
    with pytest.raises(UsageError):
        await machine.aio.connect("../x")
    async with await machine.aio.connect("api") as client:
        with pytest.raises(DaemonError, match="unknown method"):
            await client.call("dance")
        with pytest.raises(DaemonError, match="period_s"):
            await anext(client.watch(0))
        assert (await client.snapshot()).machine == "api"


async def test_faults_are_injected_listed_and_cleared(running):
    async with await machine.aio.connect("api") as client:
        fault = await client.inject("ecc", device=2, ecc="mem-corrected", count=3, every_s=60.0)
        other = await client.inject("hang", tag=None, core=1)
        assert await client.faults() == running.faults()
        assert (fault.spec.device, fault.spec.count, other.spec.tag) == (2, 3, None)
        assert await client.clear_faults(other) == (other.id,)
        assert await client.clear_faults() == (fault.id,)
        await client.reset_device(2)
        with pytest.raises(DaemonError, match="unknown kind"):
            await client.inject("hangg")
        with pytest.raises(DaemonError, match="unknown parameter"):
            await client.inject("hang", cores=3)


async def test_a_daemon_that_hangs_is_named_and_forgotten(running):
    async with await machine.aio.connect("api") as client:
        client._client._connection._sock.settimeout(0.1)
        os.kill(running.info.pid, signal.SIGSTOP)
        with pytest.raises(SilentDaemonError, match="does not answer"):
            await client.snapshot()
        os.kill(running.info.pid, signal.SIGCONT)
        assert (await client.snapshot()).machine == "api"


@asynccontextmanager
async def stand_in(home, name, answer):
    """Something that listens where the daemon of a machine would; `answer` is called with reader and writer."""
    folder = home / "run" / name
    folder.mkdir(parents=True, mode=0o700)
    ended = asyncio.Event()

    async def serve(reader, writer):
        await answer(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_unix_server(serve, str(folder / "neurond.sock")):
        yield
        await ended.wait()


@pytest.mark.parametrize("said", [b"hello\n", b"[1]\n", b""])
async def test_who_speaks_another_protocol_is_not_a_daemon(home, said):
    async def answer(reader, writer):
        await reader.readline()
        writer.write(said)

    async with stand_in(home, "odd", answer):
        with pytest.raises(DaemonError, match="neurond of machine 'odd' ended"):
            await machine.aio.connect("odd")


async def test_a_long_answer_in_pieces_is_whole(home):
    text = "x" * 3_000_000
    pieces = [text[at : at + 100_000] for at in range(0, len(text), 100_000)]

    async def answer(reader, writer):
        await reader.readline()
        greeting = {"protocol": 1, "version": "1", "machine": "long", "pid": 1, "registered": None}
        writer.write(json.dumps({"jsonrpc": "2.0", "id": 1, "result": greeting}).encode() + b"\n")
        await reader.readline()
        for piece in ('{"jsonrpc":"2.0","id":2,"result":"', *pieces, '"}\n'):
            writer.write(piece.encode())
            await writer.drain()
        await reader.read()

    async with stand_in(home, "long", answer), await machine.aio.connect("long") as client:
        assert await client.call("text") == text
