"""Journals beyond their stay in Redis: the job that archives them, and a journal that is read from either.

1. A commit to a closed conversation leaves a job, which copies what the archive has not yet: at least once,
   and the same again changes nothing. Then Redis lets go of the entries, most of what a conversation takes,
   unless the database has not its flow: then it is this worker's own, and whoever is asked reads another.
2. The archive is asked for what Redis has let go of, and of a conversation that Redis has forgotten.
3. What ended longer ago than it is kept is not told, and is removed by a job of the hour in which the term
   ends: each archiving writes that down, and all of an hour make one.
4. An erasure leaves word in the archive, so that a job that has read the journal before it brings nothing
   back.
"""

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta

from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ConversationList, ConversationRef
from flow_engine.ports.flow_store import ArchivedPart, ArchivedStart, ArchiveTerm, FlowStore, JournalArchive
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.runtime.journal import JournalEntry, ReleasingJournal, session_after
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.session import Session
from flow_engine.use_cases.delivery import Schedule
from flow_engine.use_cases.versions_in_use import Versions

LISTED_AT_ONCE = 200
PRUNED_AT_ONCE = 200
"""Parts that one statement removes."""
FLOWS_KEPT = 1_024
CLOCKS_DIFFER = timedelta(minutes=1)
"""Redis expires keys by its own clock."""


def prune_due(kept_until: datetime) -> DueJob:
    """The removal of what is kept until then (UTC), at the end of that hour."""
    hour = kept_until.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return DueJob(Job("prune", ConversationRef("", ""), f"{hour:%Y-%m-%dT%H}"), hour)


class KeptJournal:
    """Implements `ConversationJournal`. Raises as the journal, and RetryLater `flow_store_unavailable` where
    the archive has to be asked."""

    def __init__(
        self,
        journal: ReleasingJournal,
        listing: ConversationList,
        archive: JournalArchive,
        flows: FlowStore,
        versions: Versions,
        clock: Clock,
        *,
        kept: timedelta,
        schedule: Schedule,
    ) -> None:
        self._versions = versions
        self._journal = journal
        self._listing = listing
        self._archive = archive
        self._flows = flows
        self._at_home = Kept[tuple[str, str], bool](FLOWS_KEPT)
        self._clock = clock
        self._kept = kept
        self._schedule = schedule

    async def after(self, conversation: ConversationRef, seq: int, *, at_most: int) -> Sequence[JournalEntry]:
        entries = await self._journal.after(conversation, seq, at_most=at_most)
        if entries and entries[0].seq == seq + 1:
            return entries
        archived_to = await self._archived_to(conversation)
        if entries:
            archived_to = min(archived_to, entries[0].seq - 1)
        found: list[JournalEntry] = []
        while seq < archived_to and len(found) < at_most:
            parts = await self._parts(conversation, after=seq, at_most=1)
            if not parts:
                break
            found += [each for each in self._journal.unpacked(parts[0]) if seq < each.seq <= archived_to]
            seq = parts[0].last
        return [*found, *entries][:at_most]

    async def next(
        self, conversation: ConversationRef, seq: int, *, at_most: int, within_s: float
    ) -> Sequence[JournalEntry]:
        entries = await self._journal.next(conversation, seq, at_most=at_most, within_s=within_s)
        if entries and entries[0].seq == seq + 1:
            return entries
        return await self.after(conversation, seq, at_most=at_most)

    async def newest(self, conversation: ConversationRef) -> Sequence[JournalEntry]:
        entries = await self._journal.newest(conversation)
        if entries or not await self._archived_to(conversation):
            return entries
        parts = await self._parts(conversation)
        return self._journal.unpacked(parts[-1]) if parts else ()

    async def up_to(self, conversation: ConversationRef, seq: int) -> Sequence[JournalEntry]:
        entries = await self._journal.up_to(conversation, seq)
        if entries or seq > await self._archived_to(conversation):
            return entries
        parts = await self._parts(conversation, after=seq - 1, at_most=1)
        found = self._journal.unpacked(parts[0]) if parts else ()
        return [entry for entry in found if entry.seq <= seq]

    async def _archived_to(self, conversation: ConversationRef) -> int:
        """The last entry that the archive is asked for."""
        released = await self._journal.released(conversation)
        return sys.maxsize if released is None else released

    async def _parts(
        self, conversation: ConversationRef, *, after: int = 0, at_most: int | None = None
    ) -> Sequence[ArchivedPart]:
        now = self._clock.now()
        return await self._archive.parts(conversation, after=after, at_most=at_most, now=now)

    async def begun_by(
        self, tenant_id: str, tag: str, *, flow_id: str | None, at_most: int
    ) -> Sequence[ArchivedStart]:
        """Those of the archive that Redis has forgotten and whose version the tag chose, of any flow where
        none is named: the newest first, by their start."""
        found: list[ArchivedStart] = []
        last: ArchivedStart | None = None
        while len(found) < at_most:
            page = await self._archive.begun_by(
                *(tenant_id, tag),
                flow_id=flow_id,
                before=last,
                at_most=LISTED_AT_ONCE,
                now=self._clock.now(),
            )
            for last in page:
                known = await self._listing.one(ConversationRef(tenant_id, last.conversation_id))
                if known.head is None:
                    found.append(last)
            if len(page) < LISTED_AT_ONCE:
                break
        return found[:at_most]

    async def has(self, conversation: ConversationRef) -> bool:
        """Also of one that is kept no longer, but still there."""
        return bool(await self._archive.parts(conversation, at_most=1))

    async def remove(self, conversation: ConversationRef) -> None:
        """Nothing of it and of its forks is left in the archive, and nothing of what it was until now comes
        back."""
        found, known = [conversation], {conversation}
        for each in found:  # which grows by what was forked from each
            forks = [ConversationRef(each.tenant_id, id) for id in await self._archive.forks(each)]
            found += [fork for fork in forks if fork not in known]
            known.update(forks)
        for each in reversed(found):
            await self._archive.remove(each, removed_at=self._clock.now())

    async def archive(self, job: Job) -> None:
        """Handler of `archive` jobs. Of a conversation that is not stored any more it does nothing."""
        conversation = job.conversation
        parts = await self._journal.packed(conversation)
        if not parts:
            return
        known = {part.first: part for part in await self._archive.parts(conversation)}
        if any(part.first in known and known[part.first].began != part.began for part in parts):
            await self._archive.remove(conversation, removed_at=None)  # another one of the same id
            known.clear()
        fresh = [part for part in parts if part.first not in known or known[part.first].last < part.last]
        begun = self._journal.unpacked(parts[0])
        ending = begun if len(parts) == 1 else self._journal.unpacked(parts[-1])
        session = session_after(ending)
        term = await self._term(conversation, session, ending[-1].at)
        if fresh:
            asked = begun[0].input
            origin = str(asked["conversationId"]) if asked["op"] == "fork" else ""
            await self._schedule(prune_due(term.kept_until))
            if not await self._archive.put(conversation, fresh, origin, term):
                return
        if session is None or not session.closed:
            return
        if await self._has_flow(conversation.tenant_id, session.flow_id):
            kept = term.kept_until + CLOCKS_DIFFER - self._clock.now()
            await self._journal.release(conversation, parts[-1].last, kept=kept)

    async def _has_flow(self, tenant_id: str, flow_id: str) -> bool:
        known = self._at_home.get((tenant_id, flow_id))
        if known is None and (known := await self._flows.get(tenant_id, flow_id) is not None):
            self._at_home.put((tenant_id, flow_id), True)
        return known

    async def prune(self, job: Job) -> None:
        """Handler of `prune` jobs: removes everything whose term is over by now."""
        now, gone = self._clock.now(), PRUNED_AT_ONCE
        while gone == PRUNED_AT_ONCE:
            gone = await self._archive.prune(now, at_most=PRUNED_AT_ONCE, erased_before=now - self._kept)

    async def _term(
        self, conversation: ConversationRef, session: Session | None, ended_at: datetime
    ) -> ArchiveTerm:
        """By the days of this service, or by the version's retention where that is shorter."""
        if session is None:
            return ArchiveTerm(ended_at, ended_at + self._kept)
        version = await self._versions.pinned(
            conversation.tenant_id, session.version_id, session.content_hash
        )
        retention = version.flow.document.retention
        kept = self._kept if retention is None else min(self._kept, timedelta(days=retention.days))
        head = (await self._listing.one(conversation)).head
        tag = None if head is None else head.tag
        return ArchiveTerm(ended_at, ended_at + kept, session.started_at, session.flow_id, tag)
