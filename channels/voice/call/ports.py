"""The seams of a call: the line, the model, the handler that answers, and the lifecycle of the business.

The call's machine stands between them and knows no wire. A line and a model are sent commands at once and
answer with events later; a handler and a lifecycle do I/O and are awaited by the runner.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from channels.voice.call.events import Audio, FunctionCall, ModelError, ModelEvent
from flow_engine.values import JsonValue

AudioFormat = Literal["g711_ulaw", "g711_alaw", "pcm16"]
"""8 kHz µ-law, 8 kHz A-law, 24 kHz 16 bit little-endian; always mono."""

EndReason = Literal[
    "caller_hung_up",
    "agent_hung_up",
    "transferred",
    "time_limit",
    "model_unreachable",
    "model_lost",
    "line_lost",
    "shut_down",
    "refused",
    "failed",
]
"""`model_unreachable`: no session could be opened for the call, nobody answered the caller. `model_lost`: the
session ended, and no other could be opened, or it fails at every response."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Why a call has ended. `unspoken` are the words of a refusal for which no model was to be had."""

    reason: EndReason
    unspoken: str | None = None


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """When the model takes a turn as begun and ended; milliseconds."""

    threshold: float = 0.5
    silence_duration_ms: int = 500
    prefix_padding_ms: int = 300


@dataclass(frozen=True, slots=True)
class CustomVoice:
    """A voice of one's own at the model's vendor, by its id there."""

    id: str


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What the model is to be in this call. `tools` are function declarations in JSON Schema."""

    instructions: str
    tools: tuple[Mapping[str, JsonValue], ...] = ()
    model: str = "gpt-realtime"
    voice: str | CustomVoice = "sage"
    speed: float | None = None
    input_format: AudioFormat = "g711_ulaw"
    output_format: AudioFormat = "g711_ulaw"
    transcription_model: str | None = "whisper-1"
    language: str | None = None
    turn_detection: TurnDetection = TurnDetection()
    allow_interruptions: bool = True
    silence_s: float | None = None
    """After so many seconds in which nobody spoke, the handler gets `CallerSilent`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `call_id` is ours, unique; `phone` is E.164 where the line gave it. `parameters` are the
    line's own: of the TwiML, or of the SIP headers. `carrier_call_id` is the carrier's, Twilio's CallSid."""

    call_id: str
    phone: str | None
    parameters: Mapping[str, str]
    started_at: datetime
    carrier_call_id: str | None = None

    @property
    def called(self) -> str | None:
        """As the line names it, usually in E.164; None where it does not."""
        return self.parameters.get("calledPhone") or self.parameters.get("To")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said, `at` a moment with its zone. An interrupted turn holds about as much as was
    heard."""

    role: Literal["user", "assistant"]
    text: str
    at: datetime
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """`started` says whether the model was there and the caller could be spoken to. `duration_s` is in
    seconds, from the first event of the line to the end of the call."""

    started: bool
    reason: EndReason
    duration_s: float
    transcript: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is not taken. With `say`, that is spoken before the line closes."""

    say: str | None = None


@dataclass(frozen=True, slots=True)
class CallerSilent:
    """Nobody has spoken for the settings' `silence_s` seconds."""


@dataclass(frozen=True, slots=True)
class KeysPressed:
    """Keys of the caller's phone that belong together, in the words in which the model is told of them."""

    text: str


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """The transfer to `target` failed; the caller is still there."""

    target: str


@dataclass(frozen=True, slots=True)
class ModelStalled:
    """The model fails to answer or to go on, for some seconds."""


HandlerNotice: TypeAlias = Turn | CallerSilent | KeysPressed | TransferFailed
MachineNotice: TypeAlias = Turn | CallerSilent | KeysPressed | ModelStalled | ModelError


# What the model is sent again when its connection is another one: in the order in which it was.


@dataclass(frozen=True, slots=True)
class TextItem:
    role: Literal["user", "system"]
    text: str


@dataclass(frozen=True, slots=True)
class FunctionCallItem:
    """`arguments` is the JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionOutputItem:
    """`output` is JSON text."""

    call_id: str
    output: str


HistoryItem: TypeAlias = Turn | TextItem | FunctionCallItem | FunctionOutputItem


class Line(Protocol):
    """The caller's side. All methods return at once, and never raise for a line that is gone."""

    def play(self, audio: Audio) -> None: ...

    def mark(self, name: str) -> None:
        """Have `name` returned when all audio sent before has been played."""
        ...

    def clear(self) -> None:
        """Throw away what has not been played."""
        ...

    def close(self) -> None: ...


class ModelItems(Protocol):
    """The items of the model's conversation. All methods return at once; an `ItemAdded` with the id of a new
    item says that the model has it."""

    def add_text(self, role: Literal["user", "system"], text: str) -> str:
        """The id of the new item."""
        ...

    def send_function_output(self, call_id: str, output: str) -> str:
        """`output` is JSON text. Returns the id of the new item."""
        ...

    def add_history(self, items: Sequence[HistoryItem]) -> None:
        """Utterances and tool calls before this connection, oldest first."""
        ...

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        """Only the first `heard_ms` milliseconds of the item's audio were heard."""
        ...

    def delete_item(self, item_id: str) -> None: ...


class ModelLink(ModelItems, Protocol):
    """The model's side: its session and its responses. All methods return at once; errors come back as
    `ModelError`."""

    def append_audio(self, audio: Audio) -> None: ...

    def configure(self, settings: SessionSettings) -> None:
        """`SessionUpdated` says that it is done, `ModelError` that it was refused."""
        ...

    def configure_again(self, refused: ModelError) -> None:
        """Once more, with nothing but the task's instructions and, unless they are what was refused, its
        tools. Without effect where `refused` is not of the newest change of a session that had begun, or is
        of one that was made again."""
        ...

    def create_response(self) -> None: ...

    def cancel(self, response_id: str) -> None: ...

    def close(self) -> None: ...


class ModelUnreachable(Exception):
    """No session with the model could be opened: refused, failed or too late; the message says why, without
    keys."""


class RealtimeListener(Protocol):
    """Gets what a connection to the model receives."""

    def event(self, event: ModelEvent) -> None: ...

    def lost(self) -> None: ...

    def audio_dropped(self) -> None:
        """A frame of the caller was left out, because the model's side does not keep up."""
        ...


class ConnectModel(Protocol):
    async def __call__(self, settings: SessionSettings, listener: RealtimeListener, /) -> ModelLink:
        """A connection that is not configured yet. Raises ModelUnreachable."""
        ...


class CallHooks(Protocol):
    """What the machine has done for it, whatever takes time. All methods return at once."""

    def start_tool(self, call: FunctionCall) -> None:
        """The answer comes by `Call.tool_finished`."""
        ...

    def stop_other_tools(self) -> tuple[str, ...]:
        """Stop every tool but the one that is calling, if one is. Returns the ids of their calls."""
        ...

    def notice(self, notice: MachineNotice) -> None: ...

    def transfer(self, target: str) -> None:
        """Give the line to `target`; what became of it comes by `Call.transfer_ended`."""
        ...

    def over(self, reason: EndReason) -> None:
        """The call has ended; called once."""
        ...


class CallControls(Protocol):
    """What a handler may do to its call. All methods return at once."""

    def reconfigure(self, settings: SessionSettings) -> None:
        """From the next response on; what is being said goes on."""
        ...

    def switch_task(self, settings: SessionSettings, command: str | None) -> None:
        """Stop speaking, but for a goodbye, and the other tools of the old task; go on with these settings.
        The command is given to the model, which speaks then."""
        ...

    def instruct(self, text: str) -> None:
        """Have the model speak on this instruction, when nobody else does."""
        ...

    def hang_up(self) -> None:
        """Close the line once everything that was said has been heard, the words of an instruction given just
        before among it. Nothing further is said."""
        ...

    def transfer(self, target: str) -> None:
        """Transfer the call to a phone number or SIP address once everything that was said has been heard. A
        transfer that fails is noticed as `TransferFailed`: the call goes on."""
        ...


class CallHandler(Protocol):
    """Who answers one call. One instance answers one call; every method but `open` and `ended` is called only
    after `open` returned settings."""

    async def open(self) -> SessionSettings | Refused:
        """Whether and how the call is taken. What it raises ends the call as failed."""
        ...

    async def started(self) -> str | None:
        """The model is ready. Returns what makes it speak first; None lets the caller speak first."""
        ...

    async def run_tool(self, name: str, arguments: str) -> JsonValue:
        """The answer for the model. `arguments` is the model's JSON text, which may be none. Cancelled when
        the task is switched, or when it takes longer than the end of the call waits for."""
        ...

    async def notice(self, notice: HandlerNotice) -> None:
        """Turns come in order, each once."""
        ...

    async def ended(self, ending: Ending) -> None:
        """Exactly once for every call whose `open` was called, whatever came of it, failures included."""
        ...


class CallLifecycle(Protocol):
    """What the business has done around its calls, whoever answers them (V3, V5)."""

    async def refusal(self) -> Refused | None:
        """The checks before a call: None where nothing objects to it. A check that fails, or does not answer
        within ten seconds, objects to nothing."""
        ...

    async def began(self) -> None:
        """The call is taken: `on_start`. Called at most once."""
        ...

    async def turn(self, turn: Turn) -> None:
        """Turns come in order, each once."""
        ...

    async def ended(self, ending: Ending) -> None:
        """Called once, after `began` was."""
        ...


class NoLifecycle:
    """Implements `CallLifecycle` for a business that has nothing done."""

    async def refusal(self) -> Refused | None:
        return None

    async def began(self) -> None: ...

    async def turn(self, turn: Turn) -> None: ...

    async def ended(self, ending: Ending) -> None: ...


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    handler: CallHandler
    lifecycle: CallLifecycle = field(default_factory=NoLifecycle)


class CallSeat(CallControls, Protocol):
    """What a handler gets of its call: what it may do to it, and the utterances so far."""

    @property
    def transcript(self) -> tuple[Turn, ...]: ...

    @property
    def awaits_transcript(self) -> bool:
        """The caller has said something that is no turn of the transcript yet: a model that hears answers
        before the words have been written down."""
        ...


OpenCall: TypeAlias = Callable[[Caller, CallSeat], AnsweredCall]
