"""A handler for tests: it does as the test says and writes down what it was asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic

from picows import ws_create_server

from channels.voice.bridge import Bridge, Realtime, Tap, connect_realtime
from channels.voice.call.ports import CallControls, Caller, Ending, EndReason, Refused, SessionSettings, Turn
from channels.voice.call.state import Counts
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.runner import CallPlan
from flow_engine.values import JsonValue


@dataclass
class Book:
    opens: SessionSettings | Refused | Exception = field(default_factory=lambda: SessionSettings("Answer."))
    greeting: str | None = "Greet."
    tool: Callable[[str], Awaitable[JsonValue]] | None = None
    asked: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    ending: Ending | None = None
    controls: CallControls | None = None
    caller: Caller | None = None

    async def open(self) -> SessionSettings | Refused:
        self.asked.append("open")
        if isinstance(self.opens, Exception):
            raise self.opens
        return self.opens

    async def started(self) -> str | None:
        self.asked.append("started")
        return self.greeting

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        self.asked.append(f"tool {name}")
        if name == "end_call" and self.controls is not None:
            self.controls.hang_up()
            return {"status": "ok"}
        return await self.tool(name) if self.tool else {"ok": True}

    async def said(self, turn: Turn) -> None:
        self.turns.append(turn.text)
        if turn.text == "boom":
            raise RuntimeError("a handler's bug")

    async def silent(self) -> None:
        self.asked.append("silent")

    async def not_transferred(self, target: str) -> None:
        self.asked.append(f"not transferred {target}")

    async def ended(self, ending: Ending) -> None:
        self.asked.append("ended" if ending.started else "closed")
        self.ending = ending

    def answer(self, caller: Caller, controls: CallControls) -> Book:
        self.caller, self.controls = caller, controls
        return self


@dataclass
class Watcher:
    began: int = 0
    renewed: int = 0
    ended: list[EndReason] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)

    def call_began(self) -> None:
        self.began += 1

    def call_ended(self, reason: EndReason, duration_s: float, counts: Counts) -> None:
        self.ended.append(reason)
        self.counts.append(counts)

    def model_renewed(self) -> None:
        self.renewed += 1


@dataclass
class Bridged:
    """A bridge on a loopback port."""

    url: str
    bridge: Bridge
    book: Book
    watcher: Watcher


@asynccontextmanager
async def bridged(book: Book, model_url: str) -> AsyncGenerator[Bridged]:
    """One agent that answers every call with this book. Afterwards no call is left."""
    watcher = Watcher()
    realtime = Realtime(model_url, {"Authorization": "Bearer test"})

    def plan(tap: Tap | None) -> CallPlan:
        return CallPlan(
            connect=lambda settings, side: connect_realtime(realtime, settings, side, tap),
            open_handler=book.answer,
            apology_settings=SessionSettings("Apologise."),
            clock=monotonic,
            wall=lambda: datetime.now(UTC),
            watching=watcher,
        )

    bridge = Bridge(plan, TwilioStreams())
    server = await ws_create_server(lambda _: bridge.line_socket(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Bridged(f"ws://127.0.0.1:{port}/media-stream", bridge, book, watcher)
    finally:
        server.close()
        await bridge.close()
        assert bridge.live_calls == 0
