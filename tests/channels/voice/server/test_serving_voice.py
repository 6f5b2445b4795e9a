"""Starting and stopping with people on the phone."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from adapters.outbound.fake import ScriptedOutbound
from channels.voice.carriers.carrier import Carrier
from channels.voice.metrics import Counting
from channels.voice.server.app import VoiceApp, voice_app
from channels.voice.server.serving import serve_voice
from flow_engine.errors import CallTheOperator
from tests.channels.voice.server.front_desk import Caller, EchoCallServer, dial, voice_settings

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return ("asyncio", {"use_uvloop": request.param})


@pytest.fixture(autouse=True)
def garbage_collection_as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def carrier() -> Carrier:
    return voice_settings().open_carrier(ScriptedOutbound({}))


@dataclass
class Served:
    app: VoiceApp
    answering: EchoCallServer
    port: int
    task: asyncio.Task[None]

    async def dial(self) -> Caller:
        return await dial(f"ws://127.0.0.1:{self.port}/media-stream")

    async def offer(self) -> str:
        async with httpx.AsyncClient() as http:
            return (await http.post(f"http://127.0.0.1:{self.port}/incoming-call")).text

    async def ended(self) -> None:
        async with asyncio.timeout(30):
            await self.task


@asynccontextmanager
async def served(drain_s: float, answering: EchoCallServer | None = None) -> AsyncGenerator[Served]:
    answering = answering or EchoCallServer()
    app = voice_app(voice_settings(realtime_url="ws://127.0.0.1:9"), carrier(), answering, Counting(), None)
    ports: asyncio.Queue[int] = asyncio.Queue()
    serving = serve_voice(app, answering, "127.0.0.1", 0, drain_s=drain_s, started=ports.put_nowait)
    task = asyncio.ensure_future(serving)
    try:
        yield Served(app, answering, await ports.get(), task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def draining(desk: Served) -> None:
    while not desk.app.admission.draining:
        await asyncio.sleep(0.01)


async def test_a_call_that_goes_on_is_waited_for() -> None:  # V12 V13
    async with served(drain_s=60) as desk:
        caller = await desk.dial()
        stop()
        await draining(desk)
        assert "Reject" in await desk.offer()
        assert await caller.say("still here") == "still here"
        assert not desk.task.done()
        caller.transport.disconnect()
        await desk.ended()
        assert desk.answering.closed == 1


async def test_a_call_that_goes_on_too_long_is_ended_in_order() -> None:  # V12
    async with served(drain_s=0.2) as desk:
        caller = await desk.dial()
        stop()
        assert await caller.next() is None
        await desk.ended()
        assert (desk.answering.closed, desk.answering.disconnected) == (1, 1)


class _NeverClosing(EchoCallServer):
    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_a_second_signal_ends_at_once() -> None:  # V12
    async with served(drain_s=600, answering=_NeverClosing()) as desk:
        caller = await desk.dial()
        stop()
        await draining(desk)
        stop()
        assert await caller.next() is None
        assert caller.close_code == 1001
        await desk.ended()


async def test_without_calls_the_end_is_immediate() -> None:  # V12
    async with served(drain_s=600) as desk:
        stop()
        await desk.ended()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", desk.port)


async def test_signals_are_given_back() -> None:  # V12
    before = signal.getsignal(signal.SIGINT)
    async with served(drain_s=0) as desk:
        stop()
        await desk.ended()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


async def test_an_address_in_use_is_an_operators_matter() -> None:  # V12
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answering = EchoCallServer()
        app = voice_app(
            voice_settings(realtime_url="ws://127.0.0.1:9"), carrier(), answering, Counting(), None
        )
        with pytest.raises(CallTheOperator) as caught:
            await serve_voice(app, answering, "127.0.0.1", port, drain_s=0)
        assert caught.value.code == "address_not_free"
        assert str(port) in caught.value.detail
