"""What one run of a mail needs from outside, and the shapes that it leaves behind (M1, M14).

A run is a function of its mail, its judgement and its progress. Progress is stored after every step that must
not be repeated, so that a run that stops (a crash, a call that waits for a person) goes on from there.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field
from pydantic import JsonValue as Json

from adapters.models.audit import CallLog
from adapters.models.tools import Tool
from channels.engine_client.replies import ApprovalState
from flow_engine.values import JsonValue

DELAYING: Final = frozenset({"imap_refused", "mail_secret_missing", "mail_token_refused"})
"""Codes of what an operator puts right while the run waits."""

Route = Literal["pipeline", "agent"]
Job = Literal["agent_process", "classify"]
Outcome = Literal["completed", "max_iterations", "error", "waiting"]
RunStatus = Literal["queued", "running", "waiting", "completed", "max_iterations", "error"]
Decision = Literal["approved", "rejected"]


UNKNOWN: Final = "it is not known whether an interrupted attempt has sent it"


# --- the mailbox -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """A composed mail: `content` is RFC 5322 with CRLF. `message_id`, in angle brackets, is the same again
    when the run is taken over: what was sent or drafted under it is not sent or drafted again."""

    message_id: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    text: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a mail that should be sent; `reason` says why it is a draft, None for one that was
    sent."""

    status: Literal["sent", "drafted"]
    reason: str | None = None

    @property
    def may_be_sent(self) -> bool:
        """Sent, or a draft of what may have gone out (`UNKNOWN`)."""
        return self.status == "sent" or self.reason == UNKNOWN


class Mailbox(Protocol):
    """The mailbox of one mail that is under way. Raises RetryLater when the server does not answer: the run
    then stops and goes on later from its last checkpoint."""

    async def thread(self, message_ids: Sequence[str]) -> Sequence[bytes]:
        """The mailbox's other mails, received and sent, that have one of these Message-IDs or refer to one,
        the first ids before the others;
        oldest first, a bounded number of them, each cut at a bound."""
        ...

    async def send(self, mail: OutgoingMail) -> Delivery:
        """Once for each Message-ID, and stored in Sent as it went out. Where it cannot be known whether an
        interrupted attempt has sent it, or nothing can be sent, it is left as a draft."""
        ...

    async def draft(self, mail: OutgoingMail) -> None:
        """Append to Drafts with the flag Draft (RFC 3501); once for each Message-ID."""
        ...

    async def mark(self, flags: Collection[str]) -> None:
        r"""Set keywords, and flags such as `\Flagged`, on the mail under way."""
        ...


class Allowance(Protocol):
    """What has been spent in the last 24 hours (limits). Raises RetryLater."""

    async def reply(self, message_id: str, thread: str, recipients: Collection[str]) -> str | None:
        """Count a reply for 24 hours, once for each Message-ID. The reason why it may not be sent, and then
        it is not counted, else None."""
        ...

    async def unsent(self, message_id: str, thread: str, recipients: Collection[str]) -> None:
        """Count that reply no more: it did not go out. It may be told again."""
        ...

    async def run(self, run_id: str, sender: str) -> str | None:
        """Count a run of a sender for 24 hours, once for each run; the reason why it may not begin, else
        None."""
        ...

    async def tokens(self, run_id: str, sender: str, tokens: int) -> str | None:
        """Count all tokens that the run has used so far, in place of what was counted for it. The reason why
        the sender's runs may use no more, else None."""
        ...


# --- the engine's flow -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlowTask:
    """What the flow has the agent do: `prompt` goes below the profile's own, `tools` beside the profile's.
    With a person at work, or a contact that is over (`is_quiet`), the agent says nothing."""

    prompt: str
    tools: tuple[Tool, ...] = ()
    is_quiet: bool = False


class FlowContact(Protocol):
    """The conversation that the mail's thread is, and this mail as its contact. Raises RetryLater."""

    @property
    def conversation_id(self) -> str: ...

    async def enter(self, text: str) -> FlowTask:
        """Begin the contact, or come back to it, and report the mail."""
        ...

    async def escalate(self, reason: str) -> Mapping[str, JsonValue]:
        """Change to the first reachable human task. `{"status": "escalated", …}`, or `{"error": …}`."""
        ...

    async def last_text(self) -> int | None:
        """The number of the last text that was put before a person, 0 for none; None where the task lets
        texts be sent unread."""
        ...

    async def put_before_person(
        self, text: str, after: int, decision: Decision | None
    ) -> ApprovalState | None:
        """The text with its number above `after`, put before a person where there is none yet, and what has
        become of it; `decision`, where it still waits, is passed on. None where a person writes now."""
        ...

    async def leave(self, answer: str | None) -> None:
        """Report the answer, and end the contact unless a person has it now."""
        ...


# --- progress and outcome --------------------------------------------------------------------------


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredCall(_Stored):
    """A call of a tool, as the model made it; `arguments` are a JSON object, empty for those that did not
    parse."""

    id: str
    tool: str
    arguments: dict[str, Json]


class StoredTurn(_Stored):
    """One message of the dialogue with the model."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_call_id: str | None = None
    tool_calls: tuple[StoredCall, ...] = ()


class ToolLine(_Stored):
    """A line of `tool_calls_log`, JSON; `iteration` counts from 1. The result of a call that failed is
    `{"error": …}`."""

    tool: str
    arguments: dict[str, Json]
    result: Json
    iteration: int


class Classification(_Stored):
    """What the classifier found. `language` is a BCP 47 tag."""

    label: str | None = None
    language: str = Field(default="", max_length=35)
    urgency: str = Field(default="normal", max_length=50)
    summary: str = Field(default="", max_length=2_000)


class HeldReply(_Stored):
    """The reply of the call under way waits for a person at the engine. `after` is the number of the text
    before it, stored before the engine has this one; `approval` is the engine's account of it."""

    after: int
    approval: ApprovalState | None = None


class RunProgress(_Stored):
    """Everything that a run needs to go on. `waiting` are the calls that wait for a person, made in the
    model's turn `waiting_at`; `started` is the id of a call that had begun and not ended. Tokens count all
    answers so far, `seconds` the time spent."""

    turns: tuple[StoredTurn, ...] = ()
    tool_calls: tuple[ToolLine, ...] = ()
    iterations: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    started: str | None = None
    waiting: tuple[StoredCall, ...] = ()
    waiting_at: int = 0
    held: HeldReply | None = None
    classification: Classification | None = None

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, or that it waits. `progress` has the log of its tool calls; `error` is the reason of
    the status `error`."""

    status: Outcome
    progress: RunProgress = field(default_factory=RunProgress)
    final_message: str | None = None
    error: str | None = None
    label: str | None = None
    automatic: str | None = None
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class MailEvent:
    """One line of `email_events` beside the run's own ids. `key` is unique in the run: the same event again
    is written once. No text of mails, no addresses."""

    event: str
    key: str = ""
    facts: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


class RunJournal(CallLog, Protocol):
    """Where a run leaves its traces. Raises RetryLater; whatever else it raises ends the run without an
    outcome, such as that another process has taken it over."""

    async def checkpoint(self, progress: RunProgress) -> None:
        """Stored durably when this returns."""
        ...

    async def event(self, event: MailEvent) -> None: ...
