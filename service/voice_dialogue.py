"""A call on the doubles in words, line by line as it goes: who said what when, and what was done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson
import typer

from channels.voice.testing.fake_business import FakeBusiness
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.realtime_session import Command, RealtimeSession, Sent, item_number


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    who: str
    what: str


@dataclass(slots=True)
class _Seen:
    """How much of each log has been told."""

    events: int = 0
    commands: int = 0
    calls: int = 0
    clears: int = 0


class Dialogue:
    """Of one call, whose model is the server's only one."""

    def __init__(self, model: FakeRealtime, business: FakeBusiness) -> None:
        self._model = model
        self._business = business
        self._call: FakeTwilioCall | None = None
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._seen = _Seen()
        self._texts: dict[int, str] = {}
        self._told_items: set[int] = set()
        self._moments: list[_Moment] = []

    def begins(self, call: FakeTwilioCall, what: str) -> None:
        self._call = call
        self._began = self._loop.time()
        self._note("line", f"a call {what}")

    def caller_says(self, text: str) -> None:
        speaks = self.heard_ms and not self.is_calm(0.0)
        self._note("caller", f"{'(into these words) ' if speaks else ''}{text}")

    def ends(self) -> None:
        self._note("line", "closed")

    @property
    def heard_ms(self) -> float:
        """How much the caller has heard in all."""
        if self._call is None:
            return 0.0
        self._call.playout.advance(self._loop.time())
        return sum(heard.ends_ms - heard.begins_ms for heard in self._call.playout.heard)

    def is_calm(self, for_s: float) -> bool:
        """The agent has said everything and has been quiet for so long."""
        call, session = self._call, self._session
        if call is None or session is None or session.is_responding:
            return False
        now = self._loop.time()
        last = call.playout.heard[-1].until if call.playout.heard else self._began
        return call.playout.waiting_ms(now) == 0 and now - last >= for_s

    def tell(self) -> None:
        """Print what has happened since the last time."""
        happened = sorted([*self._moments, *self._news()], key=lambda moment: moment.at)
        self._moments.clear()
        for moment in happened:
            typer.echo(f"{max(0.0, moment.at - self._began):5.1f} s  {moment.who:<8}  {moment.what}")

    # Inside ----------------------------------------------------------------------------------------

    @property
    def _session(self) -> RealtimeSession | None:
        return self._model.sessions[0] if self._model.sessions else None

    def _note(self, who: str, what: str) -> None:
        self._moments.append(_Moment(self._loop.time(), who, what))

    def _news(self) -> Iterator[_Moment]:
        seen, session = self._seen, self._session
        if session is not None:
            for event in session.events[seen.events :]:
                yield from self._of_model(event)
            for command in session.commands[seen.commands :]:
                yield from _of_agent(command)
            seen.events, seen.commands = len(session.events), len(session.commands)
        for call in self._business.calls[seen.calls :]:
            body = "" if call.body is None else f" {orjson.dumps(call.body).decode()}"
            yield _Moment(call.at, "business", f"{call.method} {call.path}{body}")
        seen.calls = len(self._business.calls)
        if self._call is not None:
            yield from self._of_line(self._call)

    def _of_model(self, event: Sent) -> Iterator[_Moment]:
        if event.kind == "response.output_audio_transcript.delta":
            number = item_number(str(event.fields["item_id"]))
            self._texts[number] = self._texts.get(number, "") + str(event.fields["delta"])
        elif event.kind == "response.output_item.done":
            item = cast("Mapping[str, Any]", event.fields["item"])
            if item["type"] == "function_call":
                yield _Moment(event.at, "model", f"calls {item['name']} {item['arguments']}")

    def _of_line(self, call: FakeTwilioCall) -> Iterator[_Moment]:
        call.playout.advance(self._loop.time())
        for heard in call.playout.heard:
            if heard.item is not None and heard.item not in self._told_items:
                self._told_items.add(heard.item)
                yield _Moment(heard.at, "agent", self._texts.get(heard.item, "(audio)"))
        for clear in call.playout.clears[self._seen.clears :]:
            if clear.dropped_ms:
                told = f"stops playing; {clear.dropped_ms / 1000:.1f} s of the agent are never heard"
                yield _Moment(clear.at, "line", told)
        self._seen.clears = len(call.playout.clears)


def _of_agent(command: Command) -> Iterator[_Moment]:
    if command.kind == "conversation.item.truncate":
        heard_s = cast("int", command.fields["audio_end_ms"]) / 1000
        yield _Moment(command.at, "model", f"is told that {heard_s:.1f} s of its last words were heard")
    elif command.kind == "conversation.item.create":
        item = cast("Mapping[str, Any]", command.fields["item"])
        if item["type"] == "function_call_output":
            yield _Moment(command.at, "model", f"is told {item['output']}")
