"""The seams of a call: the line, the model, and the handler of the business that answers.

The call's machine stands between the three and knows no wire. A line and a model are told things at once
and answer with events later; a handler does I/O and is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from channels.voice.call.events import Audio
from flow_engine.values import JsonValue

AudioFormat = Literal["g711_ulaw", "g711_alaw", "pcm16"]
"""8 kHz µ-law, 8 kHz A-law, 24 kHz 16 bit little-endian; always mono."""

EndReason = Literal[
    "caller_hung_up",
    "agent_hung_up",
    "transferred",
    "time_limit",
    "model_lost",
    "line_lost",
    "shut_down",
    "refused",
    "failed",
]


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """When the model takes a turn as begun and ended; milliseconds."""

    threshold: float = 0.5
    silence_duration_ms: int = 500
    prefix_padding_ms: int = 300


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What the model is to be in this call. `tools` are function declarations in JSON Schema."""

    instructions: str
    tools: tuple[Mapping[str, JsonValue], ...] = ()
    model: str = "gpt-realtime"
    voice: str = "sage"
    speed: float | None = None
    input_format: AudioFormat = "g711_ulaw"
    output_format: AudioFormat = "g711_ulaw"
    transcription_model: str | None = "whisper-1"
    language: str | None = None
    turn_detection: TurnDetection = TurnDetection()
    allow_interruptions: bool = True
    silence_s: float | None = None
    """After so many seconds in which nobody spoke, the handler is asked what to do."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `call_id` is ours, unique; `phone` is E.164 where the line gave it."""

    call_id: str
    phone: str | None
    parameters: Mapping[str, str]
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. An interrupted turn holds about as much as was heard."""

    role: Literal["user", "assistant"]
    text: str
    at: datetime
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """`started` says whether the handler's `started` was called."""

    started: bool
    reason: EndReason
    duration_s: float
    transcript: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is not taken. With `say`, that is spoken before the line closes."""

    say: str | None = None


class Line(Protocol):
    """The caller's side. All methods return at once."""

    def play(self, audio: Audio) -> None: ...

    def mark(self, name: str) -> None:
        """Have `name` returned when all audio sent before has been played."""
        ...

    def clear(self) -> None:
        """Throw away what has not been played."""
        ...

    def close(self) -> None: ...


class ModelLink(Protocol):
    """The model's side. All methods return at once."""

    def append_audio(self, audio: Audio) -> None: ...

    def configure(self, settings: SessionSettings) -> None: ...

    def add_text(self, role: Literal["user", "system"], text: str) -> str:
        """The id of the new item: an `ItemAdded` with it says that the model has it."""
        ...

    def add_history(self, turns: Sequence[Turn]) -> None:
        """What was said before this connection, oldest first."""
        ...

    def send_function_output(self, call_id: str, output: str) -> str:
        """`output` is JSON text. Returns the id of the new item, as `add_text` does."""
        ...

    def create_response(self, instructions: str | None = None) -> None: ...

    def cancel(self, response_id: str) -> None: ...

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> None: ...

    def delete_item(self, item_id: str) -> None: ...

    def close(self) -> None: ...


class CallControls(Protocol):
    """What a handler may do to its call. All methods return at once."""

    @property
    def transcript(self) -> tuple[Turn, ...]: ...

    @property
    def awaits_transcript(self) -> bool:
        """The caller has said something that is no turn of the transcript yet: a model that hears answers
        before the words have been written down."""
        ...

    def reconfigure(self, settings: SessionSettings) -> None:
        """From the next response on; what is being said goes on."""
        ...

    def switch_task(self, settings: SessionSettings, command: str | None) -> None:
        """Stop speaking, and the other tools of the old scene; go on with these settings. The command is
        given to the model, which speaks then."""
        ...

    def instruct(self, text: str) -> None:
        """Have the model speak on this instruction, when nobody else does."""
        ...

    def hang_up(self) -> None:
        """Close the line once everything that was said has been heard, the words of an instruction given just
        before among it. Nothing further is said."""
        ...

    def transfer(self, target: str) -> None:
        """Give the call to a phone number or SIP address once everything that was said has been heard. A call
        that cannot be given away goes on: `CallHandler.not_transferred`."""
        ...


class CallHandler(Protocol):
    """The business behind one call. One instance answers one call; every method but `open` and `ended` is
    called only after `open` gave settings."""

    async def open(self) -> SessionSettings | Refused:
        """Whether and how the call is taken: the checks, then the session."""
        ...

    async def started(self) -> str | None:
        """The model is ready. Returns what makes it speak first; None lets the caller speak first."""
        ...

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        """The answer for the model. `arguments` is the model's JSON text, which may be none. Cancelled when
        the scene changes or the call ends."""
        ...

    async def said(self, turn: Turn) -> None:
        """One turn, in order."""
        ...

    async def silent(self) -> None:
        """Nobody has spoken for the settings' `silence_s`."""
        ...

    async def not_transferred(self, target: str) -> None:
        """The line could not be given to `target`; the caller is still there."""
        ...

    async def ended(self, ending: Ending) -> None:
        """Exactly once for every call whose `open` was called, whatever came of it."""
        ...


OpenCallHandler: TypeAlias = Callable[[Caller, CallControls], CallHandler]
