"""V14: what a call did can be read from the metrics afterwards."""

from __future__ import annotations

import asyncio

import pytest

from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Reaction, Say, Script, UseTool
from channels.voice.testing.sockets import eventually
from tests.channels.voice.business_server import business_server
from tests.channels.voice.leaks import nothing_left
from tests.channels.voice.served_agent import served_agent, simple_config

pytestmark = pytest.mark.anyio


async def test_a_call_is_counted_with_its_tools_its_interruption_and_what_was_not_heard() -> None:  # V14
    script = Script(
        (
            Reaction((UseTool("look_up", {"q": "x"}), UseTool("look_up", {"q": "y"})), when="greet"),
            Reaction((Say("A long story", 20_000),), when="tool:"),
            Reaction((UseTool("unknown"), Say("Yes?", 200)), when="user: stop"),
        )
    )
    pace = Pace(chunk_ms=100, speed=4.0, late_ms=600)
    async with (
        nothing_left(),
        FakeRealtime(script, pace=pace) as model,
        business_server() as business,
        served_agent(simple_config(), business, model.url) as agent,
    ):
        async with FakeTwilioCall(agent.line_url, latency_s=0.0) as call:
            await eventually(lambda: call.playout.heard != [])
            assert (await agent.metrics())["calls_active"] == 1
            await call.say("Stop", 300)
            session = await model.session()
            await eventually(lambda: len(session.sent("response.output_audio.done")) >= 2)
            await asyncio.sleep(0.2)
            await call.hang_up()
        await eventually(lambda: agent.app.admission.live == 0)
        await eventually(lambda: agent.count("calls_active") == 0)
        told = await agent.metrics()
    assert told == {
        "calls_total{reason=caller_hung_up}": 1,
        "model_tokens_total{kind=output}": told["model_tokens_total{kind=output}"],
        "tool_calls_total{outcome=answered}": 2,
        "tool_calls_total{outcome=failed}": 1,
        "barge_ins_total": 1,
        "dropped_frames_total{side=line}": told["dropped_frames_total{side=line}"],
    }
    assert 1 <= told["dropped_frames_total{side=line}"] <= 7
