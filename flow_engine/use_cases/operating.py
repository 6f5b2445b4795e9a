"""What operators see of an installation at work: each tenant its own jobs, dead letters, events, model calls.

Of processes and of how much waits, everybody sees the same: counts, and no name of anybody's conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson
from typing_extensions import TypedDict

from flow_engine.errors import CorrectTheInput, LookElsewhere
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ConversationList
from flow_engine.ports.jobs import DeadLetter, DeadLetters
from flow_engine.ports.operations import OperationsLog, ProcessKind
from flow_engine.task_types import CLOSED
from flow_engine.values import utc_text

SILENT_AFTER = timedelta(seconds=20)
"""A process that was not seen for so long is not counted on."""
JOBS_EXAMINED = 1_000
LETTERS_EXAMINED = 10_000
LIVE_EXAMINED = 1_000
LIVE_KEPT = timedelta(seconds=5)
"""So long one count of live conversations is good for all who ask."""

LARGEST_PART = 2**63
"""Above both numbers of a stream entry's id, milliseconds since 1970 and a counter."""

_ENTRY_ID = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Price = Callable[[str, int, int], float | None]


class ProcessRow(TypedDict):
    """`status` is `working`, or `silent` when it was not seen for 20 seconds. Times are in UTC."""

    name: str
    kind: ProcessKind
    release: str
    startedAt: str
    seenAt: str
    status: str


class BacklogReply(TypedDict):
    """`due` jobs that nobody has taken, `oldestS` seconds since the first was due, and buried jobs."""

    due: int
    oldestS: float
    deadLetters: int


class JobRow(TypedDict):
    """`status` is `held` by a worker, `due`, or `waiting` for `dueAt` (UTC)."""

    kind: str
    conversationId: str
    subject: str
    dueAt: str
    status: str


class JobsReply(TypedDict):
    """The first to be due. `cut`: there may be more."""

    jobs: Sequence[JobRow]
    cut: bool


class LetterRow(TypedDict):
    """A job that was given up. `buriedAt` is in UTC."""

    id: str
    kind: str
    conversationId: str
    subject: str
    attempts: int
    buriedAt: str
    reason: str


class LettersReply(TypedDict):
    """The latest first. `cut`: there may be more."""

    deadLetters: Sequence[LetterRow]
    cut: bool


class LetterReplayed(TypedDict):
    """`dueAt` is in UTC."""

    id: str
    dueAt: str


class EventRow(TypedDict):
    """`event` as the stream and the webhook have it. `at` is when it came to the stream, in UTC."""

    id: str
    at: str
    kind: str
    conversationId: str
    event: Mapping[str, object]


class EventsReply(TypedDict):
    """The newest first; `nextBefore` is where to read on, null at the end."""

    events: Sequence[EventRow]
    nextBefore: str | None


class ModelCallRow(TypedDict):
    """An attempt at a call. `costUsd` is null where the model has no public price. `at` is in UTC."""

    id: str
    at: str
    purpose: str
    model: str
    status: str
    reason: str | None
    inputTokens: int
    outputTokens: int
    durationMs: int
    costUsd: float | None


class ModelCallsReply(TypedDict):
    """The newest first; `nextBefore` is where to read on, null at the end."""

    calls: Sequence[ModelCallRow]
    nextBefore: str | None


class LiveRow(TypedDict):
    flowId: str
    versionId: str
    conversations: int


class LiveReply(TypedDict):
    """Conversations that are not closed, by version. `cut`: only the last 1,000 were counted."""

    versions: Sequence[LiveRow]
    cut: bool


@dataclass(frozen=True, slots=True)
class OperationsStores:
    log: OperationsLog
    letters: DeadLetters
    index: ConversationList


class Operations:
    """Raises RetryLater while the store is away."""

    def __init__(self, stores: OperationsStores, clock: Clock, price: Price) -> None:
        self._log, self._letters, self._index = stores.log, stores.letters, stores.index
        self._clock = clock
        self._price = price
        self._live: dict[str, tuple[float, LiveReply]] = {}

    async def processes(self) -> Sequence[ProcessRow]:
        now = self._clock.now()
        return [
            ProcessRow(
                name=seen.name,
                kind=seen.kind,
                release=seen.release,
                startedAt=utc_text(seen.started_at),
                seenAt=utc_text(seen.seen_at),
                status="silent" if now - seen.seen_at > SILENT_AFTER else "working",
            )
            for seen in await self._log.processes()
        ]

    async def backlog(self) -> BacklogReply:
        """Ages in seconds. Raises RetryLater."""
        due, oldest_s, dead_letters = await self._log.backlog(self._clock.now())
        return BacklogReply(due=due, oldestS=round(oldest_s, 3), deadLetters=dead_letters)

    async def jobs(self, tenant_id: str, *, limit: int) -> JobsReply:
        now = self._clock.now()
        found = await self._log.jobs(now, at_most=JOBS_EXAMINED)
        own = [each for each in found if each.job.conversation.tenant_id == tenant_id]
        rows = [
            JobRow(
                kind=each.job.kind,
                conversationId=each.job.conversation.conversation_id,
                subject=each.job.subject,
                dueAt=utc_text(each.due_at),
                status="held" if each.held else "waiting" if each.due_at > now else "due",
            )
            for each in own[:limit]
        ]
        return JobsReply(jobs=rows, cut=len(own) > limit or len(found) == JOBS_EXAMINED)

    async def dead_letters(self, tenant_id: str, *, limit: int) -> LettersReply:
        found = await self._letters.list(at_most=LETTERS_EXAMINED)
        own = [each for each in found if each.job.conversation.tenant_id == tenant_id]
        return LettersReply(deadLetters=[_letter(each) for each in own[:limit]], cut=len(own) > limit)

    async def replay(self, tenant_id: str, letter_id: str) -> LetterReplayed:
        """Have its job done again, attempts counted anew. Raises LookElsewhere `dead_letter_unknown`."""
        now = self._clock.now()
        letter = await self._letters.one(letter_id)
        own = letter is not None and letter.job.conversation.tenant_id == tenant_id
        if not own or not await self._letters.replay(letter_id, now):
            raise LookElsewhere("dead_letter_unknown", f"there is no dead letter {letter_id!r}")
        return LetterReplayed(id=letter_id, dueAt=utc_text(now))

    async def events(self, tenant_id: str, before: str | None, *, limit: int) -> EventsReply:
        """Raises CorrectTheInput `before_invalid`."""
        part = await self._log.events(tenant_id, check_before(before), at_most=limit)
        rows = [
            EventRow(
                id=entry_id,
                # An entry's id begins with milliseconds since 1970.
                at=utc_text(_EPOCH + timedelta(milliseconds=int(entry_id.partition("-")[0]))),
                kind=fields["kind"].decode(),
                conversationId=fields["conversation"].decode(),
                event=orjson.loads(fields["event"]),
            )
            for entry_id, fields in part.entries
        ]
        return EventsReply(events=rows, nextBefore=part.next)

    async def model_calls(self, tenant_id: str, before: str | None, *, limit: int) -> ModelCallsReply:
        """Costs in US dollars. Raises CorrectTheInput `before_invalid`."""
        part = await self._log.model_calls(tenant_id, check_before(before), at_most=limit)
        rows: list[ModelCallRow] = []
        for _, fields in part.entries:
            call: ModelCallRow = orjson.loads(fields["call"])
            cost = self._price(call["model"], call["inputTokens"], call["outputTokens"])
            rows.append({**call, "costUsd": cost})
        return ModelCallsReply(calls=rows, nextBefore=part.next)

    async def live(self, tenant_id: str) -> LiveReply:
        """Counted over the last 1,000 conversations; a count is kept for 5 seconds."""
        now = self._clock.now().timestamp()
        known = self._live.get(tenant_id)
        if known is not None and now - known[0] < LIVE_KEPT.total_seconds():
            return known[1]
        part = await self._index.newest(tenant_id, until_ms=None, after=None, at_most=LIVE_EXAMINED)
        counts: dict[tuple[str, str], int] = {}
        for each in part.conversations:
            if each.head is not None and each.head.status != CLOSED:
                version = each.head.flow_id, each.head.version_id
                counts[version] = counts.get(version, 0) + 1
        rows = [
            LiveRow(flowId=flow_id, versionId=version_id, conversations=number)
            for (flow_id, version_id), number in sorted(counts.items())
        ]
        reply = LiveReply(versions=rows, cut=len(part.conversations) == LIVE_EXAMINED)
        self._live[tenant_id] = now, reply
        return reply


def _letter(letter: DeadLetter) -> LetterRow:
    return LetterRow(
        id=letter.id,
        kind=letter.job.kind,
        conversationId=letter.job.conversation.conversation_id,
        subject=letter.job.subject,
        attempts=letter.attempts,
        buriedAt=utc_text(letter.buried_at),
        reason=letter.reason,
    )


def check_before(before: str | None) -> str | None:
    """Raises CorrectTheInput `before_invalid`."""
    if before is None:
        return None
    parts = _ENTRY_ID.fullmatch(before)
    if parts is not None and all(int(part) < LARGEST_PART for part in parts.groups()):
        return before
    raise before_invalid()


def before_invalid() -> CorrectTheInput:
    """For a `before` that no page has named; JSON pointers do not lead into a query."""
    message = "'before' is the 'nextBefore' of the page before"
    return CorrectTheInput.breach("before_invalid", message)
