"""What the caller has just said is waited for where it decides (V2, F31)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from channels.voice.call.audio_output import TEXT_WITHIN_S, Transcript
from channels.voice.call.playback_tracker import Cut
from channels.voice.call.ports import Turn
from channels.voice.flow.engine_sync import READ_WITHIN_S, TranscriptBarrier
from tests.api.harness import entry
from tests.channels.voice.flow.flow_call import (
    AGENDA,
    AT,
    CALL_ID,
    eventually,
    flow_call,
    health_booking,
    scripted,
)
from tests.channels.voice.flow.test_flow_call_handler import VISIT, Clinic, found, quiet_clinic
from tests.channels.voice.recording_doubles import RecordingControls

pytestmark = pytest.mark.anyio

PATH = "/v1/change-task"


async def test_a_task_that_lacks_a_value_waits_for_the_words_that_may_hold_it() -> None:
    async with flow_call(health_booking(), mcp=Clinic) as call:
        await call.opened()
        call.controls.awaits_transcript = True
        changing = asyncio.create_task(call.tool("change_task", task="disponibilità"))
        await asyncio.sleep(0.1)
        assert PATH not in call.requests
        await call.scene.written(found_visit(), conversation=CALL_ID)
        call.controls.awaits_transcript = False
        assert (await changing)["result"] is True
        subtypes = [event["subtype"] for event in await call.system_events()]
    assert "task_refused" not in subtypes


async def test_words_that_are_known_are_waited_for_until_the_engine_has_them() -> None:
    async with flow_call(health_booking(), mcp=Clinic) as call:
        await call.opened()
        turn = Turn("user", "Un elettrocardiogramma", AT)
        call.controls.turns.append(turn)
        changing = asyncio.create_task(call.tool("change_task", task="disponibilità"))
        await asyncio.sleep(0.1)
        assert PATH not in call.requests
        await call.handler.notice(turn)
        assert (await changing)["code"] == "missing_variables"
    assert call.requests.index("/v1/handle-utterance") < call.requests.index(PATH)


async def test_a_task_that_can_be_entered_is_not_kept_waiting() -> None:
    async with flow_call(quiet_clinic()) as call:
        await call.opened()
        call.controls.awaits_transcript = True
        began = asyncio.get_running_loop().time()
        assert (await call.tool("change_task", task="supervised"))["result"] is True
    assert asyncio.get_running_loop().time() - began < READ_WITHIN_S


async def test_a_tool_that_is_given_a_variable_waits_for_its_value() -> None:
    async with flow_call(health_booking(), mcp=Clinic) as call:
        await call.opened()
        await call.scene.written(found_visit(), conversation=CALL_ID)
        await call.tool("change_task", task="disponibilità")
        call.controls.awaits_transcript = True
        asking = asyncio.create_task(call.tool("cerca_disponibilita", dal="2026-01-20"))
        await asyncio.sleep(0.1)
        assert call.servers.calls == []
        await call.scene.written(entry("sede", "Lido"), conversation=CALL_ID)
        call.controls.awaits_transcript = False
        await asking
        (made,) = call.servers.calls
    assert made.arguments == {"prestazione": VISIT, "sede": "Lido", "dal": "2026-01-20"}


async def test_a_tool_whose_arguments_are_the_model_s_runs_at_once() -> None:
    document = health_booking()
    document["tasks"][0]["mcpToolSelection"][0]["mcpServerName"] = "agenda"
    document["tasks"][0]["mcpToolSelection"][0]["selectedTools"] = [
        {"toolName": "cerca_disponibilita", "toolParameters": []}
    ]
    slots = scripted("cerca_disponibilita", found, dal={"type": "string"})
    async with flow_call(document, {AGENDA: (slots,)}) as call:
        await call.opened()
        call.controls.awaits_transcript = True
        began = asyncio.get_running_loop().time()
        await call.tool("cerca_disponibilita", dal="2026-01-20")
    assert asyncio.get_running_loop().time() - began < READ_WITHIN_S
    assert len(call.servers.calls) == 1


class Watch:
    """As much of a prompt watch as is asked here."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    async def look(self, wait_ms: int = 0) -> bool:
        self.waits.append(wait_ms)
        return True


async def test_words_that_never_come_are_waited_for_only_so_long() -> None:
    watch: Any = Watch()
    words = TranscriptBarrier(RecordingControls(awaits_transcript=True), watch)
    await asyncio.wait_for(words.read(0.1), 1)
    assert watch.waits == [0]


async def test_what_could_not_be_understood_ends_the_waiting() -> None:
    watch: Any = Watch()
    controls = RecordingControls(awaits_transcript=True)
    reading = asyncio.create_task(TranscriptBarrier(controls, watch).read(5))
    await asyncio.sleep(0.05)
    controls.awaits_transcript = False
    await eventually(reading.done, within_s=1)
    assert watch.waits[0] > 4000


class TestTheTranscript:
    def transcript(self) -> Transcript:
        return Transcript(lambda: datetime(2026, 1, 15, tzinfo=UTC), lambda item_id: None)

    def test_it_awaits_words_from_the_end_of_a_turn_until_the_turn_is_given_out(self) -> None:  # V11
        transcript = self.transcript()
        transcript.added("a1", "assistant", 0.0)
        assert not transcript.awaits_transcript
        transcript.added("u1", "user", 1.0)
        assert transcript.awaits_transcript
        transcript.text("u1", "user", "Hello", 1.5)
        assert transcript.ready(1.5) == []  # the agent's words before it are still being heard
        assert transcript.awaits_transcript
        transcript.text("a1", "assistant", "Good evening", 1.6)
        transcript.cut(Cut("a1", 0, 500, 1000), 1.7)
        assert [turn.role for turn in transcript.ready(1.7)] == ["assistant", "user"]
        assert not transcript.awaits_transcript

    def test_it_does_not_await_for_ever(self) -> None:
        transcript = self.transcript()
        transcript.added("u1", "user", 0.0)
        assert transcript.ready(TEXT_WITHIN_S) == []
        assert not transcript.awaits_transcript


def found_visit() -> Any:
    told = [{"name": "nome", "value": "Elettrocardiogramma"}]
    return entry("idPrestazione", VISIT, contactId=CALL_ID, descriptionForLLM=told)
