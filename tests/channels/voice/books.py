"""A handler for tests: it does as the test says and writes down what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from picows import ws_create_server

from channels.voice.bridge import Bridge, Realtime, connect_realtime
from channels.voice.call.ports import (
    AnsweredCall,
    CallControls,
    Caller,
    CallerSilent,
    CallHandler,
    CallLifecycle,
    CallSeat,
    Ending,
    EndReason,
    HandlerNotice,
    KeysPressed,
    Refused,
    SessionSettings,
    TransferFailed,
    Turn,
)
from channels.voice.call.state import Counts
from channels.voice.carriers.twilio.media_streams import TwilioStreams
from channels.voice.metrics import CountedCall, Counting
from channels.voice.recording import Recorder
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

    async def notice(self, notice: HandlerNotice) -> None:
        match notice:
            case Turn():
                self.turns.append(notice.text)
                if notice.text == "boom":
                    raise RuntimeError("a handler's bug")
            case CallerSilent():
                self.asked.append("silent")
            case KeysPressed():
                self.asked.append(notice.text)
            case TransferFailed():
                self.asked.append(f"not transferred {notice.target}")

    async def ended(self, ending: Ending) -> None:
        self.asked.append("ended" if ending.started else "closed")
        self.ending = ending

    def answer(self, caller: Caller, seat: CallSeat) -> AnsweredCall:
        self.caller, self.controls = caller, seat
        return AnsweredCall(self)


@dataclass
class InOrder:
    """A call's handler and lifecycle, asked in the order in which the runner does."""

    handler: CallHandler
    lifecycle: CallLifecycle
    has_opened: bool = False
    has_begun: bool = False

    async def open(self) -> SessionSettings | Refused:
        refusal = await self.lifecycle.refusal()
        self.has_opened = refusal is None
        return refusal or await self.handler.open()

    async def started(self) -> str | None:
        self.has_begun = True
        await self.lifecycle.began()
        return await self.handler.started()

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        return await self.handler.run_tool(name, arguments)

    async def said(self, turn: Turn) -> None:
        await self.lifecycle.turn(turn)
        await self.handler.notice(turn)

    async def silent(self) -> None:
        await self.handler.notice(CallerSilent())

    async def not_transferred(self, target: str) -> None:
        await self.handler.notice(TransferFailed(target))

    async def ended(self, ending: Ending) -> None:
        if self.has_opened:
            await self.handler.ended(ending)
        if self.has_begun:
            await self.lifecycle.ended(ending)


class Watcher(Counting):
    """Metrics that a test can read."""

    def __init__(self) -> None:
        super().__init__()
        self.began = self.renewed = 0
        self.ended: list[EndReason] = []
        self.counts: list[Counts] = []

    def call_began(self, call: CountedCall) -> None:
        super().call_began(call)
        self.began += 1
        self.counts.append(call.counts)

    def call_ended(self, call: CountedCall, reason: EndReason, duration_s: float) -> None:
        super().call_ended(call, reason, duration_s)
        self.ended.append(reason)

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

    def plan(recorder: Recorder | None) -> CallPlan:
        return CallPlan(
            connect=lambda settings, side: connect_realtime(realtime, settings, side, recorder),
            open_call=book.answer,
            apology_settings=SessionSettings("Apologise."),
            clock=asyncio.get_running_loop().time,
            wall=lambda: datetime.now(UTC),
            metrics=watcher,
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
