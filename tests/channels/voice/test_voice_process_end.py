"""V12, V13: a voice agent that is told to end, or killed, with people on the phone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import CallRefused, FakeTwilioCall
from channels.voice.testing.script import Reaction, Say, Script, UseTool
from channels.voice.testing.sockets import eventually
from tests.channels.voice.business_server import BusinessServer, business_server
from tests.channels.voice.fake_sip import FakeSip
from tests.channels.voice.leaks import nothing_left
from tests.channels.voice.served_agent import SECRET, simple_config
from tests.channels.voice.voice_process import VoiceProcess, voice_process

pytestmark = pytest.mark.anyio

STEPS = Script(
    (
        Reaction((Say("Good evening", 300),), when="greet", once=False),
        Reaction((Say("Goodbye", 200), UseTool("end_call", {})), when="user: bye", once=False),
    )
)


@dataclass
class Scene:
    agent: VoiceProcess
    model: FakeRealtime
    business: BusinessServer

    async def talking(self, *calls: FakeTwilioCall) -> None:
        await eventually(lambda: self.business.count("/start") == len(calls))
        await eventually(lambda: all(call.playout.heard for call in calls))


@asynccontextmanager
async def scene(home: Path, drain_s: float, **environment: str) -> AsyncGenerator[Scene]:
    async with (
        nothing_left(),
        FakeRealtime(STEPS) as model,
        business_server() as business,
        voice_process(
            simple_config(), business, model.url, home, FLOW_ENGINE_VOICE_DRAIN_S=str(drain_s), **environment
        ) as agent,
    ):
        yield Scene(agent, model, business)


async def test_a_call_may_come_to_its_end_before_the_agent_does(tmp_path: Path) -> None:  # V12, V13
    async with scene(tmp_path, drain_s=600) as s:
        async with FakeTwilioCall(s.agent.line_url) as call, FakeTwilioCall(s.agent.line_url) as other:
            await s.talking(call, other)
            s.agent.signal()
            while not await s.agent.is_draining():
                await asyncio.sleep(0.02)
            late = FakeTwilioCall(s.agent.line_url)
            async with late:
                assert await late.closed(30.0) == 1012
            await call.say("bye", 300)
            await other.hang_up()
            assert await call.closed(30.0) == 1000
        assert await s.agent.ended() == 0
        assert (s.business.count("/start"), s.business.count("/end")) == (2, 2)
        assert s.agent.left_behind() == []


async def test_a_call_that_goes_on_is_ended_in_order_after_the_limit(tmp_path: Path) -> None:  # V12
    async with scene(tmp_path, drain_s=0.3) as s, FakeTwilioCall(s.agent.line_url) as call:
        await s.talking(call)
        s.agent.signal()
        assert await call.closed(30.0) == 1000
        assert await s.agent.ended() == 0
        assert s.business.count("/end") == 1
        assert not any(connection.socket.is_open for connection in s.model.connections)


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:  # V12
    async with scene(tmp_path, drain_s=600) as s, FakeTwilioCall(s.agent.line_url) as call:
        await s.talking(call)
        s.agent.signal()
        while not await s.agent.is_draining():
            await asyncio.sleep(0.02)
        s.agent.signal()
        assert await call.closed(30.0) in (1000, 1001)
        assert await s.agent.ended() == 0
        assert s.business.count("/end") <= 1


async def test_killed_it_leaves_only_what_it_has_to_deliver_and_the_next_one_delivers_it(
    tmp_path: Path,
) -> None:  # 21, V12, voice-2
    spool = tmp_path / "spool"
    async with scene(tmp_path, drain_s=600, FLOW_ENGINE_VOICE_SPOOL=str(spool)) as s:
        s.business.troubles["/end"] = "500"
        async with FakeTwilioCall(s.agent.line_url) as call:
            await s.talking(call)
            await call.hang_up()
        await eventually(lambda: s.business.count("/end") == 1)
        async with FakeTwilioCall(s.agent.line_url) as call:
            await eventually(lambda: s.business.count("/start") == 2 and call.playout.heard != [])
            assert s.agent.children() == []
            s.agent.signal(signal.SIGKILL)
            assert await s.agent.ended() == -signal.SIGKILL
            await call.closed()
            await eventually(lambda: not any(each.socket.is_open for each in s.model.connections))
        [left] = s.agent.left_behind()
        assert Path(left).parent == spool
        with pytest.raises(CallRefused):
            await FakeTwilioCall(s.agent.line_url).__aenter__()
        del s.business.troubles["/end"]
        port, before = s.agent.port, s.business.count("/end")
        async with voice_process(
            simple_config(), s.business, s.model.url, tmp_path, port, FLOW_ENGINE_VOICE_SPOOL=str(spool)
        ) as again:
            await eventually(lambda: s.business.count("/end") > before)
            assert len({key for path, key in s.business.keys if path == "/end"}) == 1
            await eventually(lambda: again.left_behind() == [])
            async with FakeTwilioCall(again.line_url) as call:
                await eventually(lambda: s.business.count("/start") == 3)
                await call.hang_up()
            await eventually(lambda: len({key for path, key in s.business.keys if path == "/end"}) == 2)
            again.signal()
            assert await again.ended() == 0


async def test_sip_calls_are_hung_up_and_their_end_is_told(tmp_path: Path) -> None:  # V12
    async with (
        nothing_left(),
        FakeRealtime(STEPS) as model,
        FakeSip(model) as sip,
        business_server() as business,
        voice_process(
            simple_config(),
            business,
            sip.url,
            tmp_path,
            FLOW_ENGINE_VOICE_DRAIN_S="0.2",
            OPENAI_WEBHOOK_SECRET=SECRET,
        ) as agent,
    ):
        webhook = sip.ring("rtc_1", SECRET, {"From": "<sip:+33612345678@carrier.example>"})
        await _post(agent.port, webhook.headers, webhook.body)
        await sip.session("rtc_1")
        await eventually(lambda: business.count("/start") == 1)
        agent.signal()
        assert await agent.ended() == 0
        assert sip.asked("rtc_1") == ["accept", "hangup"]
        assert business.count("/end") == 1


async def _post(port: int, headers: object, body: bytes) -> None:
    assert isinstance(headers, dict)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    told += f"Host: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    head = f"POST /sip HTTP/1.1\r\n{told}\r\n"
    writer.write(head.encode() + body)
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()
