"""The ports to flows and their versions (F1, F6, F7), with the splits of their tags."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from flow_engine.ports.dialogue import ConversationRef


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version as its flow lists it. A version exists from the moment its flow lists it (F7). `created_at`
    is in UTC, `content_hash` the SHA-256 of the canonical JSON."""

    version_id: str
    draft: bool
    channels: tuple[str, ...]
    content_hash: str
    created_by: str
    created_at: datetime
    parent_version_id: str | None = None


@dataclass(frozen=True, slots=True)
class SplitSide:
    """A version of a split: `weight` beside those of the others, and the buckets that it has, as runs from
    the first up to before the second number. Of 10,000."""

    version_id: str
    weight: float
    buckets: tuple[tuple[int, int], ...] = ()


GuardMetric = Literal["refused", "stalled", "humanTransfers", "turns", "durationS"]


@dataclass(frozen=True, slots=True)
class Guard:
    """A side whose metric is above the base's by at least `worse_by` is rolled back, once both have at least
    `minimum` conversations. `worse_by` is in the metric's own unit: a share of 1, turns, seconds."""

    metric: GuardMetric
    worse_by: float
    minimum: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Which side was worse by which metric. `at` is in UTC; `noticed_by` is the digest of the conversation
    that tells the event."""

    version_id: str
    metric: GuardMetric
    at: datetime
    noticed_by: str


@dataclass(frozen=True, slots=True)
class Split:
    """Versions that share a tag's new conversations; the first side is the base. `split_id` is what their
    outcomes are counted under."""

    split_id: str
    sides: tuple[SplitSide, ...]
    guard: Guard | None = None
    rolled_back: RolledBack | None = None


@dataclass(frozen=True, slots=True)
class TagEntry:
    """Where a tag points now, and who moved it there when: to a version, or to the base of a split.
    `created_at` is in UTC."""

    tag: str
    version_id: str
    created_by: str
    created_at: datetime
    split: Split | None = None


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The reply of a designer's mutation, kept under its idempotency key (F15). `body` are the bytes that
    were sent, `stored_at` is in UTC."""

    key: str
    fingerprint: str
    status: int
    body: bytes
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """One flow with its versions' entries and tags: the unit of atomic change in a flow store. Times are in
    UTC; `revision` counts the writes from 1."""

    flow_id: str
    name: str
    campaign_id: str
    schema_version: str
    updated_by: str
    updated_at: datetime
    revision: int = 1
    versions: tuple[VersionEntry, ...] = ()
    tags: tuple[TagEntry, ...] = ()
    tag_moves: tuple[TagEntry, ...] = ()
    replies: tuple[StoredReply, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version's document as it was saved: `document` is the JSON text, byte for byte."""

    version_id: str
    flow_id: str
    document: bytes


class FlowStore(Protocol):
    """Flows by tenant. `replace` is a compare-and-set: it stores only over `expected_revision`.

    Raises RetryLater with code `flow_store_unavailable` when the database does not answer.
    """

    async def insert(self, tenant_id: str, flow: FlowRecord) -> bool: ...

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool: ...

    async def get(self, tenant_id: str, flow_id: str) -> FlowRecord | None: ...

    async def list(self, tenant_id: str, campaign_id: str | None) -> Sequence[FlowRecord]: ...


class VersionStore(Protocol):
    """Immutable version documents. `insert` is False, and changes nothing, for an id already there.

    `remove` takes back a document that no flow lists: this very one, and False for any other.
    """

    async def insert(self, tenant_id: str, version: StoredVersion) -> bool: ...

    async def get(self, tenant_id: str, version_id: str) -> StoredVersion | None: ...

    async def remove(self, tenant_id: str, version: StoredVersion) -> bool: ...


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """Some entries of a journal one after the other, from `first` to `last`, of which none needs an earlier
    one. `began` is the moment of its first entry, in ms since 1970; `content` are opaque bytes."""

    first: int
    last: int
    began: int
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class ArchiveTerm:
    """When a conversation had its last commit, and until when it is kept. Of its start: when it was, and by
    which tag of which flow the version was chosen, "" and None where that is not known. Times are in UTC."""

    ended_at: datetime
    kept_until: datetime
    started_at: datetime | None = None
    flow_id: str = ""
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class ArchivedStart:
    """A conversation of the archive, and when it started, in ms since 1970."""

    conversation_id: str
    started: int


class JournalArchive(Protocol):
    """The journals of conversations that are over. Times are in UTC. Raises RetryLater
    `flow_store_unavailable` when the database does not answer."""

    async def put(
        self, conversation: ConversationRef, parts: Sequence[ArchivedPart], origin: str, term: ArchiveTerm
    ) -> bool:
        """Keep parts, each in the place of a shorter one with the same `first`; all of the conversation's
        until the term's end. `origin` is what it was forked from, "" for nothing. False, and nothing is kept,
        where the conversation was removed when it had ended, or later."""
        ...

    async def parts(
        self,
        conversation: ConversationRef,
        *,
        after: int = 0,
        at_most: int | None = None,
        now: datetime | None = None,
    ) -> Sequence[ArchivedPart]:
        """Those that go beyond the entry `after`, ascending. With `now`, none whose term is over."""
        ...

    async def begun_by(
        self,
        tenant_id: str,
        tag: str,
        *,
        flow_id: str | None,
        before: ArchivedStart | None,
        at_most: int,
        now: datetime,
    ) -> Sequence[ArchivedStart]:
        """Those whose version the tag chose, of any flow where none is named: the newest first, by their
        start and then their id, from behind `before`. None whose term is over."""
        ...

    async def forks(self, conversation: ConversationRef) -> Sequence[str]:
        """The ids of those that were forked from it."""
        ...

    async def remove(self, conversation: ConversationRef, *, removed_at: datetime | None) -> None:
        """Leave nothing of it in the database's files. With `removed_at`, what ended until then is not taken
        any more: a digest of the ids is kept to know it by, until `prune`."""
        ...

    async def prune(self, now: datetime, *, at_most: int, erased_before: datetime) -> int:
        """Remove that many parts whose term is over, and the digests of what was removed before then; how
        many parts there were."""
        ...


class DefinitionStore(Protocol):
    """Version documents by content hash, so that a conversation outlives the flow store (F13). Bytes of JSON,
    kept for `lifetime_s` seconds after each `put`; None when they are not there (any more). Raises RetryLater
    `memory_unavailable`."""

    async def get(self, tenant_id: str, content_hash: str) -> bytes | None: ...

    async def put(self, tenant_id: str, content_hash: str, document: bytes, lifetime_s: int) -> None: ...
