"""The Realtime protocol of OpenAI: server events to ours, and the model's side to speak to.

This is the protocol of general availability; the names that only its beta had are understood where a server
still says them, and never spoken. Event and field names are those of the types in the `openai` package.

Rules:
1. Audio is base64 before and after; it is checked to be that, and never decoded.
2. A tool is asked for by a completed item, not by its arguments being done: those also come for a response
   that was cancelled in between.
3. The model never interrupts itself (`interrupt_response` is false). It cannot know what the caller really
   heard, so the call's machine interrupts it.
4. Formats and voice are settled by the first configuration, because they cannot change once audio came.
5. Every command has an `event_id`: its type and a count, as in `response.cancel:12`. An error that carries
   it back says which command was wrong.
6. Every item that this side creates has an id from this side. Of what was said before the connection the
   server reports the items too; those are no news, and are known by their ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, cast

import orjson

from channels.voice.call.events import (
    AgentAudio,
    AgentAudioEnded,
    Audio,
    DigitPressed,
    FunctionCall,
    InputCommitted,
    InputTranscript,
    ItemAdded,
    ModelError,
    ModelEvent,
    OutputBufferState,
    OutputTranscript,
    OutputTranscriptDelta,
    ResponseEnded,
    ResponseStarted,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    TokenUsage,
    Unreadable,
)
from channels.voice.call.ports import (
    AudioFormat,
    FunctionCallItem,
    FunctionOutputItem,
    HistoryItem,
    SessionSettings,
    TextItem,
)
from channels.voice.wires.frames import (
    Malformed,
    Object,
    audio_of,
    name,
    optional_part,
    optional_text,
    part,
    read_object,
    text,
)
from flow_engine.values import JsonValue

_WIRE_FORMATS: Final[dict[AudioFormat, dict[str, JsonValue]]] = {
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
    "pcm16": {"type": "audio/pcm", "rate": 24000},
}
_PAST: Final = "past_"
_OUR_FORMATS: Final[dict[str, AudioFormat]] = {"audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}


# Events --------------------------------------------------------------------------------------------


def decode(frame: bytes | str) -> ModelEvent | None:
    """The event of one frame of JSON; None for one that nobody needs. Never raises: an invalid one is
    `Unreadable`."""
    try:
        message = read_object(frame)
        kind = message.get("type")
        if kind == "response.output_audio.delta" and (audio := _plain_audio(message)) is not None:
            return audio
        read = _READERS.get(text(message, "type"))
        return None if read is None else read(message)
    except Malformed as wrong:
        return Unreadable(str(wrong))


def _plain_audio(message: Object) -> AgentAudio | None:
    """What nearly every frame is, without the steps that tell what is wrong with one; None for the others."""
    get = message.get
    delta, response_id, item_id, index = (
        get("delta"),
        get("response_id"),
        get("item_id"),
        get("content_index"),
    )
    if not (isinstance(delta, str) and isinstance(response_id, str) and isinstance(item_id, str)):
        return None
    audio = audio_of(delta)
    if audio is None or not response_id or not item_id or type(index) is not int or index < 0:
        return None
    return AgentAudio(response_id, item_id, index, audio)


def _agent_audio(message: Object) -> AgentAudio:
    audio = audio_of(text(message, "delta"))
    if audio is None:
        raise Malformed("audio that is not base64")
    content_index = message.get("content_index", 0)
    if type(content_index) is not int or content_index < 0:  # a bool is no index
        raise Malformed("content_index that is no index")
    return AgentAudio(name(message, "response_id"), name(message, "item_id"), content_index, audio)


def _agent_audio_ended(message: Object) -> AgentAudioEnded:
    return AgentAudioEnded(name(message, "response_id"), name(message, "item_id"))


def _output_transcript(message: Object) -> OutputTranscript:
    return OutputTranscript(name(message, "item_id"), text(message, "transcript"))


def _output_transcript_delta(message: Object) -> OutputTranscriptDelta:
    return OutputTranscriptDelta(name(message, "item_id"), text(message, "delta"))


def _input_committed(message: Object) -> InputCommitted:
    return InputCommitted(name(message, "item_id"))


def _input_transcript(message: Object) -> InputTranscript:
    return InputTranscript(name(message, "item_id"), text(message, "transcript"))


def _input_not_understood(message: Object) -> InputTranscript:
    return InputTranscript(name(message, "item_id"), "")


def _speech_started(message: Object) -> SpeechStarted:
    return SpeechStarted(optional_text(message, "item_id"))


def _speech_stopped(message: Object) -> SpeechStopped:
    return SpeechStopped(optional_text(message, "item_id"))


def _item_added(message: Object) -> ItemAdded | None:
    item = part(message, "item")
    item_id, role = name(item, "id"), optional_text(item, "role")
    if item_id.startswith(_PAST):
        return None
    return ItemAdded(item_id, role if role in ("user", "assistant", "system") else None)


def _response_started(message: Object) -> ResponseStarted:
    return ResponseStarted(name(part(message, "response"), "id"))


def _response_ended(message: Object) -> ResponseEnded:
    response = part(message, "response")
    response_id, status = name(response, "id"), text(response, "status")
    details = optional_part(response, "status_details")
    error = optional_part(details, "error")
    told = [optional_text(error, key) for key in ("code", "message")]
    reason = optional_text(details, "reason") or ": ".join(filter(None, told)) or None
    if status not in ("completed", "cancelled", "failed", "incomplete"):
        # A response that ended is not running any more, whatever became of it.
        return ResponseEnded(response_id, "failed", reason or "a status that is not known")
    return ResponseEnded(response_id, status, reason, _usage(optional_part(response, "usage")))


def _usage(usage: Object) -> TokenUsage | None:
    details = optional_part(usage, "input_token_details")
    counts = (usage.get("input_tokens"), usage.get("output_tokens"), details.get("cached_tokens", 0))
    if not all(type(count) is int and count >= 0 for count in counts):
        return None
    return TokenUsage(*cast("tuple[int, int, int]", counts))


def _function_call(message: Object) -> FunctionCall | None:
    item = part(message, "item")
    if item.get("type") != "function_call" or item.get("status") != "completed":
        return None
    return FunctionCall(
        response_id=name(message, "response_id"),
        item_id=name(item, "id"),
        call_id=name(item, "call_id"),
        name=name(item, "name"),
        arguments=text(item, "arguments"),
    )


def _session_updated(message: Object) -> SessionUpdated:
    session = part(message, "session")
    audio = optional_part(session, "audio")
    heard, spoken = optional_part(audio, "input"), optional_part(audio, "output")
    voice = spoken.get("voice", session.get("voice"))
    if isinstance(voice, dict):
        voice = name(cast(Object, voice), "id")
    if not isinstance(voice, str | None):
        raise Malformed("voice that is no text")
    return SessionUpdated(
        input_format=_format(heard) or optional_text(session, "input_audio_format"),
        output_format=_format(spoken) or optional_text(session, "output_audio_format"),
        voice=voice,
    )


def _format(side: Object) -> str | None:
    """Our name of the format, the wire's own for one that we have none for."""
    wire = optional_part(side, "format")
    kind = optional_text(wire, "type")
    if kind == "audio/pcm":
        rate = wire.get("rate", 24000)
        return "pcm16" if rate == 24000 else f"audio/pcm at {rate!r:.20}"
    return None if kind is None else _OUR_FORMATS.get(kind, kind)


def _error(message: Object) -> ModelError:
    error = part(message, "error")
    return ModelError(
        code=optional_text(error, "code") or optional_text(error, "type") or "unknown",
        message=optional_text(error, "message") or "",
        event_id=optional_text(error, "event_id"),
        param=optional_text(error, "param"),
    )


def _playing(_: Object) -> OutputBufferState:
    return OutputBufferState(playing=True)


def _not_playing(_: Object) -> OutputBufferState:
    return OutputBufferState(playing=False)


def _digit(message: Object) -> DigitPressed:
    return DigitPressed(name(message, "event"))


_READERS: Final[dict[str, Callable[[Object], ModelEvent | None]]] = {
    "response.output_audio.delta": _agent_audio,
    "response.output_audio.done": _agent_audio_ended,
    "response.output_audio_transcript.delta": _output_transcript_delta,
    "response.output_audio_transcript.done": _output_transcript,
    "response.created": _response_started,
    "response.done": _response_ended,
    "response.output_item.done": _function_call,
    "conversation.item.added": _item_added,
    "conversation.item.input_audio_transcription.completed": _input_transcript,
    "conversation.item.input_audio_transcription.failed": _input_not_understood,
    "input_audio_buffer.committed": _input_committed,
    "input_audio_buffer.speech_started": _speech_started,
    "input_audio_buffer.speech_stopped": _speech_stopped,
    "session.updated": _session_updated,
    "output_audio_buffer.started": _playing,
    "output_audio_buffer.stopped": _not_playing,
    "output_audio_buffer.cleared": _not_playing,
    "input_audio_buffer.dtmf_event_received": _digit,
    "error": _error,
    # Of the beta:
    "response.audio.delta": _agent_audio,
    "response.audio.done": _agent_audio_ended,
    "response.audio_transcript.delta": _output_transcript_delta,
    "response.audio_transcript.done": _output_transcript,
    "conversation.item.created": _item_added,
}


# Commands ------------------------------------------------------------------------------------------


def session_of(settings: SessionSettings, *, carries_audio: bool = True) -> dict[str, JsonValue]:
    """The session as its first configuration. Without `carries_audio` no format is said: where the audio
    goes another way (SIP), that way has settled it."""
    heard, spoken = _turns_of(settings), cast("dict[str, JsonValue]", {"voice": settings.voice})
    heard["noise_reduction"] = {"type": "near_field"}  # a phone is held to the face
    if settings.speed is not None:
        spoken["speed"] = settings.speed
    if carries_audio:
        heard["format"] = dict(_WIRE_FORMATS[settings.input_format])
        spoken["format"] = dict(_WIRE_FORMATS[settings.output_format])
    return {
        **_task_fields(settings),
        "output_modalities": ["audio"],
        "audio": {"input": heard, "output": spoken},
    }


def _task_fields(settings: SessionSettings) -> dict[str, JsonValue]:
    return {
        "type": "realtime",
        "instructions": settings.instructions,
        "tools": [_declaration(tool) for tool in settings.tools],
        "tool_choice": "auto",
    }


def _declaration(tool: Mapping[str, JsonValue]) -> JsonValue:
    """A session is refused whole for one field that the wire does not know, such as `strict`."""
    known = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
    return {"type": "function", **known}


def _message(role: str, content_type: str, content: str) -> dict[str, JsonValue]:
    return {"type": "message", "role": role, "content": [{"type": content_type, "text": content}]}


def _turns_of(settings: SessionSettings) -> dict[str, JsonValue]:
    detection = settings.turn_detection
    transcription: dict[str, JsonValue] = {"model": settings.transcription_model}
    if settings.language is not None:
        transcription["language"] = settings.language
    return {
        "transcription": None if settings.transcription_model is None else transcription,
        "turn_detection": {
            "type": "server_vad",
            "threshold": detection.threshold,
            "silence_duration_ms": detection.silence_duration_ms,
            "prefix_padding_ms": detection.prefix_padding_ms,
            "create_response": True,
            "interrupt_response": False,
        },
    }


def _past(item: HistoryItem) -> dict[str, JsonValue]:
    """An item of a session before this one."""
    match item:
        case FunctionCallItem():
            call: dict[str, JsonValue] = {"call_id": item.call_id, "name": item.name}
            return {"type": "function_call", **call, "arguments": item.arguments}
        case FunctionOutputItem():
            return {"type": "function_call_output", "call_id": item.call_id, "output": item.output}
        case TextItem():
            return _message(item.role, "input_text", item.text)
        case _:
            content_type = "input_text" if item.role == "user" else "output_text"
            return _message(item.role, content_type, item.text)


class RealtimeLink:
    """The model's side of a call. `send` takes one text frame of JSON; `close` ends the socket. Where the
    audio goes another way (SIP), `carries_audio` is False and `clear_playback` takes the place of the line's
    clear. Nothing raises for a socket that is gone."""

    def __init__(
        self, send: Callable[[bytes], None], close: Callable[[], None], *, carries_audio: bool = True
    ) -> None:
        self._send = send
        self._close = close
        self._carries_audio = carries_audio
        self._sent = 0
        self._settled: SessionSettings | None = None

    def append_audio(self, audio: Audio) -> None:
        self._sent = sent = self._sent + 1
        self._send(
            b'{"type":"input_audio_buffer.append","event_id":"input_audio_buffer.append:%d","audio":"%b"}'
            % (sent, audio)
        )

    def configure(self, settings: SessionSettings) -> None:
        session = self._session(settings)
        self._settled = settings
        self._command("session.update", {"session": session})

    def _session(self, settings: SessionSettings) -> dict[str, JsonValue]:
        if self._settled is None:
            return session_of(settings, carries_audio=self._carries_audio)
        audio: dict[str, JsonValue] = {"input": _turns_of(settings)}
        if settings.speed != self._settled.speed:
            audio["output"] = {"speed": 1.0 if settings.speed is None else settings.speed}
        return {**_task_fields(settings), "audio": audio}

    def add_text(self, role: Literal["user", "system"], text: str) -> str:
        return self._add_item("own_", _message(role, "input_text", text))

    def add_history(self, items: Sequence[HistoryItem]) -> None:
        for item in items:
            self._add_item(_PAST, _past(item))

    def send_function_output(self, call_id: str, output: str) -> str:
        return self._add_item("own_", _past(FunctionOutputItem(call_id, output)))

    def create_response(self, instructions: str | None = None) -> None:
        self._command("response.create", {"response": {"instructions": instructions}} if instructions else {})

    def cancel(self, response_id: str) -> None:
        self._command("response.cancel", {"response_id": response_id})

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        self._command(
            "conversation.item.truncate",
            {"item_id": item_id, "content_index": content_index, "audio_end_ms": heard_ms},
        )

    def delete_item(self, item_id: str) -> None:
        self._command("conversation.item.delete", {"item_id": item_id})

    def clear_playback(self) -> None:
        """Throw away what the model's side has not played yet, where it plays itself (SIP)."""
        self._command("output_audio_buffer.clear", {})

    def close(self) -> None:
        self._close()

    def _add_item(self, prefix: str, item: Mapping[str, JsonValue]) -> str:
        item_id = f"{prefix}{self._sent + 1}"
        self._command("conversation.item.create", {"item": {"id": item_id, **item}})
        return item_id

    def _command(self, kind: str, fields: Mapping[str, JsonValue]) -> None:
        self._sent += 1
        command = {"type": kind, "event_id": f"{kind}:{self._sent}", **fields}
        try:
            self._send(orjson.dumps(command))
        except orjson.JSONEncodeError:
            # Texts of a business may hold what UTF-8 cannot carry; one bad character ends no call.
            self._send(json.dumps(command, ensure_ascii=False).encode("utf-8", "replace"))
