"""Between the sockets and the calls: each line that connects gets a call, each call its model (V12)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from picows import WSError

from channels.voice.call import events, ports
from channels.voice.call.machine import Call
from channels.voice.carriers.call_control import is_transferred
from channels.voice.carriers.carrier import StreamCodec
from channels.voice.recording import Recorder
from channels.voice.runner import CallPlan, CallRunner
from channels.voice.wires import sockets
from channels.voice.wires.openai_realtime import RealtimeLink, realtime_url
from channels.voice.wires.realtime_events import decode
from channels.voice.wires.sockets import MAX_LINE_MESSAGE, MAX_MODEL_MESSAGE, TEXT, MessageSocket

log: Any = structlog.get_logger("flow_engine.voice")

BEGIN_WITHIN_S = 10.0
MOST_ENDED = 1000

Transfer = Callable[[str | None, str], Awaitable[None]]
"""As `Carrier.transfer`."""


OpenRecorder = Callable[[str], Recorder | None]
"""Called once a call, with the line's id; None where the call is not to be recorded."""


@dataclass(frozen=True, slots=True)
class Realtime:
    """Where the model is, a ws or wss URL. `headers` carry the key."""

    url: str
    headers: Mapping[str, str]


class ModelSocket(MessageSocket):
    """One connection to the model's side."""

    __slots__ = ("_recorder", "_side")

    def __init__(self, side: ports.RealtimeListener, recorder: Recorder | None) -> None:
        super().__init__(MAX_MODEL_MESSAGE)
        self._side = side
        self._recorder = recorder

    def send(self, message: bytes) -> None:
        if self._recorder is not None:
            self._recorder("model", sent=True, message=message)
        super().send(message)

    def send_audio(self, message: bytes) -> None:
        """Leaves it out while the model's side does not keep up: late audio is worthless."""
        if self.is_congested:
            self._side.audio_dropped()
        elif self._recorder is None and self._transport is not None:
            self._transport.send(TEXT, message)
        else:
            self.send(message)

    def message(self, message: bytes) -> None:
        if self._recorder is not None:
            self._recorder("model", sent=False, message=message)
        event = decode(message)
        if event is None:
            return
        if type(event) is events.Unreadable:
            self.unreadable(event.what)
        else:
            self._side.event(event)

    def gone(self) -> None:
        self._side.lost()


async def open_socket(socket: ModelSocket, url: str, headers: Mapping[str, str]) -> None:
    """Raises ModelUnreachable when it is not open within some seconds."""
    try:
        await socket.connect(url, headers)
    except TimeoutError:
        raise ports.ModelUnreachable(f"no handshake within {sockets.HANDSHAKE_WITHIN_S:g} s") from None
    except (OSError, WSError) as error:
        raise ports.ModelUnreachable(f"{type(error).__name__}: {error}") from error


async def connect_realtime(
    realtime: Realtime,
    settings: ports.SessionSettings,
    side: ports.RealtimeListener,
    recorder: Recorder | None,
) -> ports.ModelLink:
    """A connection to a model, not configured yet. Raises ModelUnreachable."""
    socket = ModelSocket(side, recorder)
    await open_socket(socket, realtime_url(realtime.url, "model", settings.model), realtime.headers)
    return RealtimeLink(socket.send, socket.close, send_audio=socket.send_audio)


class LineSocket(MessageSocket):
    """One media stream of a carrier, text frames of JSON: the call begins with its start event. A stream
    without one, and one of unreadable frames, is closed as an error."""

    __slots__ = ("_begin_by", "_bridge", "_call", "_decode", "_is_warned", "_recorder")

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(MAX_LINE_MESSAGE)
        self._bridge = bridge
        self._decode = bridge.codec.decoder()
        self._call: Call | None = None
        self._is_warned = False
        self._recorder: Recorder | None = None
        loop = asyncio.get_running_loop()
        self._begin_by = loop.call_later(BEGIN_WITHIN_S, self._not_begun)

    def message(self, message: bytes) -> None:
        if self._recorder is not None:
            self._recorder("line", sent=False, message=message)
        for event in self._decode(message):
            call = self._call
            if type(event) is events.CallerAudio:
                if call is not None:
                    call.caller_audio(event.payload)
            elif isinstance(event, events.Unreadable):
                if call is None and not self._is_warned:
                    self._is_warned = True
                    log.warning("stream_not_started", reason=event.what)
                self.unreadable(event.what)
            elif call is not None:
                call.line_event(event)
            elif isinstance(event, events.StreamStarted):
                self._begin_by.cancel()
                self._recorder = self._bridge.open_recorder(event.stream_id)
                if self._recorder is not None:
                    self._recorder("line", sent=False, message=message)
                send = self.send if self._recorder is None else self._send_recorded
                line = self._bridge.codec.line(event.stream_id, send, self.close)
                self._call = self._bridge.begin(event, line, self._recorder).call

    def gone(self) -> None:
        self._begin_by.cancel()
        if self._call is not None:
            self._call.line_event(events.StreamStopped())

    def _send_recorded(self, message: bytes) -> None:
        if self._recorder is not None:
            self._recorder("line", sent=True, message=message)
        self.send(message)

    def _not_begun(self) -> None:
        log.warning("socket_given_up", reason="no call was started on it")
        self.drop()


class Bridge:
    """The calls of one agent, whose streams are in `codec`. `transfer` gives a call to somebody else, where
    that can be done."""

    def __init__(
        self,
        plan: Callable[[Recorder | None], CallPlan],
        codec: StreamCodec,
        *,
        transfer: Transfer | None = None,
        open_recorder: OpenRecorder = lambda stream_id: None,
    ) -> None:
        self._plan = plan
        self._transfer = transfer
        self.codec = codec
        self.open_recorder = open_recorder
        self._calls: dict[asyncio.Task[None], CallRunner] = {}
        self._by_carrier: dict[str, CallRunner] = {}
        self._ended: OrderedDict[str, ports.CallEnd] = OrderedDict()

    @property
    def live_calls(self) -> int:
        return len(self._calls)

    def line_socket(self) -> LineSocket:
        return LineSocket(self)

    def begin(self, started: events.StreamStarted, line: ports.Line, recorder: Recorder | None) -> CallRunner:
        transfer, carrier_call_id = self._transfer, started.carrier_call_id
        runner = CallRunner(
            self._plan(recorder),
            line,
            started,
            transfer=transfer
            and (lambda target: is_transferred(transfer(carrier_call_id, target), runner.log)),
        )
        if carrier_call_id is not None:
            self._by_carrier[carrier_call_id] = runner
        self._keep(runner, recorder, runner.run())
        return runner

    def end_of(self, carrier_call_id: str) -> ports.CallEnd | None:
        """Why a call has ended, by the carrier's id of it; None while it goes on, and for an unknown one: the
        last thousand are kept."""
        runner = self._by_carrier.get(carrier_call_id)
        return self._ended.get(carrier_call_id) if runner is None else runner.end

    async def kept(
        self, runner: CallRunner, recorder: Recorder | None, after: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Run a call whose line is none of this bridge's sockets. Returns when it is over; `after` is the end
        of its line, and belongs to it."""

        async def run() -> None:
            await runner.run()
            await after()

        await asyncio.wait({self._keep(runner, recorder, run())})

    def _keep(
        self, runner: CallRunner, recorder: Recorder | None, run: Coroutine[None, None, None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(run)
        self._calls[task] = runner

        def over(done: asyncio.Task[None]) -> None:
            del self._calls[done]
            if recorder is not None:
                recorder.close()
            carrier_call_id = runner.caller.carrier_call_id
            if carrier_call_id is None:
                return
            if self._by_carrier.get(carrier_call_id) is runner:
                del self._by_carrier[carrier_call_id]
            if runner.end is not None:
                self._ended[carrier_call_id] = runner.end
            if len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)

        task.add_done_callback(over)
        return task

    async def drained(self) -> None:
        """Returns when no call is left."""
        while self._calls:
            await asyncio.wait(tuple(self._calls))

    async def close(self) -> None:
        """End the calls that are left, each with its lifecycle."""
        for runner in self._calls.values():
            runner.call.end("shut_down")
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_WITHIN_S * 4):
                await self.drained()
        for task in tuple(self._calls):
            task.cancel()
        await self.drained()
