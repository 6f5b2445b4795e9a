"""V2-V6, V12: a business's API that fails in any way: the call ends or goes on once, its end told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from channels.voice import runner
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.realtime_session import RealtimeSession
from channels.voice.testing.script import Reaction, Say, Script, UseTool
from channels.voice.testing.sockets import eventually
from tests.channels.voice.business_server import TROUBLES, BusinessServer, Trouble, business_server
from tests.channels.voice.leaks import nothing_left
from tests.channels.voice.served_agent import CHECK, FETCHED, ServedAgent, served_agent, simple_config

pytestmark = pytest.mark.anyio

STEPS = Script(
    (
        Reaction((Say("Sorry, not today", 200),), when="say exactly"),
        Reaction((Say("Good evening", 200), UseTool("look_up", {"q": "x"})), when="greet"),
        Reaction((Say("Goodbye", 200), UseTool("end_call", {})), when="tool:"),
    )
)


@dataclass
class Scene:
    model: FakeRealtime
    business: BusinessServer
    agent: ServedAgent

    async def dial(self) -> RealtimeSession | None:
        """One call, until it has ended. The session with the model, if it came to one."""
        async with FakeTwilioCall(self.agent.line_url, latency_s=0.0) as call:
            await call.closed(8.0)
        await eventually(lambda: self.agent.app.admission.live == 0)
        assert call.mistakes == []
        await eventually(lambda: self.agent.count("calls_active") == 0)
        return self.model.sessions[0] if self.model.sessions else None


@asynccontextmanager
async def scene(
    config: dict[str, Any], troubles: dict[str, Trouble], answers: dict[str, Any] | None = None
) -> AsyncGenerator[Scene]:
    async with (
        nothing_left(),
        FakeRealtime(STEPS) as model,
        business_server(
            {"/session": {"prompt": "Answer."}, "/tool": {"free": 1}, **(answers or {})}
        ) as business,
        served_agent(config, business, model.url) as agent,
    ):
        business.troubles.update(troubles)
        yield Scene(model, business, agent)
        assert business.elsewhere == 0  # no redirect was followed to the inside


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_tool_that_fails_is_an_answer_for_the_model(trouble: Trouble) -> None:  # V6
    async with scene(simple_config(), {"/tool": trouble}) as s:
        session = await s.dial()
        assert session is not None
        told = [str(command.fields) for command in session.received("conversation.item.create")]
        [answer] = [each for each in told if "function_call_output" in each and '"status"' not in each]
        # A body that is text is an answer as any other.
        assert '"error' in answer
        assert "127.0.0.1" not in answer
        assert (s.business.count("/tool"), s.business.count("/start"), s.business.count("/end")) == (1, 1, 1)
        metrics = await s.agent.metrics()
        assert metrics["calls_total{reason=agent_hung_up}"] == 1
        assert metrics["tool_calls_total{outcome=failed}"] == 1


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_bookkeeping_that_fails_is_no_matter_of_the_caller(trouble: Trouble) -> None:  # V5
    async with scene(simple_config(), {"/start": trouble, "/end": trouble}) as s:
        session = await s.dial()
        assert session is not None
        assert (s.business.count("/tool"), s.business.count("/start"), s.business.count("/end")) == (1, 1, 1)
        assert (await s.agent.metrics())["calls_total{reason=agent_hung_up}"] == 1


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_check_that_cannot_be_asked_lets_the_call_through(trouble: Trouble) -> None:  # V3
    async with scene(simple_config(pre_call_checks=[CHECK]), {"/check": trouble}) as s:
        assert await s.dial() is not None
        assert (s.business.count("/check"), s.business.count("/start"), s.business.count("/end")) == (1, 1, 1)


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_without_a_session_the_caller_hears_an_apology_and_no_books_are_kept(
    trouble: Trouble,
) -> None:  # V2
    async with scene(simple_config(session=FETCHED), {"/session": trouble}) as s:
        session = await s.dial()
        assert session is not None
        assert len(session.sent("response.output_audio.done")) == 1
        assert (s.business.count("/session"), s.business.count("/start"), s.business.count("/end")) == (
            1,
            0,
            0,
        )
        assert (await s.agent.metrics())["calls_total{reason=refused}"] == 1


async def test_a_business_that_is_not_there_at_all() -> None:  # V2-V6
    async with nothing_left(), FakeRealtime(STEPS) as model, business_server() as gone:
        pass
    async with nothing_left(), FakeRealtime(STEPS) as model:
        config = simple_config(pre_call_checks=[CHECK])
        async with served_agent(config, gone, model.url) as agent:
            async with FakeTwilioCall(agent.line_url, latency_s=0.0) as call:
                await call.closed(8.0)
            await eventually(lambda: agent.count("calls_total", reason="agent_hung_up") == 1)


async def test_a_caller_who_hangs_up_during_a_slow_tool_has_it_stopped_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12, voice-2
    monkeypatch.setattr(runner, "LAST_TOOLS_WITHIN_S", 0.3)
    config = simple_config()
    config["tools"]["look_up"]["timeout_s"] = 10.0
    async with scene(config, {"/tool": "silence"}) as s:
        async with FakeTwilioCall(s.agent.line_url, latency_s=0.0) as call:
            await eventually(lambda: s.business.count("/tool") == 1)
            await call.hang_up()
        await eventually(lambda: s.business.count("/end") == 1)
        # What is left open is the connections that wait for their next request.
        await eventually(lambda: s.agent.app.admission.live == 0)
        metrics = await s.agent.metrics()
        assert metrics["tool_calls_total{outcome=stopped}"] == 1
        assert metrics["calls_total{reason=caller_hung_up}"] == 1


async def test_a_caller_who_hangs_up_while_the_session_is_fetched_is_no_call_of_the_books() -> None:  # V2
    fetched = {**FETCHED, "timeout_s": 10.0}
    async with scene(simple_config(session=fetched), {"/session": "slow body"}) as s:
        async with FakeTwilioCall(s.agent.line_url, latency_s=0.0) as call:
            await eventually(lambda: s.business.count("/session") == 1)
            await call.hang_up()
        await eventually(lambda: s.agent.app.admission.live == 0)
        await asyncio.sleep(0.1)
        assert (s.business.count("/start"), s.business.count("/end"), s.model.sessions) == (0, 0, [])
