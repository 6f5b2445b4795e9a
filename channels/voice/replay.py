"""A recording against a config, without a network and in virtual time (V15).

The line's events come from the recording, at their times; so do the model's, if it has any. What a
recording leaves out is answered as a server would at the least: sessions are confirmed as they were asked
for, and a response that nobody recorded is an empty one. The items of this side are always added anew,
whatever was recorded of them: with another config they are others. HTTP calls get the recorded answers in
their order, by method and path, the last one again and again, or `{}` where there is none.

Instead of what was recorded, answers can be named by method and path, and the model can be one that plays a
script. A flow's engine is asked by HTTP calls like any other; its MCP servers are away.

Time is that of an event loop which jumps: when everything waits for a timer, the clock is set to it, so an
hour of a call takes a moment, and takes it each time alike. Real sockets would never get their time, so there
must be none.
"""

import asyncio
import selectors
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Protocol, TypeVar, TypeVarTuple, cast
from urllib.parse import urlsplit

import httpx2
import orjson

from channels.voice.call.events import LineEvent, StreamStarted, StreamStopped, Unreadable
from channels.voice.call.ports import ModelLink, OpenCall, RealtimeListener, SessionSettings
from channels.voice.carriers.carrier import CALL_ID_PARAMETER, Decoder, StreamCodec
from channels.voice.metrics import Counting
from channels.voice.recording import Entry, RecordingRefused, Side, as_json
from channels.voice.runner import CallPlan, CallRunner, given_call_id
from channels.voice.wires.openai_realtime import RealtimeLink
from channels.voice.wires.realtime_events import decode
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply, OutboundSender
from flow_engine.values import JsonValue

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class NothingLeftToDo(RuntimeError):
    """Everything waits for something that cannot happen any more: raised instead of waiting for ever."""


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeftToDo("every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time` starts at 0 seconds and jumps. What is given to a thread is done at once."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        done.set_result(func(*args))
        return done


def run_in_virtual_time(main: Coroutine[object, object, T]) -> T:
    """As `asyncio.run`. Raises NothingLeftToDo for a deadlock."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
REPLY_AFTER_S = 0.001
"""In virtual time, so that an answer never comes before what was sent with its question."""

LINGER_S = 20.0
"""After the last entry; then the caller is taken to have hung up."""

OpenFor = Callable[[OutboundSender, Callable[[], datetime]], OpenCall]
"""What answers the calls, given its way out and its wall clock."""


class PlayedModel(Protocol):
    """A model that plays a script, such as `RealtimeSession` of the doubles."""

    def begin(self) -> None: ...

    def receive(self, frame: bytes) -> None: ...

    def stop(self) -> None: ...


OpenModel = Callable[[Callable[[bytes], None]], PlayedModel]
"""Opens a session for each connection; it sends its events, frames of JSON, by what it is called with."""

Answers = Mapping[str, JsonValue]
"""By method and path, as in `POST /api/orders`: the body of an answer with status 200, or an object of
`status` and, if there is one, `body`."""


@dataclass(slots=True)
class Replayed:
    """What the call did, in order: messages to both sides and HTTP calls."""

    done: list[Entry] = field(default_factory=list[Entry])

    def to(self, side: Side) -> list[JsonValue]:
        return [entry.message for entry in self.done if entry.side == side]


def replay(
    entries: Iterable[Entry],
    open_for: OpenFor,
    apology: SessionSettings,
    codec: StreamCodec,
    *,
    max_duration_s: float = 3600.0,
    answers: Answers | None = None,
    model: OpenModel | None = None,
) -> Replayed:
    """Run one call, whose line is in `codec`. After `max_duration_s` the agent says goodbye. `answers` come
    before recorded ones; with a `model`, recorded events of one are left out. Raises RecordingRefused when no
    start event of a line is among the entries."""
    decode = codec.decoder()
    recorded = tuple((entry, _line_events(entry, decode)) for entry in entries)
    if not any(isinstance(event, StreamStarted) for _, events in recorded for event in events):
        raise RecordingRefused("there is no start event of the line in it")
    played = _Replay(recorded, open_for, apology, codec, max_duration_s, answers or {}, model)
    return run_in_virtual_time(played.run())


def _line_events(entry: Entry, decode: Decoder) -> tuple[LineEvent, ...]:
    if entry.side != "line" or entry.sent:
        return ()
    events = decode(orjson.dumps(entry.message))
    return tuple(event for event in events if not isinstance(event, Unreadable))


class _Replay:
    def __init__(
        self,
        recorded: tuple[tuple[Entry, tuple[LineEvent, ...]], ...],
        open_for: OpenFor,
        apology: SessionSettings,
        codec: StreamCodec,
        max_duration_s: float,
        answers: Answers,
        model: OpenModel | None,
    ) -> None:
        self._recorded = recorded
        self._codec = codec
        self._max_duration_s = max_duration_s
        entries = [entry for entry, _ in recorded]
        self._apology = apology
        self._open_for = open_for
        self._result = Replayed()
        self._runner: CallRunner | None = None
        self._model = _Model(entries, self._note)
        self._outbound = _Outbound(entries, answers, self._note)
        self._open_model = model

    async def run(self) -> Replayed:
        running: asyncio.Task[None] | None = None
        for entry, events in self._recorded:
            await asyncio.sleep(max(0.0, entry.at_ms / 1000 - _now()))
            if entry.sent or entry.side == "http":
                continue
            if entry.side == "model":
                if self._open_model is None:
                    self._model.recorded(entry.message)
                continue
            for event in events:
                if isinstance(event, StreamStarted) and running is None:
                    self._runner = self._begin(event)
                    running = asyncio.create_task(self._runner.run())
                elif self._runner is not None:
                    self._runner.call.line_event(event)
        if running is not None and self._runner is not None:
            await asyncio.wait({running}, timeout=LINGER_S)
            self._runner.call.line_event(StreamStopped())
            await running
        return self._result

    def _begin(self, started: StreamStarted) -> CallRunner:
        def wall() -> datetime:
            return BEGAN + timedelta(seconds=_now())

        line = self._codec.line(
            started.stream_id,
            lambda message: self._note("line", as_json(message)),
            lambda: self._note("line", "(closed)"),
        )
        plan = CallPlan(
            connect=self._connect,
            open_call=self._open_for(self._outbound, wall),
            apology_settings=self._apology,
            clock=_now,
            wall=wall,
            metrics=Counting(),
            max_duration_s=self._max_duration_s,
        )
        # A random id would differ in every replay of the same recording.
        call_id = given_call_id(started) or md5(started.stream_id.encode(), usedforsecurity=False).hexdigest()
        named = replace(started, parameters={**started.parameters, CALL_ID_PARAMETER: call_id})
        return CallRunner(plan, line, named, transfer=self._transfer)

    async def _connect(self, settings: SessionSettings, side: RealtimeListener) -> ModelLink:
        if self._open_model is not None:
            return played_link(self._open_model, side, lambda message: self._note("model", message))
        self._model.side = side
        return RealtimeLink(self._model.receive, lambda: self._note("model", "(closed)"))

    async def _transfer(self, target: str) -> bool:
        self._note("line", {"transfer": target})
        return True

    def _note(self, side: Side, message: JsonValue) -> None:
        self._result.done.append(Entry(round(_now() * 1000, 3), side, True, message))


def played_link(
    open_model: OpenModel, side: RealtimeListener, note: Callable[[JsonValue], None] = lambda message: None
) -> ModelLink:
    """A connection to a model within the process. `note` is given what it is sent, and `(closed)`."""

    def hear(frame: bytes) -> None:
        event = decode(frame)
        if event is not None and not isinstance(event, Unreadable):
            side.event(event)

    played = open_model(_in_order(hear))
    played.begin()

    def send(message: bytes) -> None:
        note(as_json(message))
        played.receive(message)

    def close() -> None:
        note("(closed)")
        played.stop()

    return RealtimeLink(send, close)


def _in_order(give: Callable[[T], None]) -> Callable[[T], None]:
    """Gives on what it is given, `REPLY_AFTER_S` later. Timers that are due at the same moment have no
    order."""
    waiting: deque[T] = deque()

    def later(thing: T) -> None:
        waiting.append(thing)
        asyncio.get_running_loop().call_later(REPLY_AFTER_S, lambda: give(waiting.popleft()))

    return later


class _Model:
    """The recorded model, and what it takes to stand in for what was not recorded."""

    def __init__(self, entries: Iterable[Entry], note: Callable[[Side, JsonValue], None]) -> None:
        self._note = note
        self.side: RealtimeListener | None = None
        messages = [entry for entry in entries if entry.side == "model"]
        self._recorded = {_of(entry.message, "type") for entry in messages if not entry.sent}
        self._made_then = {_of(entry.message, "item", "id") for entry in messages if entry.sent} - {""}
        self._responses = 0
        self._say_later = _in_order(self.say)

    def recorded(self, message: JsonValue) -> None:
        """The utterance of the model then."""
        if _of(message, "item", "id") not in self._made_then:
            self.say(message)

    def say(self, message: JsonValue) -> None:
        event = decode(orjson.dumps(message))
        if self.side is not None and event is not None and not isinstance(event, Unreadable):
            self.side.event(event)

    def receive(self, message: bytes) -> None:
        command = cast("Mapping[str, JsonValue]", as_json(message))
        self._note("model", dict(command))
        for answer in self._answers(command):
            if "item" in answer or answer["type"] not in self._recorded:
                self._say_later(answer)

    def _answers(self, command: Mapping[str, JsonValue]) -> list[dict[str, JsonValue]]:
        match command["type"]:
            case "session.update":
                return [{"type": "session.updated", "session": command["session"]}]
            case "conversation.item.create":
                return [{"type": "conversation.item.added", "item": command["item"]}]
            case "response.create":
                self._responses += 1
                response = {"id": f"empty_{self._responses}", "status": "completed"}
                return [
                    {"type": "response.created", "response": cast(JsonValue, response)},
                    {"type": "response.done", "response": cast(JsonValue, response)},
                ]
            case _:
                return []


class _Outbound:
    """Implements OutboundSender with answers that are named or recorded."""

    def __init__(
        self, entries: Iterable[Entry], named: Answers, note: Callable[[Side, JsonValue], None]
    ) -> None:
        self._note = note
        self._named = named
        self._answers: defaultdict[tuple[str, str], deque[Mapping[str, JsonValue]]] = defaultdict(deque)
        for entry in entries:
            if entry.side == "http" and isinstance(entry.message, dict):
                message = entry.message
                key = str(message.get("method", "GET")), urlsplit(str(message.get("url", ""))).path
                self._answers[key].append(message)

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> OutboundReply:
        body = as_json(content) if content else None
        self._note("http", {"method": method, "url": url, "body": body})
        await asyncio.sleep(REPLY_AFTER_S)
        path = urlsplit(url).path
        if (named := f"{method} {path}") in self._named:
            answer = self._named[named]
            status = answer.get("status") if isinstance(answer, dict) else None
            if isinstance(answer, dict) and type(status) is int and answer.keys() <= {"status", "body"}:
                return OutboundReply(status, orjson.dumps(answer["body"]) if "body" in answer else b"")
            return OutboundReply(200, orjson.dumps(answer))
        answers = self._answers[method, path]
        if not answers:
            return OutboundReply(200, b"{}")
        message = answers.popleft() if len(answers) > 1 else answers[0]
        match message.get("failed"):
            case None:
                status = message.get("status", 200)
                body = orjson.dumps(message.get("answer"))
                return OutboundReply(status if isinstance(status, int) else 200, body)
            case "refused":
                raise OutboundRefused("the address was refused when this was recorded")
            case "late":
                raise OutboundFailed("no reply in time when this was recorded") from TimeoutError()
            case _:
                raise OutboundFailed("no usable reply when this was recorded")


class OutboundTransport(httpx2.AsyncBaseTransport):
    """A client's requests by another way out, such as that of a replay. Raises httpx2.ConnectError where that
    fails."""

    def __init__(self, outbound: OutboundSender) -> None:
        self._outbound = outbound

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises httpx2.ConnectError for what gets no answer."""
        try:
            reply = await self._outbound.request(
                request.method, str(request.url), timeout_s=5.0, content=request.content
            )
        except (OutboundFailed, OutboundRefused) as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        return httpx2.Response(reply.status, content=reply.body)


def _of(message: JsonValue, *place: str) -> str:
    """The text at a place of a message; empty where there is none."""
    for name in place:
        message = message.get(name) if isinstance(message, dict) else None
    return message if isinstance(message, str) else ""


def _now() -> float:
    return asyncio.get_running_loop().time()
