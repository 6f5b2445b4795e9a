"""V12 on a line with 60 ms each way: what the caller really heard, against what the model was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_response import Pace
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.realtime_session import Command, RealtimeSession
from channels.voice.testing.script import Reaction, Say, Script, UseTool
from channels.voice.testing.sockets import eventually
from flow_engine.values import JsonValue
from tests.channels.voice.books import Book, bridged
from tests.timing import in_the_best_round

pytestmark = pytest.mark.anyio

LINE_S = 0.06
SPEECH_MS = 100
"""What the double's speech detection needs to hear before it says that somebody speaks, generously."""


@dataclass
class Talk:
    call: FakeTwilioCall
    session: RealtimeSession
    book: Book
    model: FakeRealtime

    def commands(self, *kinds: str) -> list[Command]:
        return [command for command in self.session.commands if command.kind in kinds]

    async def heard(self, ms: float, within_s: float = 20.0) -> None:
        """Wait until the caller has heard so much in all."""

        def enough() -> bool:
            now = asyncio.get_running_loop().time()
            self.call.playout.advance(now)
            return sum(heard.ends_ms - heard.begins_ms for heard in self.call.playout.heard) >= ms

        await eventually(enough, within_s)

    async def cleared(self) -> float:
        await eventually(lambda: self.call.playout.clears != [])
        return self.call.playout.clears[0].at

    def number(self, item_id: object) -> int:
        """Of the item, as its audio carries it."""
        return int(str(item_id).rsplit("_", 1)[1])


@asynccontextmanager
async def talk(script: Script, pace: Pace | None = None, book: Book | None = None) -> AsyncGenerator[Talk]:
    async with FakeRealtime(script, pace=pace) as model:
        book = book or Book()
        async with bridged(book, model.url) as bridge:
            call = FakeTwilioCall(bridge.url, parameters={"callerPhone": "+390212345678"}, latency_s=LINE_S)
            async with call:
                yield Talk(call, await model.session(), book, model)
                assert call.mistakes == []


def script(*reactions: Sequence[Say | UseTool]) -> Script:
    return Script(tuple(Reaction(tuple(steps)) for steps in reactions))


@in_the_best_round
async def test_a_barge_in_after_3_of_10_seconds_is_cut_within_100_ms_of_the_truth() -> None:  # V12
    async with talk(script([Say("A long story", 10_000)])) as scene:
        await scene.heard(3000)
        spoken = scene.call.say("Stop please", 600)
        cleared_at = await scene.cleared()
        begins = (await spoken).begins_at
        await eventually(lambda: scene.commands("conversation.item.truncate") != [])
        [truncate] = scene.commands("conversation.item.truncate")
        told_ms = int(str(truncate.fields["audio_end_ms"]))
        truth_ms = scene.call.playout.heard_ms(scene.number(truncate.fields["item_id"]))
        assert abs(told_ms - truth_ms) <= 100
        assert 3000 <= truth_ms < 10_000
        speech_known = next(e.at for e in scene.session.events if e.kind.endswith("speech_started"))
        assert cleared_at - speech_known <= 0.1 + LINE_S  # the clear's own way to the line
        assert begins < speech_known
        await asyncio.sleep(0.5)
        assert scene.session.errors == []


@in_the_best_round
async def test_with_two_items_queued_the_audible_one_is_cut_and_the_other_forgotten() -> None:  # V12
    async with talk(script([Say("first", 2000), Say("second", 4000), Say("third", 4000)])) as scene:
        await scene.heard(3000)
        scene.call.say("Stop please", 600)
        await scene.cleared()
        await eventually(lambda: scene.commands("conversation.item.delete") != [])
        [truncate] = scene.commands("conversation.item.truncate")
        [forgotten] = scene.commands("conversation.item.delete")
        items = [heard.item for heard in scene.call.playout.heard]
        assert scene.number(truncate.fields["item_id"]) == items[-1]
        assert len(set(items)) == 2
        truth_ms = scene.call.playout.heard_ms(items[-1] or 0)
        assert abs(int(str(truncate.fields["audio_end_ms"])) - truth_ms) <= 100
        assert scene.number(forgotten.fields["item_id"]) not in items
        await asyncio.sleep(0.3)
        assert scene.session.errors == []


@in_the_best_round
async def test_a_barge_in_during_a_tool_of_2_seconds_clears_at_once() -> None:  # V12
    async def slow(name: str) -> JsonValue:
        await asyncio.sleep(2)
        return {"free": True}

    steps = script([Say("Let me have a look", 4000), UseTool("look_up", {})], [Say("There is one", 500)])
    async with talk(steps, book=Book(tool=slow)) as scene:
        await eventually(lambda: scene.book.asked[-1:] == ["tool look_up"])
        await scene.heard(800)
        scene.call.say("Quick please", 500)
        cleared_at = await scene.cleared()
        speech_known = next(e.at for e in scene.session.events if e.kind.endswith("speech_started"))
        assert cleared_at - speech_known <= 0.1 + LINE_S
        outputs = scene.commands("conversation.item.create")
        assert not any("function_call_output" in str(command.fields) for command in outputs)


async def test_600_ms_of_late_audio_are_never_heard() -> None:  # V12
    pace = Pace(chunk_ms=100, speed=1.2, late_ms=600)
    async with talk(script([Say("A long story", 6000)], [Say("Yes?", 300)]), pace) as scene:
        await scene.heard(1500)
        scene.call.say("Stop please", 500)
        cleared_at = await scene.cleared()
        first = scene.call.playout.heard[0].item
        await asyncio.sleep(1.5)
        scene.call.playout.advance(asyncio.get_running_loop().time())
        late = [
            heard for heard in scene.call.playout.heard if heard.item == first and heard.until > cleared_at
        ]
        assert late == []
        deltas = [e for e in scene.session.events if e.kind == "response.output_audio.delta"]
        assert any(delta.at > cleared_at for delta in deltas)  # there was late audio


async def test_the_goodbye_is_not_cut() -> None:  # V12
    async with talk(script([Say("Goodbye and thank you", 2500), UseTool("end_call", {})])) as scene:
        code = await scene.call.closed(10.0)
        scene.call.playout.advance(asyncio.get_running_loop().time())
        assert sum(heard.ends_ms - heard.begins_ms for heard in scene.call.playout.heard) == 2500
        assert code == 1000
        assert len(scene.commands("response.create")) == 1
    assert scene.book.asked[-1] == "ended"


async def test_two_tools_in_one_response_give_one_answer() -> None:  # V12
    async def works(name: str) -> JsonValue:
        await asyncio.sleep(0.1 if name == "one" else 0.4)
        return {"from": name}

    steps = script([UseTool("one", {}), UseTool("two", {})], [Say("Both are there", 300)])
    async with talk(steps, book=Book(tool=works)) as scene:
        await scene.heard(300)
        await asyncio.sleep(0.3)
        assert len(scene.commands("response.create")) == 2  # the greeting, the answer to both
        created = [str(c.fields) for c in scene.commands("conversation.item.create")]
        assert sum("function_call_output" in fields for fields in created) == 2
        assert scene.session.errors == []


async def test_a_dialogue_is_understood_and_told_in_order() -> None:  # V11, V12
    steps = Script(
        (
            Reaction((Say("Good evening", 600),), when="Greet"),
            Reaction((Say("For how many", 500),), when="user: A table"),
        )
    )
    async with talk(steps) as scene:
        await scene.heard(600)
        await scene.call.say("A table", 500)
        await scene.heard(1100)
        await asyncio.sleep(0.4)
        await scene.call.hang_up()
        await eventually(lambda: scene.book.ending is not None)
    assert scene.book.turns == ["Good evening", "A table", "For how many"]


async def test_twenty_calls_at_once_do_not_mix() -> None:  # V12
    async with FakeRealtime(script([Say("Hello", 400)])) as model:
        book = Book()
        async with bridged(book, model.url) as bridge:

            async def one(number: int) -> float:
                async with FakeTwilioCall(bridge.url, latency_s=0.02) as call:

                    def heard() -> set[str | None]:
                        call.playout.advance(asyncio.get_running_loop().time())
                        return {mark.item for mark in call.playout.heard}

                    await eventually(lambda: bool(heard()))  # so many at once may be slow to greet
                    await asyncio.sleep(1.2)
                    items = heard()
                    assert len(items) == 1
                    assert call.mistakes == []
                    return next(iter(items)) or 0

            items = await asyncio.gather(*(one(number) for number in range(20)))
            assert len(set(items)) == 20
            await asyncio.wait_for(bridge.bridge.drained(), 30)
        assert bridge.watcher.ended == ["caller_hung_up"] * 20
