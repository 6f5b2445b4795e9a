"""What an OpenAI Realtime server sends, as events of a call.

Event and field names are those of the types in the `openai` package; those that only the beta had are
understood where a server still says them.

1. Audio is base64 before and after; it is checked to be that, and never decoded.
2. A tool is asked for by a completed item, not by its arguments being done: those also come for a response
   that was cancelled in between.
3. Of what was said before the connection the server reports the items too: they are no news, and known by
   their ids.
"""

from collections.abc import Callable
from typing import Final, Literal, cast

import msgspec

from channels.voice.call import events
from channels.voice.call.events import AgentAudio
from channels.voice.call.ports import AudioFormat
from channels.voice.wires import frames
from channels.voice.wires.frames import audio_of

PAST: Final = "past_"
"""How the ids of items begin that were said before this connection."""

_OUR_FORMATS: Final[dict[str, AudioFormat]] = {"audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}


class _AudioDelta(msgspec.Struct, frozen=True, gc=False):
    type: Literal["response.output_audio.delta"]  # not a tag, which may be missing
    response_id: str
    item_id: str
    content_index: int
    delta: str


_read_delta: Final = msgspec.json.Decoder(_AudioDelta).decode


def _agent_audio(message: frames.Object) -> events.AgentAudio:
    audio = frames.audio_of(frames.text(message, "delta"))
    if audio is None:
        raise frames.Malformed("audio that is not base64")
    content_index = message.get("content_index", 0)
    if type(content_index) is not int or content_index < 0:  # a bool is no index
        raise frames.Malformed("content_index that is no index")
    return events.AgentAudio(
        frames.name(message, "response_id"), frames.name(message, "item_id"), content_index, audio
    )


def _agent_audio_ended(message: frames.Object) -> events.AgentAudioEnded:
    return events.AgentAudioEnded(frames.name(message, "item_id"))


def _output_transcript(message: frames.Object) -> events.OutputTranscript:
    return events.OutputTranscript(frames.name(message, "item_id"), frames.text(message, "transcript"))


def _output_transcript_delta(message: frames.Object) -> events.OutputTranscriptDelta:
    return events.OutputTranscriptDelta(frames.name(message, "item_id"), frames.text(message, "delta"))


def _item_added(message: frames.Object) -> events.ItemAdded | None:
    item = frames.part(message, "item")
    item_id, role = frames.name(item, "id"), frames.optional_text(item, "role")
    if item_id.startswith(PAST):
        return None
    return events.ItemAdded(item_id, role if role in ("user", "assistant", "system") else None)


def _response_ended(message: frames.Object) -> events.ResponseEnded:
    response = frames.part(message, "response")
    response_id, status = frames.name(response, "id"), frames.text(response, "status")
    details = frames.optional_part(response, "status_details")
    error = frames.optional_part(details, "error")
    parts = [frames.optional_text(error, key) for key in ("code", "message")]
    reason = frames.optional_text(details, "reason") or ": ".join(filter(None, parts)) or None
    if status not in ("completed", "cancelled", "failed", "incomplete"):
        # A response that ended is not running any more, whatever became of it.
        return events.ResponseEnded(response_id, "failed", reason or "a status that is not known")
    return events.ResponseEnded(response_id, status, reason, _usage(frames.optional_part(response, "usage")))


def _usage(usage: frames.Object) -> events.TokenUsage | None:
    details = frames.optional_part(usage, "input_token_details")
    counts = (usage.get("input_tokens"), usage.get("output_tokens"), details.get("cached_tokens", 0))
    if not all(type(count) is int and count >= 0 for count in counts):
        return None
    return events.TokenUsage(*cast("tuple[int, int, int]", counts))


def _function_call(message: frames.Object) -> events.FunctionCall | None:
    item = frames.part(message, "item")
    if item.get("type") != "function_call" or item.get("status") != "completed":
        return None
    return events.FunctionCall(
        response_id=frames.name(message, "response_id"),
        call_id=frames.name(item, "call_id"),
        name=frames.name(item, "name"),
        arguments=frames.text(item, "arguments"),
    )


def _session_updated(message: frames.Object) -> events.SessionUpdated:
    session = frames.part(message, "session")
    audio = frames.optional_part(session, "audio")
    heard, spoken = frames.optional_part(audio, "input"), frames.optional_part(audio, "output")
    return events.SessionUpdated(
        input_format=_format(heard) or frames.optional_text(session, "input_audio_format"),
        output_format=_format(spoken) or frames.optional_text(session, "output_audio_format"),
    )


def _format(side: frames.Object) -> str | None:
    """Our name of the format, the wire's own for one that we have none for."""
    wire = frames.optional_part(side, "format")
    kind = frames.optional_text(wire, "type")
    if kind == "audio/pcm":
        rate = wire.get("rate", 24000)
        return "pcm16" if rate == 24000 else f"audio/pcm at {rate!r:.20}"
    return None if kind is None else _OUR_FORMATS.get(kind, kind)


def _error(message: frames.Object) -> events.ModelError:
    error = frames.part(message, "error")
    return events.ModelError(
        code=frames.optional_text(error, "code") or frames.optional_text(error, "type") or "unknown",
        message=frames.optional_text(error, "message") or "",
        event_id=frames.optional_text(error, "event_id"),
        param=frames.optional_text(error, "param"),
    )


def _not_playing(_: frames.Object) -> events.OutputBufferState:
    return events.OutputBufferState(playing=False)


_READERS: Final[dict[str, Callable[[frames.Object], events.ModelEvent | None]]] = {
    "response.output_audio.delta": _agent_audio,
    "response.output_audio.done": _agent_audio_ended,
    "response.output_audio_transcript.delta": _output_transcript_delta,
    "response.output_audio_transcript.done": _output_transcript,
    "response.created": lambda m: events.ResponseStarted(frames.name(frames.part(m, "response"), "id")),
    "response.done": _response_ended,
    "response.output_item.done": _function_call,
    "conversation.item.added": _item_added,
    "conversation.item.input_audio_transcription.completed": lambda m: events.InputTranscript(
        frames.name(m, "item_id"), frames.text(m, "transcript")
    ),
    "conversation.item.input_audio_transcription.failed": lambda m: events.InputTranscript(
        frames.name(m, "item_id"), ""
    ),
    "input_audio_buffer.committed": lambda m: events.ItemAdded(frames.name(m, "item_id"), "user"),
    "input_audio_buffer.speech_started": lambda _: events.SpeechStarted(),
    "input_audio_buffer.speech_stopped": lambda _: events.SpeechStopped(),
    "session.updated": _session_updated,
    "output_audio_buffer.started": lambda _: events.OutputBufferState(playing=True),
    "output_audio_buffer.stopped": _not_playing,
    "output_audio_buffer.cleared": _not_playing,
    "input_audio_buffer.dtmf_event_received": lambda m: events.DigitPressed(frames.name(m, "event")),
    "error": _error,
    # Of the beta:
    "response.audio.delta": _agent_audio,
    "response.audio.done": _agent_audio_ended,
    "response.audio_transcript.delta": _output_transcript_delta,
    "response.audio_transcript.done": _output_transcript,
    "conversation.item.created": _item_added,
}

decode_any: Final = frames.event_decoder("type", _READERS)
"""As `decode`, without the short way for audio."""


def decode(frame: bytes | str) -> events.ModelEvent | None:
    """The event of one frame of JSON, None for one that nobody needs. Never raises."""
    try:
        delta = _read_delta(frame)
    except frames.NO_STRUCT:
        return decode_any(frame)
    audio, response_id, item_id = audio_of(delta.delta), delta.response_id, delta.item_id
    if audio is None or not response_id or not item_id or delta.content_index < 0:
        return decode_any(frame)
    return AgentAudio(response_id, item_id, delta.content_index, audio)
