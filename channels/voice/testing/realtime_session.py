"""One session of a fake Realtime server: commands in, events out, as the wire of the real one has them.

It is strict where the real one is: a command with a field that is not known, a truncation beyond the audio
that there is, a second response beside an active one are answered with an `error` event that carries the
command's `event_id`, and kept in `errors`.
"""

import asyncio
import base64
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import orjson

from channels.voice.call.ports import AudioFormat
from channels.voice.testing import fake_response, playout, signals
from channels.voice.testing.conversation import Conversation, Item, item_of
from channels.voice.testing.realtime_checks import Refusal, SessionState, refusal_of
from channels.voice.testing.script import Reacts, Script, ScriptCursor
from channels.voice.wires.frames import Malformed, Object, audio_of, optional_part, read_object
from flow_engine.values import JsonValue

_APPEND: Final = "input_audio_buffer.append"


@dataclass(frozen=True, slots=True)
class Command:
    """What the client sent, but for audio. `at` is in seconds of the running loop."""

    at: float
    kind: str
    fields: Object


@dataclass(frozen=True, slots=True)
class Sent:
    """An event that the server sent, JSON; audio is left out of its fields."""

    at: float
    kind: str
    fields: Mapping[str, JsonValue]


class RealtimeSession:
    """`send` takes one frame of JSON. `numbers` count the items of all sessions of a server, so that
    audio tells them apart. With `plays_itself` the audio goes another way (SIP), and only its playing is
    reported."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        *,
        model: str,
        script: Script | Reacts,
        pace: fake_response.Pace,
        numbers: Callable[[], int],
        plays_itself: bool = False,
    ) -> None:
        self.commands: list[Command] = []
        self.appends: list[float] = []
        """When audio came."""
        self.events: list[Sent] = []
        self.errors: list[Refusal] = []
        self.conversation = Conversation()
        self.vad = signals.FakeVad()
        self.plays_itself = plays_itself
        self.settings = SessionState(model)
        self._send = send
        self._cursor = ScriptCursor(script) if isinstance(script, Script) else script
        self._pace = pace
        self._numbers = numbers
        self._loop = asyncio.get_running_loop()
        self._output_buffer = playout.OutputBuffer(
            self._loop, lambda kind, response: self.emit(kind, response_id=response)
        )
        self._event_numbers = itertools.count(1)
        self._active: fake_response.FakeResponse | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._told: list[str] = []
        self._next_item: str | None = None
        self._has_spoken = False

    def begin(self) -> None:
        self.emit("session.created", session=self.settings.wire)

    def stop(self) -> None:
        """Nothing is sent any more."""
        for timer in self._timers:
            timer.cancel()
        self._output_buffer.stop()
        for task in self._tasks:
            task.cancel()

    async def stopped(self) -> None:
        """Wait for what `stop` has stopped. Raises what failed in the double itself."""
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def received(self, kind: str) -> list[Command]:
        """The commands of one type, oldest first."""
        return [command for command in self.commands if command.kind == kind]

    def sent(self, kind: str) -> list[Sent]:
        """The events of one type, oldest first."""
        return [event for event in self.events if event.kind == kind]

    # Commands ----------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        try:
            command = read_object(frame)
        except Malformed as wrong:
            self.refuse(Refusal("invalid_json", f"The server could not read {wrong}."), None)
            return
        kind = command.get("type")
        if kind == _APPEND:
            refusal = self._append(command)
        else:
            self.commands.append(Command(self._loop.time(), str(kind), command))
            refusal = refusal_of(command) or self._obey(str(kind), command)
        if refusal is not None:
            self.refuse(refusal, command.get("event_id"))

    def _obey(self, kind: str, command: Object) -> Refusal | None:
        refusal: Refusal | None = None
        done: tuple[str, dict[str, JsonValue]] | None = None
        match kind:
            case "input_audio_buffer.clear":
                self.vad.forget()
                done = "input_audio_buffer.cleared", {}
            case "input_audio_buffer.commit":
                if not self.vad.speech:
                    message = "Error committing input audio buffer: buffer too small."
                    return Refusal("input_audio_buffer_commit_empty", message)
                self._turn(self.vad.take())
            case "output_audio_buffer.clear":
                if not self.plays_itself:
                    message = "Only a session over WebRTC or SIP has an output buffer."
                    return Refusal("invalid_value", message, "type")
                self._output_buffer.clear()
            case "session.update":
                refusal = self.settings.update(cast(Object, command["session"]), has_spoken=self._has_spoken)
                done = "session.updated", {"session": self.settings.wire}
            case "conversation.item.create":
                refusal = self._create_item(command)
            case "conversation.item.delete":
                refusal = self.conversation.delete(command["item_id"])
                done = "conversation.item.deleted", {"item_id": cast(str, command["item_id"])}
            case "conversation.item.truncate":
                names = ("item_id", "content_index", "audio_end_ms")
                place = {name: cast(JsonValue, command[name]) for name in names}
                refusal = self.conversation.truncate(**cast("dict[str, Any]", place))
                done = "conversation.item.truncated", place
            case "response.create":
                instructions = optional_part(command, "response").get("instructions")
                self._told += (
                    [f"instructions: {instructions}"] if self._active is None and instructions else []
                )
                refusal = self._respond()
            case "response.cancel":
                if self._active is None or command.get("response_id") not in (None, self._active.response_id):
                    message = "Cancellation failed: no active response found"
                    return Refusal("response_cancel_not_active", message)
                self._active.cancel("client_cancelled")
            case _:
                return Refusal("invalid_value", f"{kind} is nothing that this double can do.", "type")
        if refusal is None and done is not None:
            self.emit(done[0], **done[1])
        return refusal

    def _append(self, command: Object) -> Refusal | None:
        self.appends.append(self._loop.time())
        encoded = command.get("audio")
        payload = audio_of(encoded) if isinstance(encoded, str) else None
        if payload is None:
            return Refusal("invalid_value", "Invalid 'audio'. Expected base64-encoded audio bytes.", "audio")
        detection = self.settings.detection
        found = self.vad.hear(
            base64.b64decode(payload),
            self.settings.input_format,
            silence_ms=cast(float, detection.get("silence_duration_ms", 500)),
            padding_ms=cast(float, detection.get("prefix_padding_ms", 300)),
        )
        if not detection:
            return None
        if isinstance(found, signals.Began):
            self._speech_began(found.at_ms)
        elif isinstance(found, signals.Ended):
            self._speech_ended(found)
        return None

    def _create_item(self, command: Object) -> Refusal | None:
        wire = cast(Object, command["item"])
        given_id = wire.get("id")
        item = item_of(wire, given_id if isinstance(given_id, str) else _item_id(self._numbers()))
        if item is None:
            message = f"Clients cannot create this item of type {wire.get('type')!r}; calls have a call_id."
            return Refusal("invalid_value", message, "item")
        refusal = self.conversation.insert(item, command.get("previous_item_id"))
        if refusal is None:
            self._told.append(f"{item.role or 'tool'}: {item.text}")
            self.item_added(item)
            self.item_done(item)
        return refusal

    # The caller's turns ------------------------------------------------------------------------------

    def hear(self, text: str) -> None:
        """A whole turn of the caller, for a session whose audio goes another way."""
        at_ms = int(self.vad.heard_ms)
        self._speech_began(at_ms)
        self._speech_ended(signals.Ended(at_ms, text))

    def _speech_began(self, at_ms: int) -> None:
        self._next_item = _item_id(self._numbers())
        self.emit("input_audio_buffer.speech_started", item_id=self._next_item, audio_start_ms=at_ms)
        if self.settings.detection.get("interrupt_response"):
            self._output_buffer.clear()
            if self._active is not None:
                self._active.cancel("turn_detected")

    def _speech_ended(self, ended: signals.Ended) -> None:
        self.emit("input_audio_buffer.speech_stopped", item_id=self._next_item, audio_end_ms=ended.at_ms)
        self._turn(ended.text)
        if self.settings.detection.get("create_response"):
            refusal = self._respond()
            if refusal is not None:
                self.refuse(refusal, None)

    def _turn(self, text: str) -> None:
        item_id, self._next_item = self._next_item or _item_id(self._numbers()), None
        item = Item(item_id, "message", role="user", text=text, audio_ms=1)
        self.conversation.insert(item, None)
        self.emit(
            "input_audio_buffer.committed", item_id=item_id, previous_item_id=self.conversation.before(item)
        )
        self._told.append(f"user: {text}")
        self.item_added(item)
        self.item_done(item)
        if self.settings.is_transcribed:
            delay_s = self._pace.transcription_ms / 1000
            self._timers.append(self._loop.call_later(delay_s, self._transcribe, item_id, text))

    def _transcribe(self, item_id: str, text: str) -> None:
        kind = "conversation.item.input_audio_transcription"
        if text:
            usage: JsonValue = {"type": "duration", "seconds": 1}
            self.emit(f"{kind}.completed", item_id=item_id, content_index=0, transcript=text, usage=usage)
        else:
            error: JsonValue = {
                "type": "transcription_error",
                "message": "The audio could not be understood.",
            }
            self.emit(f"{kind}.failed", item_id=item_id, content_index=0, error=error)

    # Responses ---------------------------------------------------------------------------------------

    @property
    def output_format(self) -> AudioFormat:
        return self.settings.output_format

    @property
    def is_responding(self) -> bool:
        return self._active is not None

    def _respond(self) -> Refusal | None:
        if self._active is not None:
            message = f"Conversation already has an active response in progress: {self._active.response_id}."
            return Refusal("conversation_already_has_active_response", message)
        reaction = self._cursor.next("\n".join(self._told))
        self._told.clear()
        response_id = f"resp_{self._numbers():08d}"
        answer = self._active = fake_response.FakeResponse(
            self, response_id, reaction, self._pace, self._responded
        )
        self.emit(
            "response.created",
            response={
                "object": "realtime.response",
                "id": response_id,
                "status": "in_progress",
                "output": [],
            },
        )
        self._tasks.append(self._loop.create_task(answer.run()))
        return None

    def _responded(self) -> None:
        self._active = None

    def new_item(self, kind: Literal["message", "function_call"]) -> tuple[int, Item]:
        number = self._numbers()
        item = Item(_item_id(number), kind, role="assistant" if kind == "message" else None)
        self.conversation.insert(item, None)
        self._has_spoken = self._has_spoken or kind == "message"
        return number, item

    def item_added(self, item: Item) -> None:
        self._item("conversation.item.added", item)

    def item_done(self, item: Item) -> None:
        if item in self.conversation.items:
            self._item("conversation.item.done", item)

    def _item(self, kind: str, item: Item) -> None:
        self.emit(kind, previous_item_id=self.conversation.before(item), item=item.wire())

    def play(self, response_id: str, ms: int) -> None:
        self._output_buffer.play(response_id, ms)

    # Out ---------------------------------------------------------------------------------------------

    def emit(self, kind: str, **fields: JsonValue) -> None:
        event_id = f"event_{next(self._event_numbers):06d}"
        self._send(orjson.dumps({"type": kind, "event_id": event_id, **fields}))
        if kind == "response.output_audio.delta":
            fields = {**fields, "delta": ""}
        self.events.append(Sent(self._loop.time(), kind, fields))

    def refuse(self, refusal: Refusal, event_id: object, kind: str = "invalid_request_error") -> None:
        """An error event, for the command with that `event_id` if it had one."""
        self.errors.append(refusal)
        error: dict[str, JsonValue] = {
            "type": kind,
            "code": refusal.code,
            "message": refusal.message,
            "param": refusal.param,
            "event_id": event_id if isinstance(event_id, str) else None,
        }
        self.emit("error", error=error)


def _item_id(number: int) -> str:
    return f"item_{number:08d}"


def item_number(item_id: str) -> int:
    """The number that the audio of a model's item carries."""
    return int(item_id.removeprefix("item_"))
