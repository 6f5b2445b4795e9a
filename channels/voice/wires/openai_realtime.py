"""The model's side of a call, as commands to an OpenAI Realtime server of the present protocol.

1. The model never interrupts itself (`interrupt_response` is false). It cannot know what the caller really
   heard, so the call's machine interrupts it.
2. Formats and voice are settled by the first configuration, because they cannot change once audio came.
3. Every command has an `event_id`: its type and a count, as in `response.cancel:12`. An error that carries
   it back says which command was wrong.
4. Every item that this side creates has an id from this side.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import orjson

from channels.voice.call import ports
from channels.voice.call.events import Audio, ModelError
from channels.voice.wires.realtime_events import PAST
from flow_engine.values import JsonValue

DEFAULT_URL: Final = "wss://api.openai.com/v1/realtime"

_WIRE_FORMATS: Final[dict[ports.AudioFormat, dict[str, JsonValue]]] = {
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
    "pcm16": {"type": "audio/pcm", "rate": 24000},
}


def realtime_url(base: str, key: Literal["model", "call_id"], value: str) -> str:
    """The URL at which a session with a model is opened, or that of an accepted SIP call joined. `base` may
    have a query of its own."""
    url = urlsplit(base)
    added = urlencode({key: value}, quote_via=quote)
    return urlunsplit(url._replace(query=f"{url.query}&{added}" if url.query else added))


def session_of(settings: ports.SessionSettings, *, carries_audio: bool = True) -> dict[str, JsonValue]:
    """The session as its first configuration. Without `carries_audio` no format is said: where the audio
    goes another way (SIP), that way has settled it."""
    heard, voice = _turns_of(settings), settings.voice
    spoken: dict[str, JsonValue] = {"voice": voice if isinstance(voice, str) else {"id": voice.id}}
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


def _task_fields(settings: ports.SessionSettings) -> dict[str, JsonValue]:
    return {
        "type": "realtime",
        "instructions": settings.instructions,
        # A session is refused whole for one field that the wire does not know, such as `strict`.
        "tools": [
            {"type": "function"} | {key: tool[key] for key in _DECLARED if key in tool}
            for tool in settings.tools
        ],
        "tool_choice": "auto",
    }


def _message(role: str, content_type: str, content: str) -> dict[str, JsonValue]:
    return {"type": "message", "role": role, "content": [{"type": content_type, "text": content}]}


_DECLARED = ("name", "description", "parameters")


def _turns_of(settings: ports.SessionSettings) -> dict[str, JsonValue]:
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


def _past(item: ports.HistoryItem) -> dict[str, JsonValue]:
    """An item of a session before this one."""
    match item:
        case ports.FunctionCallItem():
            call: dict[str, JsonValue] = {"call_id": item.call_id, "name": item.name}
            return {"type": "function_call", **call, "arguments": item.arguments}
        case ports.FunctionOutputItem():
            return {"type": "function_call_output", "call_id": item.call_id, "output": item.output}
        case ports.TextItem():
            return _message(item.role, "input_text", item.text)
        case _:
            content_type = "input_text" if item.role == "user" else "output_text"
            return _message(item.role, content_type, item.text)


class RealtimeLink:
    """The model's side of a call. `send` takes one text frame of JSON; `close` ends the socket. Where the
    audio goes another way (SIP), `carries_audio` is False and `clear_playback` takes the place of the line's
    clear. `send_audio` may leave a frame out, which is worthless late. Nothing raises for a socket that is
    gone."""

    __slots__ = ("_carries_audio", "_change", "_close", "_send", "_send_audio", "_sent", "_settled")

    def __init__(
        self,
        send: Callable[[bytes], None],
        close: Callable[[], None],
        *,
        carries_audio: bool = True,
        send_audio: Callable[[bytes], None] | None = None,
    ) -> None:
        self._send = send
        self._send_audio = send_audio or send
        self._close = close
        self._carries_audio = carries_audio
        self._sent = 0
        self._settled: ports.SessionSettings | None = None
        self._change: tuple[str, ports.SessionSettings] | None = None
        """The event id of the newest change that may be made again, and the settings before it."""

    def append_audio(self, audio: Audio) -> None:
        self._sent = sent = self._sent + 1
        self._send_audio(
            b'{"type":"input_audio_buffer.append","event_id":"input_audio_buffer.append:%d","audio":"%b"}'
            % (sent, audio)
        )

    def configure(self, settings: ports.SessionSettings) -> None:
        before, self._settled = self._settled, settings
        if before is None:
            self._command(
                "session.update", {"session": session_of(settings, carries_audio=self._carries_audio)}
            )
            return
        audio: dict[str, JsonValue] = {"input": _turns_of(settings)}
        if settings.speed != before.speed:
            audio["output"] = {"speed": 1.0 if settings.speed is None else settings.speed}
        session: JsonValue = {**_task_fields(settings), "audio": audio}
        self._change = self._command("session.update", {"session": session}), before

    def configure_again(self, refused: ModelError) -> None:
        if self._settled is None or self._change is None or self._change[0] != refused.event_id:
            return
        before, self._change = self._change[1], None
        session = _task_fields(self._settled)
        if (refused.param or "").startswith("session.tools"):
            del session["tools"]
        self._settled = replace(self._settled, speed=before.speed)
        self._command("session.update", {"session": session})

    def add_text(self, role: Literal["user", "system"], text: str) -> str:
        return self._add_item("own_", _message(role, "input_text", text))

    def add_history(self, items: Sequence[ports.HistoryItem]) -> None:
        for item in items:
            self._add_item(PAST, _past(item))

    def send_function_output(self, call_id: str, output: str) -> str:
        return self._add_item("own_", _past(ports.FunctionOutputItem(call_id, output)))

    def create_response(self) -> None:
        self._command("response.create", {})

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

    def _command(self, kind: str, fields: Mapping[str, JsonValue]) -> str:
        """Its event id."""
        self._sent += 1
        event_id = f"{kind}:{self._sent}"
        command = {"type": kind, "event_id": event_id, **fields}
        try:
            self._send(orjson.dumps(command))
        except orjson.JSONEncodeError:
            # Texts of a business may hold what UTF-8 cannot carry; one bad character ends no call.
            self._send(json.dumps(command, ensure_ascii=False).encode("utf-8", "replace"))
        return event_id
