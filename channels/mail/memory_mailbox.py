"""A mailbox, its limits and its journal in this process: for tests, for demonstrations, and for one message
that is tried out (`flow-engine mail process`)."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from adapters.models.audit import ModelCallRecord
from channels.mail import config, message, ports


@dataclass(slots=True)
class MemoryMailbox:
    """Implements `Mailbox`. `mails` are the other mails there are, as bytes; `outbox` is what was sent and
    drafted, in order. `fails` are raised, each once, by whatever is asked next."""

    mails: list[bytes] = field(default_factory=list[bytes])
    outbox: list[tuple[Literal["send", "draft"], ports.OutgoingMail]] = field(
        default_factory=list[tuple[Literal["send", "draft"], ports.OutgoingMail]]
    )
    flags: set[str] = field(default_factory=set[str])
    fails: list[Exception] = field(default_factory=list[Exception])

    async def thread(self, message_ids: Sequence[str]) -> Sequence[bytes]:
        self._fail()
        wanted = set(message_ids)
        found: list[bytes] = []
        for raw in self.mails:
            mail = message.parse_mail(raw)
            if wanted & {mail.message_id, *mail.references, *mail.in_reply_to}:
                found.append(raw)
        return found

    async def send(self, mail: ports.OutgoingMail) -> ports.Delivery:
        self._fail()
        self._put("send", mail)
        return ports.Delivery("sent")

    async def draft(self, mail: ports.OutgoingMail) -> None:
        self._fail()
        self._put("draft", mail)

    async def mark(self, flags: Collection[str]) -> None:
        self._fail()
        self.flags.update(flags)

    def _put(self, action: Literal["send", "draft"], mail: ports.OutgoingMail) -> None:
        if all((action, mail.message_id) != (done, each.message_id) for done, each in self.outbox):
            self.outbox.append((action, mail))

    def _fail(self) -> None:
        if self.fails:
            raise self.fails.pop(0)


@dataclass(slots=True)
class MemoryAllowance:
    """Implements `Allowance` for less than 24 hours: nothing that was counted grows old."""

    limits: config.Limits = field(default_factory=config.Limits)
    replies: dict[str, tuple[str, frozenset[str]]] = field(
        default_factory=dict[str, tuple[str, frozenset[str]]]
    )
    runs: dict[str, str] = field(default_factory=dict[str, str])
    used: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    async def reply(self, message_id: str, thread: str, recipients: Collection[str]) -> str | None:
        if message_id in self.replies:
            return None
        if sum(each == thread for each, _ in self.replies.values()) >= self.limits.replies_per_thread:
            return f"the thread has had {self.limits.replies_per_thread} replies in 24 hours"
        counts = Counter(person for _, people in self.replies.values() for person in people)
        if any(counts[person] >= self.limits.replies_per_correspondent for person in recipients):
            return f"a recipient has had {self.limits.replies_per_correspondent} replies in 24 hours"
        self.replies[message_id] = (thread, frozenset(recipients))
        return None

    async def unsent(self, message_id: str, thread: str, recipients: Collection[str]) -> None:
        self.replies.pop(message_id, None)

    async def run(self, run_id: str, sender: str) -> str | None:
        self.runs.setdefault(run_id, sender)
        if Counter(self.runs.values())[sender] > self.limits.runs_per_sender:
            return f"the sender has had {self.limits.runs_per_sender} runs in 24 hours"
        return None

    async def tokens(self, run_id: str, sender: str, tokens: int) -> str | None:
        self.used[run_id] = (sender, tokens)
        if sum(number for who, number in self.used.values() if who == sender) > self.limits.tokens_per_sender:
            return f"the sender has used {self.limits.tokens_per_sender} tokens in 24 hours"
        return None


@dataclass(slots=True)
class MemoryJournal:
    """Implements `RunJournal`. `checkpoints` are all there were, oldest first."""

    checkpoints: list[ports.RunProgress] = field(default_factory=list[ports.RunProgress])
    events: list[ports.MailEvent] = field(default_factory=list[ports.MailEvent])
    calls: list[ModelCallRecord] = field(default_factory=list[ModelCallRecord])

    async def checkpoint(self, progress: ports.RunProgress) -> None:
        self.checkpoints.append(progress)

    async def event(self, event: ports.MailEvent) -> None:
        self.events.append(event)

    async def write(self, record: ModelCallRecord) -> None:
        self.calls.append(record)
