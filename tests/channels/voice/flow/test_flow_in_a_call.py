"""A flow behind the call's own machine: what the model and the line are told, in which order (V2, V12)."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from channels.voice.call.events import (
    AgentAudio,
    AgentAudioEnded,
    FunctionCall,
    ItemAdded,
    MarkReturned,
    OutputTranscript,
    ResponseEnded,
    ResponseStarted,
    SessionUpdated,
    StreamStarted,
)
from channels.voice.call.ports import AnsweredCall, Caller, CallSeat, RealtimeListener, SessionSettings
from channels.voice.flow.call_handler import FlowCallHandler
from channels.voice.runner import CallPlan, CallRunner
from tests.api.harness import Scene, open_scene
from tests.channels.engine_client.engine_doubles import client_of
from tests.channels.voice.books import Watcher
from tests.channels.voice.flow.flow_call import AT, BASE, OPERATOR, eventually, health_booking, start
from tests.channels.voice.flow.test_flow_call_handler import Clinic
from tests.channels.voice.recording_doubles import RecordingLine, RecordingModel

pytestmark = pytest.mark.anyio

SPEECH = base64.b64encode(b"\xff" * 1600)


class LiveCall:
    """A call whose model and line are played by the test."""

    def __init__(self, scene: Scene, version_id: str) -> None:
        self.model, self.line = RecordingModel(), RecordingLine()
        self.moved: list[str] = []
        self._scene, self._version_id = scene, version_id
        self._side: RealtimeListener | None = None
        plan = CallPlan(
            connect=self._connect,
            open_call=self._open,
            apology_settings=SessionSettings("Apologise."),
            clock=asyncio.get_running_loop().time,
            wall=lambda: AT,
            metrics=Watcher(),
        )
        began = StreamStarted("MZ1", "CA1", {"callerPhone": "+393471234567"})
        self.runner = CallRunner(plan, self.line, began, transfer=self._transfer)

    def event(self, *events: Any) -> None:
        assert self._side is not None
        for event in events:
            self._side.event(event)

    def speaks(self, response_id: str, item_id: str) -> None:
        """One whole response that is spoken, and heard at once."""
        self.event(
            ResponseStarted(response_id),
            ItemAdded(item_id, "assistant"),
            AgentAudio(response_id, item_id, 0, SPEECH),
            AgentAudioEnded(item_id),
            OutputTranscript(item_id, "La metto in contatto."),
            ResponseEnded(response_id, "completed"),
        )
        for mark in self.line.marks:
            self.runner.call.line_event(MarkReturned(mark))

    async def told(self, *methods: str) -> list[tuple[object, ...]]:
        """Wait for these in this order, and return all that the model has been told since the last time."""
        await eventually(lambda: [told[0] for told in self.model.said()] == list(methods))
        since, self.model.told = self.model.said(), []
        return since

    def _open(self, caller: Caller, seat: CallSeat) -> AnsweredCall:
        self.caller = caller
        handler = FlowCallHandler(
            start(self._version_id),
            BASE,
            caller,
            seat,
            engine=client_of(self._scene),
            servers=Clinic(self._scene),
            now=lambda: AT,
        )
        return AnsweredCall(handler)

    async def _connect(self, settings: SessionSettings, side: RealtimeListener) -> RecordingModel:
        self._side = side
        asyncio.get_running_loop().call_later(0.01, side.event, SessionUpdated(None, None))
        return self.model

    async def _transfer(self, target: str) -> bool:
        self.moved.append(target)
        return True


async def test_a_change_of_task_goes_through_the_machine_and_a_person_comes_after_the_last_words() -> None:
    document = health_booking()
    async with open_scene(document) as scene:
        call = LiveCall(scene, document["_id"])
        running = asyncio.create_task(call.runner.run())
        told = await call.told("configure", "add_text", "create_response")
        assert told[1] == ("add_text", "user", "/start")

        call.event(
            ResponseStarted("r1"),
            FunctionCall("r1", "c1", "cerca_prestazione", json.dumps({"testo": "ECG"})),
            ResponseEnded("r1", "completed"),
        )
        told = await call.told("configure", "send_function_output", "create_response")
        assert isinstance(told[0][1], SessionSettings)
        assert "Elettrocardiogramma" in told[0][1].instructions  # before the answer is

        call.event(
            ResponseStarted("r2"),
            FunctionCall("r2", "c2", "change_task", json.dumps({"task": "operatore"})),
            ResponseEnded("r2", "completed"),
        )
        told = await call.told("configure", "send_function_output", "add_text", "create_response")
        assert json.loads(str(told[1][2])) == {"result": True, "task": "operatore", "type": "HUM"}
        assert str(told[2][2]).startswith("/start_task operatore HUM")
        assert call.moved == []

        call.speaks("r3", "i3")
        await asyncio.wait_for(running, 30)
        assert call.moved == [OPERATOR]
        events = await scene.events(call.caller.call_id)
    assert [e["body"] for e in events if e["type"] == "message"] == ["La metto in contatto."]
    subtypes = [e["body"]["subtype"] for e in events if e["type"] == "system"]
    assert subtypes[-3:] == ["human_task", "contact_ended", "conversation_closed"]
