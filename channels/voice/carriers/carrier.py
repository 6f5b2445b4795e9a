"""What a carrier of phone calls is to the agent (V12).

    a call is offered    admit     who calls, once the request is known to be the carrier's
                         answer    the document that says what is to become of the call
    its audio streams    decoder   the carrier's frames to events of the line
                         line      what the call plays, marks and clears, to the carrier's frames
    it goes elsewhere    transfer

A carrier is a folder beside this file, and its place in `table`: a row, and the base class of its settings.
Nothing outside its folder knows its frames, signatures, documents, REST interface or credentials.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from channels.voice.call.events import LineEvent, Unreadable
from channels.voice.call.ports import AudioFormat, Line
from channels.voice.server.public_address import RequestInfo
from flow_engine.values import JsonValue

CALL_ID_PARAMETER = "callId"
"""Of a stream: the id that this side gave to the call when it was offered, so that log lines join."""

Decoder: TypeAlias = Callable[[bytes], Sequence[LineEvent | Unreadable]]
"""The events of one text frame; none for a frame that nobody needs. Never raises. It belongs to one stream
and sees every frame in its order, so it may keep some back until those before them have come."""


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """What a recording has to know of a frame. `at_ms` is the carrier's own count of milliseconds since the
    stream began, None where the frame has none."""

    is_audio: bool
    at_ms: float | None = None


class StreamCodec(Protocol):
    """A carrier's media stream over a WebSocket, text frames of JSON. `audio_formats` are those that its
    frames can carry."""

    @property
    def audio_formats(self) -> frozenset[AudioFormat]: ...

    def decoder(self) -> Decoder:
        """A new one for each stream."""
        ...

    def line(self, stream_id: str, send: Callable[[bytes], None], close: Callable[[], None]) -> Line:
        """The way to play to a stream that has started. `send` takes one text frame of JSON, `close` ends
        the stream's socket."""
        ...

    def recorded(self, message: Mapping[str, JsonValue]) -> RecordedFrame | None:
        """Of a JSON object that may be a frame of either way; None where it is none."""
        ...


@dataclass(frozen=True, slots=True)
class CallOffer:
    """A call that waits for an answer. `call_id` is the carrier's own, empty when it names none.
    `parameters` are handed to the call with its stream: `callerPhone` and `calledPhone` as the carrier
    writes them, and whatever else it says."""

    call_id: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ConnectStream:
    """Give the call's audio, both ways, to the WebSocket at the URL `url`, ws:// or wss://, whose start event
    carries the parameters. What becomes of the call after that is asked for at `ended_url`, http:// or
    https://."""

    url: str
    parameters: Mapping[str, str]
    ended_url: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Do not take the call: the caller hears the busy tone, or that the number is nobody's."""

    reason: Literal["busy", "unknown_number"]


@dataclass(frozen=True, slots=True)
class AskElsewhere:
    """Ask at another URL, http:// or https://, what is to become of the call."""

    url: str


@dataclass(frozen=True, slots=True)
class SpeakAndDial:
    """Say the words, in a language of BCP 47, and give the call to a phone number or SIP address; None: end
    it."""

    words: str
    language: str
    target: str | None = None


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the call."""


Instruction: TypeAlias = ConnectStream | Reject | AskElsewhere | SpeakAndDial | HangUp


@dataclass(frozen=True, slots=True)
class Document:
    """The body of a reply to a carrier, in UTF-8."""

    media_type: str
    text: str


class CallDocuments(Protocol):
    """A carrier's requests and documents, as far as they need no credentials."""

    def called_number(self, form: bytes) -> str | None:
        """The phone number that a call is for, as `caller_number` gives it, by the body or query of the
        request which offers it; None where it names none."""
        ...

    def answer(self, instruction: Instruction) -> Document: ...


class Carrier(StreamCodec, CallDocuments, Protocol):
    """One carrier, with one account's credentials."""

    def admit(self, request: RequestInfo, body: bytes | None) -> CallOffer:
        """Who calls. `body` is that of the HTTP request which offers a call, or asks what is to become of one
        whose stream has ended; None for the WebSocket of a stream, whose offer is empty.

        Raises CorrectTheInput: `signature_missing`, `signature_wrong`, `not_local` for a request that is not
        the carrier's, `media_type_unsupported` or `form_invalid` for one that cannot be read.
        """
        ...

    async def transfer(self, call_id: str | None, target: str) -> None:
        """Give a live call to a phone number or SIP address. `call_id` is the carrier's, None when the stream
        did not name it.

        Raises LineControlFailed when the call is where it was, CorrectTheInput `transfer_target_invalid`
        before anything is sent.
        """
        ...
