"""A try: one conversation with a document, in memory, by the use cases of real conversations.

1. What a commit would store, send and leave to do stays here: state, events, jobs and the journal. So no
   list, stream, webhook, job or outcome knows of a try, and no server of the flow is called.
2. What is said is read at once, and an ended contact concluded, by the handlers of the jobs that do it.
3. The whole of a try is a `TryRecord`: any process goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import orjson

from flow_engine.json_values import as_object
from flow_engine.masking import StandIns
from flow_engine.ports.dialogue import ActedOn, ConversationRef, DialogueTurn
from flow_engine.ports.extraction import ExtractsNothing
from flow_engine.ports.jobs import DueJob
from flow_engine.runtime import storage
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.journal import JournalEntry, entry_of
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.privacy import Veil, values_stored
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.testing import format
from flow_engine.testing.bench import SettableClock, set_up
from flow_engine.testing.expectations import Outcome
from flow_engine.testing.running import NOBODY, Player
from flow_engine.use_cases.background import BackgroundDependencies, BackgroundWork
from flow_engine.use_cases.history import JournalRow, journal_row
from flow_engine.use_cases.rebuilding import MemoryInHand
from flow_engine.use_cases.recording_format import RecordedVersion, Recording
from flow_engine.use_cases.recordings import recorded, state_of, whole_of
from flow_engine.use_cases.replaying import FixedVersions
from flow_engine.vocabulary import Channel

JOBS_AT_ONCE = 20
"""Jobs that are done after one step, those that they leave among them."""


class KeptAnswer(msgspec.Struct, frozen=True):
    """The reply, JSON text, that the request with this `Idempotency-Key` got; see `IdempotencyKey`."""

    key: str
    fingerprint: str
    status: int
    text: str


class TryRecord(msgspec.Struct, frozen=True):
    """What happened in a try so far. `state` is the whole state as JSON, `turns` the messages, `entries` the
    rows of its journal; `ahead_s` are the seconds that the try's time is ahead of the clock, `forgotten_at`
    is when a store would forget the conversation, in the try's time. `answers` are kept replies, that of the
    try's begin first where it had a key."""

    flow_id: str
    campaign_id: str
    version_id: str
    author: str
    channel: Channel | None = None
    language: str | None = None
    tenant: Mapping[str, object] = msgspec.field(default_factory=dict[str, object])
    contact: Mapping[str, object] = msgspec.field(default_factory=dict[str, object])
    contact_id: str = NOBODY
    task_id: str = ""
    opened: int = 0
    utterances: int = 0
    ahead_s: float = 0.0
    forgotten_at: datetime | None = None
    state: Mapping[str, object] | None = None
    turns: tuple[DialogueTurn, ...] = ()
    entries: tuple[Mapping[str, Any], ...] = ()
    answers: tuple[KeptAnswer, ...] = ()


@dataclass(slots=True)
class TriedMemory(MemoryInHand):
    """Keeps what a store would pass on: the journal's entries, events and jobs. `forgotten_at` is when a
    store would forget all of it (F16), in UTC."""

    state: storage.LoadedConversation
    entries: list[JournalEntry]
    forgotten_at: datetime | None
    events: list[bytes] = field(default_factory=list[bytes])
    jobs: list[DueJob] = field(default_factory=list[DueJob])

    async def commit(self, conversation: ConversationRef, changes: storage.Changes) -> storage.Outcome:
        self.state = self.state.after(changes)
        self.forgotten_at = changes.now + timedelta(seconds=changes.lifetime_s)
        entry = entry_of(changes, len(self.entries) + 1, self.state.memory_revision)
        if entry is not None:
            self.entries.append(entry)
        self.events += changes.events
        self.jobs += changes.jobs
        body = changes.reply.body(self.state.memory_revision)
        return storage.Committed(body, changes.reply.status, definition_present=True)


class Trial:
    """A try within one turn of it. `now` is in UTC."""

    def __init__(
        self,
        conversation: ConversationRef,
        flow: CompiledFlow,
        platform: Platform,
        record: TryRecord,
        work: BackgroundDependencies,
        now: datetime,
    ) -> None:
        state = storage.LoadedConversation()
        if record.state is not None:
            state = msgspec.structs.replace(state_of(record.state, now), turns=record.turns)
        self.flow = flow
        self.memory = TriedMemory(state, [*map(_entry, record.entries)], record.forgotten_at)
        self.has_model = work.has_model
        self._record = record
        self._now = now
        acted, clock = ActedOn(*conversation, record.author), SettableClock(now)
        clock.advance(record.ahead_s)
        versions = FixedVersions({}, record.campaign_id, instead=flow)
        reads = ExtractsNothing()  # what is said is read by the job that does it
        stage = set_up(acted, flow, clock, self.memory, versions, platform, reads)
        self._work = BackgroundWork(stage.transactor, work)
        scenario = format.Scenario.model_construct(
            name=conversation.conversation_id,
            channel=record.channel,
            language=record.language,
            tenant=record.tenant,
            contact=record.contact,
            steps=(),
        )
        here = record.contact_id, record.task_id, record.opened, record.utterances
        self._player = Player(scenario, stage, *here)

    @property
    def conversation(self) -> ConversationRef:
        return self._player.stage.conversation

    @property
    def contact_id(self) -> str:
        return self._player.contact_id

    async def act(self, step: format.Action) -> Outcome:
        """Do a step, and the background work that it leaves to be done at once. What is refused is in the
        outcome. Raises TryJobAgain where a model gave no usable answer; the step is done."""
        if isinstance(step, format.Remember):
            step = self._player.described(step)
        outcome = await self._player.act(step)
        for _ in range(JOBS_AT_ONCE):
            due = [due.job for due in self.memory.jobs if due.job.kind in ("mine", "conclude")]
            self.memory.jobs.clear()
            if not due:
                break
            for job in dict.fromkeys(due):
                await (self._work.mine if job.kind == "mine" else self._work.conclude)(job)
        if self._player.task_id and (reached := await self._player.moved()) is not None:
            outcome = replace(outcome, advanced=reached)
        return outcome

    async def runner(self) -> ConversationalFlowRunner:
        """The conversation as it is now. Raises LookElsewhere `conversation_unknown` before it has begun."""
        return await self._player.stage.runner()

    def record(self) -> TryRecord:
        """All that a later turn needs, as JSON values."""
        player, state = self._player, self.memory.state
        return msgspec.structs.replace(
            self._record,
            contact_id=player.contact_id,
            task_id=player.task_id,
            opened=player.opened,
            utterances=player.utterances,
            ahead_s=(player.stage.clock.now() - self._now).total_seconds(),
            forgotten_at=self.memory.forgotten_at,
            state=None if state.session is None else whole_of(state),
            turns=state.turns,
            entries=(*self._record.entries, *map(as_object, map(journal_row, self._fresh_entries))),
        )

    def journal_of_this_turn(self) -> Sequence[JournalRow]:
        """The entries that were not there before, masked."""
        fresh = self._fresh_entries
        if self.flow.sensitive:
            veil = self._veil()
            fresh = [veil.masked(entry) for entry in fresh]
        return [journal_row(entry) for entry in fresh]

    @property
    def _fresh_entries(self) -> Sequence[JournalEntry]:
        return self.memory.entries[len(self._record.entries) :]

    def recording(self, document: bytes) -> Recording:
        """The try as a recording: with stand-ins for sensitive values. `document` is the version's JSON."""
        entries: Sequence[JournalEntry] = self.memory.entries
        if self.flow.sensitive:
            veil = self._veil(instead=StandIns())
            entries = [veil.masked(entry) for entry in entries]
        version = RecordedVersion(
            version_id=self.flow.version_id,
            content_hash=self.flow.content_hash,
            document=as_object(orjson.loads(document)),
        )
        return Recording(
            conversation_id=self.conversation.conversation_id,
            campaign_id=self._record.campaign_id,
            flow_id=self._record.flow_id,
            tag=None,
            complete=True,
            versions=[version],
            contacts=[],
            entries=[recorded(entry) for entry in entries],
        )

    def _veil(self, **instead: Any) -> Veil:
        veil = Veil(self.flow, values_stored(self.flow, self.memory.state), **instead)
        for entry in self.memory.entries:
            veil.learn(entry)
        return veil


def _entry(row: Mapping[str, Any]) -> JournalEntry:
    """Of a row as `journal_row` tells it."""
    return JournalEntry(
        seq=row["seq"],
        revision=row["revision"],
        memory_revision=row["memoryRevision"],
        at=datetime.fromisoformat(row["at"]),
        by=row["by"],
        input=row["input"],
        outcome=row["outcome"],
        delta=row["delta"],
        rationale=row["rationale"],
    )
