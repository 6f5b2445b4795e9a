"""V12: calls by SIP from the webhook to their end, on the shipped double of the model's connector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.voice import model_connection
from channels.voice.bridge import Bridge, Realtime
from channels.voice.call.ports import ModelStalled, SessionSettings
from channels.voice.carriers.sip.bridge import SipConnection
from channels.voice.carriers.sip.calls import SipCall, SipCalls
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.model_connection import Patience
from channels.voice.runner import CallPlan, CallRunner
from channels.voice.testing.fake_realtime import FakeRealtime, Fault
from channels.voice.testing.realtime_session import RealtimeSession
from channels.voice.testing.script import Fail, Reaction, Say, Script, UseTool
from channels.voice.testing.sockets import eventually
from tests.channels.voice.books import Book, Watcher
from tests.channels.voice.business_server import BusinessServer, business_server
from tests.channels.voice.fake_sip import Action, FakeSip
from tests.channels.voice.leaks import nothing_left
from tests.channels.voice.served_agent import CHECK, SECRET, ServedAgent, served_agent, simple_config

pytestmark = pytest.mark.anyio

FROM = {"From": "<sip:+33612345678@carrier.example>", "X-Shop": "r7"}


@dataclass
class Scene:
    sip: FakeSip
    realtime: FakeRealtime
    business: BusinessServer
    agent: ServedAgent

    async def ring(self, call_id: str = "rtc_1") -> str:
        return await self.agent.take(self.sip.ring(call_id, SECRET, FROM))

    async def over(self, within_s: float = 8.0) -> None:
        await eventually(lambda: self.agent.app.admission.live == 0, within_s)

    async def said(self, session: RealtimeSession, kind: str) -> Mapping[str, object]:
        await eventually(lambda: session.received(kind) != [])
        return session.received(kind)[-1].fields


@asynccontextmanager
async def scene(
    *reactions: Reaction,
    config: dict[str, Any] | None = None,
    fails: Mapping[Action, list[int]] | None = None,
    faults: list[Fault | None] | None = None,
    answers: dict[str, Any] | None = None,
) -> AsyncGenerator[Scene]:
    script = Script(reactions or (Reaction((Say("Good evening", 300),), once=False),))
    async with (
        nothing_left(),
        FakeRealtime(script, faults=faults or ()) as realtime,
        FakeSip(realtime, fails=fails, api_key="sk-test") as sip,
        business_server(answers) as business,
        served_agent(config or simple_config(), business, sip.url) as agent,
    ):
        yield Scene(sip, realtime, business, agent)
        assert sip.mistakes == []


async def test_a_call_from_its_greeting_over_a_tool_to_the_goodbye() -> None:  # V2, V6, V12
    steps = (
        Reaction((Say("Good evening", 300),), when="greet"),
        Reaction((UseTool("look_up", {"q": "table"}),), when="user: a table"),
        Reaction((Say("There is one. Goodbye", 600), UseTool("end_call", {})), when="tool:"),
    )
    async with scene(*steps, answers={"/tool": {"free": 2}}) as s:
        assert await s.ring() == "taken"
        session = await s.sip.session("rtc_1")
        await eventually(lambda: session.sent("output_audio_buffer.stopped") != [])
        session.hear("A table for two")
        await s.over()
        assert s.business.body("/tool") == {"q": "table"}
        assert s.sip.asked("rtc_1") == ["accept", "hangup"]
        # The line was closed when the goodbye had been played, not before.
        played = session.sent("output_audio_buffer.stopped")[-1].at
        assert len(session.sent("output_audio_buffer.stopped")) == 2
        assert asyncio.get_running_loop().time() >= played
        end = s.business.body("/end")
        assert isinstance(end, dict)
        assert end["outcome"] == "talked"
        assert [entry["content"] for entry in end["said"]] == [  # type: ignore[index, union-attr, call-overload]
            "Good evening",
            "A table for two",
            "There is one. Goodbye",
        ]
        assert session.errors == []
        assert (s.business.count("/start"), s.business.count("/end")) == (1, 1)
        told = await s.agent.metrics()
        assert told["calls_total{reason=agent_hung_up}"] == 1
        assert told["tool_calls_total{outcome=answered}"] == 2


async def test_the_session_is_accepted_without_formats_which_the_line_has_settled() -> None:  # V12
    async with scene() as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        accepted = s.sip.requests[0]
        assert (accepted.action, accepted.body["model"], accepted.body["instructions"]) == (
            "accept",
            "gpt-realtime",
            "Answer.",
        )
        update = await s.said(session, "session.update")
        assert "format" not in str(update)
        assert "format" not in str(accepted.body)
        s.sip.hang_up("rtc_1")
        await s.over()


async def test_a_caller_who_hangs_up_ends_the_call_at_once_and_once() -> None:  # V12
    async with scene() as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await eventually(lambda: session.sent("output_audio_buffer.started") != [])
        s.sip.hang_up("rtc_1")
        await s.over(3.0)
        assert s.business.count("/end") == 1
        assert (await s.agent.metrics())["calls_total{reason=caller_hung_up}"] == 1
        assert len(s.sip.joined("rtc_1")) == 1


async def test_a_blocked_caller_is_rejected_and_never_answered() -> None:  # V3
    config = simple_config(pre_call_checks=[CHECK])
    async with scene(config=config, answers={"/check": {"blocked": True}}) as s:
        assert await s.ring() == "taken"
        await s.over()
        await eventually(lambda: s.sip.asked("rtc_1") == ["reject"])
        assert s.sip.requests[-1].body == {"status_code": 603}
        assert (s.sip.joined("rtc_1"), s.business.count("/start"), s.business.count("/end")) == ([], 0, 0)


async def test_a_caller_who_is_refused_with_words_hears_them() -> None:  # V3
    spoken = {**CHECK, "on_block": "message", "message": "We are closed today."}
    config = simple_config(pre_call_checks=[spoken])
    async with scene(
        Reaction((Say("We are closed today.", 500),), when="closed"),
        config=config,
        answers={"/check": {"blocked": True}},
    ) as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await s.over()
        assert len(session.sent("output_audio_buffer.stopped")) == 1
        assert s.sip.asked("rtc_1") == ["accept", "hangup"]
        assert (s.business.count("/start"), s.business.count("/end")) == (0, 0)
        assert (await s.agent.metrics())["calls_total{reason=refused}"] == 1


async def test_a_caller_who_hangs_up_during_the_words_of_a_refusal_ends_it_there() -> None:  # V3, V12
    spoken = {**CHECK, "on_block": "message", "message": "We are closed today."}
    config = simple_config(pre_call_checks=[spoken])
    async with scene(
        Reaction((Say("We are closed", 20_000),)), config=config, answers={"/check": {"blocked": True}}
    ) as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await eventually(lambda: session.sent("output_audio_buffer.started") != [])
        s.sip.hang_up("rtc_1")
        await s.over(2.0)
        assert len(s.sip.joined("rtc_1")) == 1


async def test_a_caller_who_speaks_stops_the_models_own_playing() -> None:  # V12
    steps = (
        Reaction((Say("A story that takes a very long time", 20_000),), when="greet"),
        Reaction((Say("Yes?", 300),), when="user: stop"),
    )
    async with scene(*steps) as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await eventually(lambda: session.sent("output_audio_buffer.started") != [])
        await asyncio.sleep(0.4)
        session.hear("Stop please")
        await eventually(lambda: session.sent("output_audio_buffer.cleared") != [])
        kinds = [command.kind for command in session.commands]
        assert kinds.index("response.cancel") < kinds.index("output_audio_buffer.clear")
        assert not {"conversation.item.truncate", "conversation.item.delete"} & set(kinds)
        await eventually(lambda: len(session.sent("output_audio_buffer.stopped")) == 1)
        s.sip.hang_up("rtc_1")
        await s.over()
        said = s.business.body("/end")["said"]  # type: ignore[index, call-overload]
        first = said[0]["content"]  # type: ignore[index, call-overload]
        assert str(first).startswith("A story")
        assert str(first).endswith("…")
        assert (await s.agent.metrics())["barge_ins_total"] == 1


async def test_a_caller_who_speaks_while_only_the_playing_goes_on_stops_it() -> None:  # V12
    steps = (Reaction((Say("A story", 3000),), when="greet"), Reaction((Say("Yes?", 300),), once=False))
    async with scene(*steps) as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await eventually(lambda: session.sent("response.done") != [])
        assert session.sent("output_audio_buffer.stopped") == []
        session.hear("Stop please")
        await eventually(lambda: session.sent("output_audio_buffer.cleared") != [])
        assert session.received("response.cancel") == []
        s.sip.hang_up("rtc_1")
        await s.over()
        assert (await s.agent.metrics())["barge_ins_total"] == 1


async def test_keys_reach_the_model_together() -> None:  # V12
    async with scene() as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await eventually(lambda: session.sent("response.done") != [])
        s.sip.press("rtc_1", "42#")
        await eventually(lambda: "42#" in str(session.received("conversation.item.create")[-1].fields))
        s.sip.hang_up("rtc_1")
        await s.over()


async def test_a_connection_that_breaks_is_joined_again_and_the_call_goes_on() -> None:  # V12
    async with scene(faults=[Fault("drop", after_events=14)]) as s:
        await s.ring()
        again = await s.sip.session("rtc_1", number=1)
        await eventually(lambda: again.received("session.update") != [])
        again.hear("Are you there?")
        await eventually(lambda: again.sent("response.done") != [])
        assert s.sip.asked("rtc_1") == ["accept"]
        assert (await s.agent.metrics())["model_reconnects_total"] == 1
        # The session has kept what was said: nothing of it is told again.
        assert not any("past_" in str(command.fields) for command in again.commands)
        s.sip.hang_up("rtc_1")
        await s.over()
        assert (s.business.count("/start"), s.business.count("/end")) == (1, 1)


async def test_a_model_that_does_not_answer_is_joined_again_and_the_caller_stays() -> None:  # V12
    async with scene(faults=[Fault("stall", after_events=4)]) as s:
        await s.ring()
        await s.sip.session("rtc_1")
        await eventually(lambda: len(s.agent.answering._bridge._calls) == 1)  # type: ignore[attr-defined]
        [runner] = s.agent.answering._bridge._calls.values()  # type: ignore[attr-defined]
        await eventually(lambda: runner.has_started)
        runner.notice(ModelStalled())
        await s.sip.session("rtc_1", number=1)
        await asyncio.sleep(0.3)
        assert s.agent.app.admission.live == 1
        s.sip.hang_up("rtc_1")
        await s.over()
        assert (await s.agent.metrics())["calls_total{reason=caller_hung_up}"] == 1


@pytest.mark.parametrize("statuses", [[500, 500], [404, 404]])
async def test_a_call_that_cannot_be_accepted_is_over_and_in_the_books(statuses: list[int]) -> None:
    async with scene(fails={"accept": statuses}) as s:  # V12
        await s.ring()
        await s.over()
        assert s.sip.joined("rtc_1") == []
        assert s.sip.asked("rtc_1")[-1] == "reject"
        assert (s.business.count("/start"), s.business.count("/end")) == (1, 1)  # voice-9


async def test_an_accept_whose_answer_is_lost_leaves_no_call_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # V12
    monkeypatch.setattr(model_connection, "RINGING", Patience(0.3, (0.1,), 1.0))
    async with scene(fails={"accept": [0]}) as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await s.said(session, "response.create")
        s.sip.hang_up("rtc_1")
        await s.over()
    async with scene(fails={"accept": [0, 500]}) as s:
        await s.ring()
        await s.over()
        assert "hangup" in [request.action for request in s.sip.requests]


async def test_a_program_that_ends_hangs_up_its_calls_and_tells_their_end() -> None:  # V12
    async with scene() as s:
        await s.ring()
        await s.sip.session("rtc_1")
        await eventually(lambda: s.business.count("/start") == 1)
        await s.agent.answering.close()
        assert s.business.count("/end") == 1
        assert s.sip.asked("rtc_1") == ["accept", "hangup"]


async def test_a_response_that_fails_is_asked_for_again_but_not_for_ever() -> None:  # V12
    async with scene(Reaction((Fail("rate_limit_exceeded"),), once=False)) as s:
        await s.ring()
        session = await s.sip.session("rtc_1")
        await eventually(lambda: len(session.received("response.create")) == 3)
        await asyncio.sleep(1.5)
        assert len(session.received("response.create")) == 3
        s.sip.hang_up("rtc_1")
        await s.over()


async def test_no_number_of_a_caller_is_logged() -> None:  # V14
    with capture_logs() as logged:
        async with scene() as s:
            await s.ring()
            await s.sip.session("rtc_1")
            await eventually(lambda: s.business.count("/start") == 1)
            s.sip.hang_up("rtc_1")
            await s.over()
    told = [entry for entry in logged if entry["log_level"] != "debug"]
    [ended] = [entry for entry in told if entry["event"] == "call_ended"]
    assert 0 < ended["duration_ms"] < 60_000
    assert "612345678" not in str(told)


class TestTransfer:
    @asynccontextmanager
    async def call(
        self, book: Book, fails: Mapping[Action, list[int]] | None = None
    ) -> AsyncGenerator[tuple[FakeSip, Watcher]]:
        """A call that the book answers."""
        watcher = Watcher()
        script = Script.of(Say("Good evening", 200), Say("One moment please", 400))
        async with nothing_left(), FakeRealtime(script) as model, FakeSip(model, fails=fails) as sip:
            outbound = GuardedClient(AllowList.parse(sip.url.split("/")[2]))
            calls = SipCalls(outbound, sip.url, "k")
            plan = CallPlan(
                connect=None,  # type: ignore[arg-type]
                open_call=book.answer,
                apology_settings=SessionSettings("Apologise."),
                clock=asyncio.get_running_loop().time,
                wall=lambda: datetime.now(UTC),
                metrics=watcher,
            )
            bridge = Bridge(lambda tap: plan, TwilioStreams())
            sip.ring("rtc_1", SECRET, FROM)
            call = SipCall("rtc_1", "+33612345678", {"callerPhone": "+33612345678"})
            line = SipConnection(call, calls, Realtime(sip.url, {}), None)
            line.runner = CallRunner(
                replace(plan, connect=line.connect), line, line.started, transfer=line.refer, line_plays=False
            )
            running = asyncio.ensure_future(bridge.kept(line.runner, None, line.ended))
            await sip.session("rtc_1")
            await eventually(lambda: "started" in book.asked)
            yield sip, watcher
            await asyncio.wait_for(running, 30)
            await outbound.aclose()

    async def test_gives_the_call_away_after_the_words_before_it_were_heard(self) -> None:  # V2
        book = Book()
        async with self.call(book) as (sip, watcher):
            session = await sip.session("rtc_1")
            await eventually(lambda: session.sent("output_audio_buffer.stopped") != [])
            assert book.controls is not None
            book.controls.switch_task(SessionSettings("x"), "Say that you put them through.")
            book.controls.transfer("+33199999999")
            await eventually(lambda: watcher.ended != [])  # which is told last
            assert book.ending is not None
            assert sip.asked("rtc_1") == ["accept", "refer"]
            assert sip.requests[-1].body == {"target_uri": "tel:+33199999999"}
            assert len(session.sent("output_audio_buffer.stopped")) == 2
            assert watcher.ended == ["transferred"]
            assert book.asked.count("ended") == 1

    async def test_that_is_refused_leaves_the_caller_with_the_agent(self) -> None:  # V2, V12
        book = Book()
        async with self.call(book, {"refer": [500]}) as (sip, watcher):
            assert book.controls is not None
            book.controls.transfer("sip:desk@pbx.example")
            await eventually(lambda: "not transferred sip:desk@pbx.example" in book.asked)
            assert watcher.ended == []
            book.controls.hang_up()
            await eventually(lambda: sip.asked("rtc_1") == ["accept", "hangup"])
            await eventually(lambda: watcher.ended == ["agent_hung_up"])

    async def test_that_is_refused_is_logged_with_its_call(self) -> None:  # V14
        book = Book()
        with capture_logs() as logged:
            async with self.call(book, {"refer": [500]}):
                assert book.controls is not None
                book.controls.transfer("sip:desk@pbx.example")
                await eventually(lambda: "not transferred sip:desk@pbx.example" in book.asked)
                book.controls.hang_up()
        [began] = [entry for entry in logged if entry["event"] == "call_began"]
        [refused] = [entry for entry in logged if entry["event"] == "call_not_transferred"]
        assert refused["call_id"] == began["call_id"]
        assert "desk@pbx.example" not in str(refused)
