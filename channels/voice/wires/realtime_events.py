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
from typing import Final, cast

from channels.voice.call.events import (
    AgentAudio,
    AgentAudioEnded,
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
from channels.voice.call.ports import AudioFormat
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

PAST: Final = "past_"
"""How the ids of items begin that were said before this connection."""

_OUR_FORMATS: Final[dict[str, AudioFormat]] = {"audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}


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
    if item_id.startswith(PAST):
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
