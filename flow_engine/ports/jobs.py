"""Background work as data: what is to be done for which conversation, and when (F41).

Work is written down by the same commit that makes it necessary, under a name that stands once: the same
job again only moves its time. So nothing is lost between a reply and its background work, a burst of
messages makes one job, and a job that is due twice finds nothing left to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, get_args
from urllib.parse import unquote

import msgspec

from flow_engine.ports.dialogue import ConversationRef, encoded_id

JobKind = Literal[
    "relay", "deliver", "mine", "conclude", "expire", "routing", "archive", "prune", "erase", "cti"
]


class Job(msgspec.Struct, frozen=True):
    """`relay` sends the outbox on, `deliver` what of it waits for the webhook, `mine` reads the last user
    turn, `conclude` an ended contact (`subject` is its id; empty: what conversations that were started
    anew have left behind), `expire` ends a conversation whose time limit has passed, `routing` fails a
    transfer that found nobody in time, `archive` copies the journal of a closed conversation, `prune` removes
    archived ones whose term is over (of no conversation; `subject` is the hour), `erase` finishes an erasure
    that was cut off. `cti` takes in an entry of the core CTI's stream (`subject` is its id)."""

    kind: JobKind
    conversation: ConversationRef
    subject: str = ""

    @property
    def name(self) -> str:
        owner = f"{encoded_id(self.conversation.tenant_id)}:{encoded_id(self.conversation.conversation_id)}"
        return f"{self.kind}:{owner}:{encoded_id(self.subject)}"

    @classmethod
    def named(cls, name: str) -> Job:
        kind, tenant_id, conversation_id, subject = (unquote(part) for part in name.split(":"))
        for known in get_args(JobKind):
            if known == kind:
                return cls(known, ConversationRef(tenant_id, conversation_id), subject)
        raise ValueError(f"{kind!r} is no kind of job")


class DueJob(msgspec.Struct, frozen=True):
    job: Job
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """A job in somebody's hands. `token` is the lease: whoever holds an older one is ignored. `attempt`
    counts from 1; a lease lasts some seconds. `delays` counts the tries in a row before this one that did not
    count."""

    job: Job
    token: str
    attempt: int
    delays: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that was given up, with the last reason. `id` is for replaying it. `buried_at` is in UTC."""

    id: str
    job: Job
    reason: str
    attempts: int
    buried_at: datetime


class JobSchedule(Protocol):
    """Jobs by the time they are due. A claim that is not finished within its lease is due again.

    A job is in one pair of hands at a time: one that is scheduled anew while it is held is due again when it
    is given back. A claim whose token is not the latest changes nothing. Times are in UTC, leases in seconds.
    Raises RetryLater when the store does not answer.
    """

    async def claim(self, now: datetime, *, at_most: int, lease_s: float) -> Sequence[Claim]: ...

    async def renew(self, claim: Claim, now: datetime, *, lease_s: float) -> bool:
        """Hold it for longer; False when it was taken over since, and its holder is to let go of it.
        `lease_s` seconds from `now` (UTC)."""
        ...

    async def finish(self, claim: Claim) -> None:
        """Forget the job, unless it was scheduled anew since it was claimed."""
        ...

    async def retry(self, claim: Claim, due_at: datetime, *, delayed: bool = False) -> None:
        """Have it tried again. One that is `delayed` counts as an attempt no more."""
        ...

    async def bury(self, claim: Claim, reason: str, now: datetime) -> None: ...


class DeadLetters(Protocol):
    async def list(self, *, at_most: int) -> Sequence[DeadLetter]: ...

    async def one(self, letter_id: str) -> DeadLetter | None: ...

    async def replay(self, letter_id: str, now: datetime) -> bool:
        """Schedule it again; False when there is no such letter. Due at `now` (UTC), with its attempts
        counted anew."""
        ...


JobHandler = Callable[[Job], Awaitable[None]]


class NeverTryAgain(Exception):
    """Raised by a handler: the job cannot be done, however often it is tried."""


class TryJobAgain(Exception):
    """Raised by a handler: the job was not done, and may go better later. After a pause of seconds that grows
    with each attempt; an error that stays has the job buried."""
