"""The frames of the chat's WebSocket (C13): what a client may send, and what an answer is sent in.

A client's frame is read into one of the models here, or refused with every pointer. The server's frames are
written by `AnswerFrames`, which numbers them through the session's log, and by `bare_frame` for those about
the connection alone, which have no number.
"""

import asyncio
from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Final, Literal, TypeAlias
from weakref import WeakSet

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flow_engine.documents.findings import findings_of
from flow_engine.errors import Finding
from flow_engine.ports.chat import ChatFrames, LoggedFrame, SessionRef
from flow_engine.values import JsonValue, ValueRejected, check_json

MAX_FRAME_BYTES: Final = 64 * 1024
MOST_CHARS: Final = 8_000
"""Of a message."""

TEXT_FRAMES_A_SECOND: Final = 2_000
"""Of all answers of a process. With more of them the core is full, and the first piece of an answer waits."""

AT_ONCE_S: Final = 0.005

FrameType = Literal["dialogue", "action", "state", "error"]
State = Literal["clarifying", "acting", "done", "refused"]
FinalState = Literal["clarifying", "done", "refused"]
ToolStatus = Literal["started", "waiting", "finished", "failed", "rejected"]

_Id: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]


class _Frame(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Hello(_Frame):
    """The first frame, JSON. `session` null begins a new one; `after` is the last number that was received, 0
    for everything, null for nothing. An unknown session is refused."""

    type: Literal["hello"]
    user: Annotated[str, Field(min_length=1, max_length=256)]
    session: Annotated[str, Field(max_length=128)] | None = None
    after: Annotated[int, Field(ge=0)] | None = None
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$")] | None = None


class UserMessage(_Frame):
    """`id` is the client's own; the same one is never answered twice. A `text` of too many characters is
    refused."""

    type: Literal["message"]
    id: _Id
    content: Annotated[str, Field(min_length=1, max_length=MOST_CHARS)]


class Cancel(_Frame):
    """Ends the answer to a message within a second, also one that still waits."""

    type: Literal["cancel"]
    id: _Id


class Confirm(_Frame):
    """Lets a call of a tool run, or not; `call` is that of the action with `waiting`."""

    type: Literal["confirm"]
    call: _Id
    decision: Literal["yes", "no"]


ClientFrame: TypeAlias = Hello | UserMessage | Cancel | Confirm
_KINDS: Final[Mapping[str, type[_Frame]]] = {
    "hello": Hello,
    "message": UserMessage,
    "cancel": Cancel,
    "confirm": Confirm,
}


class BadFrame(Exception):
    """A frame that is not the JSON of any kind; `finding` is the first error in it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def read_frame(text: str) -> ClientFrame:
    """One text frame, a JSON object. Raises BadFrame for any other, unknown fields included."""
    try:
        raw: JsonValue = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadFrame(Finding("", "json_invalid", "a frame is a JSON object")) from None
    if not isinstance(raw, dict):
        raise BadFrame(Finding("", "json_invalid", "a frame is a JSON object"))
    kind = raw.get("type")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise BadFrame(Finding("/type", "type_unknown", f"accepted is one of {', '.join(_KINDS)}"))
    try:
        check_json(raw)
        frame = model.model_validate(raw)
    except ValueRejected as rejected:
        raise BadFrame(Finding("", rejected.code, rejected.message)) from None
    except ValidationError as error:
        raise BadFrame(next(findings_of(error, model, raw, most=1))) from None
    if isinstance(frame, UserMessage) and not frame.content.strip():
        raise BadFrame(Finding("/content", "content_empty", "accepted is a text"))
    return frame


def bare_frame(
    frame_type: FrameType, content: JsonValue, *, session: str | None = None, id: str | None = None
) -> bytes:
    """The JSON, in UTF-8, of a frame about the connection alone: without a number, and not kept."""
    frame: dict[str, object] = {
        "seq": None,
        "type": frame_type,
        "content": content,
        "session": session,
        "id": id,
        "final": False,
    }
    return orjson.dumps(frame)


def numbered(logged: LoggedFrame) -> bytes:
    """The frame's JSON, in UTF-8, with its number, from 1."""
    return b'{"seq":%d,%s' % (logged.seq, logged.frame[1:])


class Pace:
    """How often the answers of a process write text: together `TEXT_FRAMES_A_SECOND` times, each its share of
    that, and at once while the share is `AT_ONCE_S` or less. What a piece costs so falls with load, and the
    pause grows with it: none for ten answers, 50 ms for a hundred."""

    def __init__(self) -> None:
        self.streaming: WeakSet[AnswerFrames] = WeakSet()

    def after(self, written: float) -> float:
        """When an answer may write its next text, having written at `written`; both are seconds of the loop's
        clock. Moments that are multiples of `AT_ONCE_S` let many answers write in one turn of the loop."""
        share = len(self.streaming) / TEXT_FRAMES_A_SECOND
        return written if share <= AT_ONCE_S else ceil((written + share) / AT_ONCE_S) * AT_ONCE_S


class AnswerFrames:
    """Of one answer: all carry its message's id, and exactly one is final. Everything raises LeaseLost and
    RetryLater.

    The first piece of text goes to the log at once. Those that come while the log takes one, or before `pace`
    lets this answer write again, go into one frame, in order; every other frame takes them along before it.
    Nobody waits for the log but the frames that are no text.
    """

    def __init__(
        self,
        log: ChatFrames,
        ref: SessionRef,
        message_id: str,
        holder: str | None,
        agent: str | None = None,
        *,
        pace: Pace | None = None,
    ) -> None:
        self._log = log
        self._ref = ref
        self._id = message_id
        self._holder = holder
        self.agent = agent
        self.confidence: float | None = None
        self.is_cut = False
        self.text = ""
        self.closing = ""
        self.final_state: State | None = None
        self._pace = pace or Pace()
        self._loop = asyncio.get_running_loop()
        self._unsent = ""
        self._due = 0.0
        self._pause: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_finished(self) -> bool:
        return self.final_state is not None

    async def dialogue(self, text: str, *, begins: bool = False) -> None:
        """A piece of the answer, in order; `begins` sets it off from the text before it."""
        if self.is_finished:
            return
        piece = f"\n\n{text}" if begins and self.text else text
        self.text += piece
        self._unsent += piece
        if self._pause is not None or (self._sending is not None and not self._sending.done()):
            return
        if self._sending is not None:
            self._sending.result()
        self._pace.streaming.add(self)
        if self._due > self._loop.time():
            self._pause = self._loop.call_at(self._due, self._begin)
        else:
            self._begin()
            await asyncio.sleep(0)  # it takes this piece; those that come before the log has it are the next

    async def whole(self, text: str) -> None:
        """All of the answer in its one frame of JSON, with the state `done`."""
        self.text = text
        await self._send("dialogue", "done", text, final=True)

    def close_with(self, text: str) -> None:
        """The last piece of the answer, set off from the text before it: it goes into the frame that ends
        the answer, so that both are sent or neither."""
        self.closing = f"\n\n{text}" if self.text else text
        self.text += self.closing

    async def action(self, tool: str, call: str, status: ToolStatus, **details: JsonValue) -> None:
        await self._send("action", "acting", {"tool": tool, "call": call, "status": status, **details})

    async def note(self, content: Mapping[str, JsonValue]) -> None:
        """A state frame within the answer; `content` is a JSON object."""
        await self._send("state", "acting", dict(content))

    async def error(self, code: str, message: str) -> None:
        await self._send("error", "refused", {"code": code, "message": message})

    async def finish(self, state: FinalState, content: Mapping[str, JsonValue] | None = None) -> None:
        """The last frame, unless there was one: exactly one of an answer is final. It tells where the text
        stops at the token limit. Raises LeaseLost, RetryLater."""
        if self.closing:
            await self._send("dialogue", state, self.closing, final=True)
        cut = {"cut": True} if self.is_cut else {}
        await self._send("state", state, {**(content or {"event": "answered"}), **cut}, final=True)

    async def aclose(self) -> None:
        """Pieces that are not in the log yet stay out of it."""
        self._pace.streaming.discard(self)
        if self._pause is not None:
            self._pause.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _begin(self) -> None:
        self._pause = None
        self._sending = asyncio.create_task(self._send_pieces())

    async def _send_pieces(self) -> None:
        while self._unsent:
            if self._due > self._loop.time():
                self._pause = self._loop.call_at(self._due, self._begin)
                return
            piece, self._unsent = self._unsent, ""
            self._due = self._pace.after(self._loop.time())
            await self._append("dialogue", "acting", piece)

    async def _send(
        self, frame_type: FrameType, state: State, content: JsonValue, *, final: bool = False
    ) -> None:
        self._pace.streaming.discard(self)
        self._due = 0.0
        if self._pause is not None:
            self._pause.cancel()
            self._begin()
        if self._sending is not None:
            await asyncio.shield(self._sending)
            self._sending = None
        self._due = 0.0
        if not self.is_finished:
            self.final_state = state if final else None
            await self._append(frame_type, state, content, final=final)

    async def _append(
        self, frame_type: FrameType, state: State, content: JsonValue, *, final: bool = False
    ) -> None:
        frame: dict[str, Any] = {"type": frame_type, "state": state, "content": content}
        if self.confidence is not None:
            frame["confidence"] = self.confidence
        frame |= {"session": self._ref.session_id, "id": self._id}
        if self.agent is not None:
            frame["agent"] = self.agent
        frame["final"] = final
        await self._log.append(self._ref, orjson.dumps(frame), self._holder)
