"""One call to a served config, and how what came of it is compared."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from channels.voice.testing.fake_response import Pace
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.realtime_session import RealtimeSession
from channels.voice.testing.script import Say, Script, Step
from channels.voice.testing.sockets import eventually
from tests.channels.voice.config.original_configs import HAS_ORIGINALS, example, original
from tests.channels.voice.served_configs import Business, HttpCall, ServedConfig

PHONE = "+33612345678"
IN_QUERY = "%2B33612345678"
LASTS_MS = 300
MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z")


@contextmanager
def served_config(kind: str, directory: Path) -> Iterator[ServedConfig]:
    """As its users wrote it, where that is at hand, else in the words of the shipped example."""
    config = original(kind) if HAS_ORIGINALS else example(kind)
    with Business().open() as business, ServedConfig(config, business, directory).running() as served:
        yield served


@dataclass
class Talk:
    """One call that is on. Whatever the model says lasts `LASTS_MS`."""

    process: ServedConfig
    line: FakeTwilioCall
    session: RealtimeSession

    def heard(self) -> list[str]:
        """What the caller heard to its end, in order."""
        self.line.playout.advance(asyncio.get_running_loop().time())
        spoken = [item for item in self.session.conversation.items if item.role == "assistant"]
        texts = {int(item.item_id.rpartition("_")[2]): item.text for item in spoken}
        playout = self.line.playout
        begun = dict.fromkeys(each.item for each in playout.heard if each.item is not None)
        return [texts[number] for number in begun if playout.heard_ms(number) >= LASTS_MS]

    async def hears(self, text: str) -> None:
        """Wait until the caller has heard this, and the line has said so."""

        def all_told() -> bool:
            line, now = self.line, asyncio.get_running_loop().time()
            is_played = text in self.heard() and line.playout.waiting_ms(now) == 0
            return is_played and line.received[-1].event == "mark" and not line.playout.reached

        await eventually(all_told)

    def tool_answers(self) -> list[str]:
        items = [each.fields["item"] for each in self.session.received("conversation.item.create")]
        return [item["output"] for item in items if item["type"] == "function_call_output"]

    async def over(self) -> list[HttpCall]:
        """Wait for the end of the call. Returns what the business was asked."""
        await self.line.closed(10)
        assert self.line.mistakes == []
        assert self.session.errors == []
        return await self.process.told("PATCH", "/api/calls")


def says(text: str) -> Say:
    return Say(text, LASTS_MS)


@asynccontextmanager
async def talk(process: ServedConfig, *steps: Step | list[Step]) -> AsyncGenerator[Talk]:
    script = Script.of(*steps)
    async with (
        process.model(script, pace=Pace(transcription_ms=5)) as model,
        await process.dial(PHONE) as line,
    ):
        yield Talk(process, line, await model.session())


def nameless(command: Mapping[str, Any]) -> dict[str, Any]:
    """Without the names that count the audio sent before."""
    fields = {name: value for name, value in command.items() if name not in ("type", "event_id")}
    if "item" in fields:
        fields["item"] = {name: value for name, value in fields["item"].items() if name != "id"}
    return fields


def timeless(calls: list[HttpCall]) -> list[HttpCall]:
    """With `<time>` for moments and `<seconds>` for a duration, which are checked to be such."""
    return [(method, address, _timeless(body)) for method, address, body in calls]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        seconds = value.get("durationSec")
        assert seconds is None or (type(seconds) is int and 0 <= seconds < 60)
        named = {name: _timeless(member) for name, member in value.items()}
        return named if seconds is None else {**named, "durationSec": "<seconds>"}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return "<time>" if isinstance(value, str) and MOMENT.fullmatch(value) else value


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content, "timestamp": "<time>"} for role, content in turns]
