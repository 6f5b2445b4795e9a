"""A carrier is one folder: another one, through the whole of what `voice serve` runs."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest
from picows import WSMsgType

from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.script import Reaction, Say, Script, UseTool
from channels.voice.testing.signals import silence, speech
from channels.voice.testing.sockets import eventually
from tests.channels.voice.business_server import business_server
from tests.channels.voice.served_agent import served_agent, simple_config
from tests.channels.voice.server.front_desk import Caller, dial
from tests.channels.voice.toy_carrier import PASSWORD, ToyCarrier

pytestmark = pytest.mark.anyio

FRAME_BYTES = 160
HEADERS = {"x-toy": PASSWORD}
MOVE: dict[str, Any] = {"type": "builtin", "action": "transfer", "target": "+390212345678"}


class Toy:
    """The caller's side of a toy stream. Every two frames change places on the way."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.played: list[str] = []
        self._number = 0
        self._kept: bytes | None = None

    def send(self, *message: Any) -> None:
        frame = orjson.dumps([self._number, *message])
        self._number += 1
        if self._kept is None:
            self._kept = frame
            return
        for each in (frame, self._kept):
            self.caller.transport.send(WSMsgType.TEXT, each)
        self._kept = None

    def speak(self, text: str, ms: int) -> None:
        """The text, and then silence until somebody takes it for an end."""
        audio = speech(text, ms) + silence(1000)
        for at in range(0, len(audio), FRAME_BYTES):
            self.send("audio", base64.b64encode(audio[at : at + FRAME_BYTES]).decode())

    async def hear(self, until: str) -> None:
        """Returns marks as they come, as a line does that plays everything at once."""
        while (text := await self.caller.next()) is not None:
            kind, *values = orjson.loads(text)
            self.played.append(kind)
            if kind == "mark":
                self.send("mark", values[0])
                self.send("other")
            if kind == until:
                return


async def test_calls_of_another_carrier_are_offered_heard_answered_and_moved() -> None:  # V12
    config = simple_config()
    declared = {"type": "function", "name": "move", "description": "m", "parameters": {"type": "object"}}
    config["session"]["tools"].append(declared)
    config["tools"]["move"] = MOVE
    script = Script(
        (Reaction((UseTool("move"),), when="user: Move me"), Reaction((Say("Good evening", 200),)))
    )
    toy = ToyCarrier()
    async with (
        FakeRealtime(script) as model,
        business_server() as api,
        served_agent(config, api, model.url, carrier=toy) as agent,
    ):
        offer = orjson.dumps({"call": "T-1", "from": "+33612345678"})
        refused = await agent.http.post("/incoming-call", content=offer)
        assert (refused.status_code, refused.json()["code"]) == (403, "signature_wrong")
        answered = await agent.http.post("/incoming-call", content=offer, headers=HEADERS)
        assert answered.json() == {"stream": agent.line_url}
        line = Toy(await dial(answered.json()["stream"], HEADERS))
        line.send("start", "T-1", "+33612345678")
        line.send("other")
        await line.hear("mark")
        hearing = asyncio.create_task(line.hear("never"))
        line.speak("Move me", 600)
        await eventually(lambda: toy.transfers != [])
        hearing.cancel()
        assert (await model.session()).errors == []
        line.caller.transport.disconnect()
    assert toy.transfers == [("T-1", "+390212345678")]
    assert "play" in line.played
