"""What happens in a call, free of any wire: events of the line and of the model.

Audio travels as it came, base64 of whole samples in bytes, because nobody in between listens to it: a
bridge that decodes every frame spends its time on that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec

Audio: TypeAlias = bytes
"""Base64, as both wires carry it."""

# The line ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The first event of a call. `parameters` are what the carrier's document or the SIP headers gave along;
    an id is None where the carrier names none."""

    stream_id: str
    carrier_call_id: str | None
    parameters: Mapping[str, str]


class CallerAudio(msgspec.Struct, frozen=True, gc=False):
    """A structure, as `AgentAudio` is: there are a hundred of both a second and call, and a tuple with names
    takes three times as long to make, a frozen dataclass longer still."""

    payload: Audio


@dataclass(frozen=True, slots=True)
class MarkReturned:
    """Everything sent before the mark has been played, or thrown away by a `clear`."""

    name: str


@dataclass(frozen=True, slots=True)
class DigitPressed:
    """A key of the caller's phone. Where the audio goes past (SIP), the model's side says it."""

    digit: str


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The caller has hung up, or the line has given the call to somebody else."""


LineEvent: TypeAlias = StreamStarted | CallerAudio | MarkReturned | DigitPressed | StreamStopped

# The model -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    """What the model's side says it uses now; a format is None where it does not say."""

    input_format: str | None
    output_format: str | None


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller began to speak."""


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The caller has spoken to the end of a turn."""


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """An item of the conversation, in its place; tells the order of turns before their text is known. A turn
    of the caller may come twice."""

    item_id: str
    role: Literal["user", "assistant", "system"] | None


@dataclass(frozen=True, slots=True)
class InputTranscript:
    """The transcript of one turn of the caller; empty where nothing could be understood."""

    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class OutputTranscriptDelta:
    """A piece of the text of a spoken item, ahead of its audio; the pieces of an item follow each other."""

    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class OutputTranscript:
    """The whole text of one spoken item, also of what the caller may not have heard."""

    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    response_id: str


class TokenUsage(NamedTuple):
    """What a response is billed by, in tokens; `cached` are those of the input that were."""

    input: int
    output: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """`reason` says why a response failed or was cut, in the model's words; tokens are those that it
    billed."""

    response_id: str
    status: Literal["completed", "cancelled", "failed", "incomplete"]
    reason: str | None = None
    usage: TokenUsage | None = None


class AgentAudio(msgspec.Struct, frozen=True, gc=False):
    response_id: str
    item_id: str
    content_index: int
    payload: Audio


@dataclass(frozen=True, slots=True)
class AgentAudioEnded:
    """No more audio of the item comes."""

    item_id: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A completed call of a tool; `arguments` is the JSON text as the model wrote it, perhaps invalid."""

    response_id: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class OutputBufferState:
    """Where the model's side plays the audio itself (SIP): whether it is playing now."""

    playing: bool


@dataclass(frozen=True, slots=True)
class ModelError:
    """An error event. `event_id` is that of the command that was refused, `param` the part of it, where the
    model says so; None where not."""

    code: str
    message: str
    event_id: str | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A frame that is none of the wire's, so invalid JSON or an unknown shape; `what` names it without its
    content."""

    what: str


ModelEvent: TypeAlias = (
    SessionUpdated
    | SpeechStarted
    | SpeechStopped
    | ItemAdded
    | InputTranscript
    | OutputTranscriptDelta
    | OutputTranscript
    | ResponseStarted
    | ResponseEnded
    | AgentAudio
    | AgentAudioEnded
    | FunctionCall
    | OutputBufferState
    | DigitPressed
    | ModelError
    | Unreadable
)
