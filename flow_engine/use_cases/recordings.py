"""Recordings made from journals: which conversations, and all that each entry tells of them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import cast

import orjson

from flow_engine.errors import unknown_conversation
from flow_engine.json_values import as_object
from flow_engine.masking import StandIns
from flow_engine.ports.dialogue import ConversationList, ConversationRef
from flow_engine.runtime.journal import JournalEntry, begun_by, every_entry, folded, states_of
from flow_engine.runtime.memory import encode_entry, encode_previous_contact
from flow_engine.runtime.mining_state import MinedBy, encode_mining
from flow_engine.runtime.privacy import Veil, values_stored
from flow_engine.runtime.session import encode_session
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.use_cases.archiving import KeptJournal
from flow_engine.use_cases.history import learn
from flow_engine.use_cases.recording_format import (
    Heard,
    HeardValue,
    RecordedContact,
    RecordedEntry,
    RecordedVersion,
    Recording,
)
from flow_engine.use_cases.versions_in_use import Versions
from flow_engine.values import utc_text

EXAMINED_AT_MOST, EXAMINED_AT_ONCE = 20_000, 200
"""Conversations looked at for those of a tag."""


class Recordings:
    """Every method answers for one tenant: another's conversation looks exactly like an unknown one. Raises
    RetryLater while a store is away."""

    def __init__(self, versions: Versions, journal: KeptJournal, index: ConversationList) -> None:
        self._versions = versions
        self._journal = journal
        self._index = index

    async def newest(
        self, tenant_id: str, *, flow_id: str | None, tag: str, at_most: int
    ) -> list[ConversationRef]:
        """Those whose version was chosen by the tag, the newest first, by their start; of any flow where none
        is named. As many as are found among the newest 20,000 that Redis knows of the tenant, and in the
        archive."""
        found: dict[str, int] = {}
        until_ms, after = None, None
        for _ in range(EXAMINED_AT_MOST // EXAMINED_AT_ONCE):
            part = (
                await self._index.newest(tenant_id, until_ms=until_ms, after=after, at_most=EXAMINED_AT_ONCE)
            ).conversations
            for each in part:
                after, head = each.conversation_id, each.head
                if head is not None:
                    until_ms = int(head.started_at.timestamp() * 1000)
                    if head.tag == tag and flow_id in (None, head.flow_id):
                        found[each.conversation_id] = until_ms
            if len(part) < EXAMINED_AT_ONCE or len(found) >= at_most:
                break
        for old in await self._journal.begun_by(tenant_id, tag, flow_id=flow_id, at_most=at_most):
            found.setdefault(old.conversation_id, old.started)
        newest = sorted(found, key=lambda id: (found[id], id), reverse=True)
        return [ConversationRef(tenant_id, id) for id in newest[:at_most]]

    async def recording(self, conversation: ConversationRef, *, in_clear: bool = False) -> Recording:
        """Of all that the journal keeps, at most some 5 MiB and the versions. Unless `in_clear`, which is for
        what does not leave the service, sensitive values have a stand-in. Raises LookElsewhere
        `conversation_unknown`, CallTheOperator `definition_lost`."""
        entries = [entry async for entry in every_entry(self._journal, conversation)]
        if not entries:
            raise unknown_conversation(conversation.conversation_id)
        before = entries[0].base or LoadedConversation()
        if entries[0].input.get("op") == "fork":  # which makes it out of nothing, by its delta
            before = folded(before, entries[0])
        _, state = await asyncio.to_thread(states_of, entries)
        session = state.session
        if session is None:
            raise unknown_conversation(conversation.conversation_id)
        versions = list(dict.fromkeys(_versions(before, entries)))
        veil = None if in_clear else await self._veil(conversation.tenant_id, state, entries)
        whole = None if before.session is None else whole_of(before)
        if veil is not None:
            stood = entries[0] if entries[0].base is None else replace(entries[0], seq=entries[0].seq - 1)
            whole = whole and veil.masked(replace(stood, delta=whole)).delta
            entries = await asyncio.to_thread(lambda: [*map(veil.masked, entries)])
        head = (await self._index.one(conversation)).head
        begun = [each for entry in entries if (each := begun_by(entry)) is not None]
        return Recording(
            conversation_id=conversation.conversation_id,
            campaign_id=session.campaign_id,
            flow_id=session.flow_id,
            tag=head.tag if head is not None else begun[-1][0] if begun else None,
            complete=before.session is None,
            start=whole,
            versions=[await self._version(conversation.tenant_id, *each) for each in versions],
            contacts=[
                RecordedContact(
                    contact_id=id,
                    channel=contact.channel,
                    status=contact.status,
                    started_at=contact.started_at,
                    ended_at=contact.ended_at,
                    data=contact.data if veil is None else as_object(veil.json(contact.data)),
                )
                for id, contact in session.contacts.items()
            ],
            entries=[recorded(entry) for entry in entries],
        )

    async def _veil(
        self, tenant_id: str, state: LoadedConversation, entries: Sequence[JournalEntry]
    ) -> Veil | None:
        """One that knows every sensitive value of these entries; None where there is nothing to mask."""
        session = state.session
        if session is None:
            return None
        version = await self._versions.pinned(tenant_id, session.version_id, session.content_hash)
        flow = version.flow.hiding(session.hidden)
        veil = Veil(flow, values_stored(flow, state), instead=StandIns())
        for entry in entries:
            await learn(veil, entry, self._versions, tenant_id)
        return veil

    async def _version(self, tenant_id: str, version_id: str, content_hash: str) -> RecordedVersion:
        version = await self._versions.pinned(tenant_id, version_id, content_hash)
        return RecordedVersion(
            version_id=version_id, content_hash=content_hash, document=orjson.loads(version.document)
        )


def _versions(before: LoadedConversation, entries: Sequence[JournalEntry]) -> Iterator[tuple[str, str]]:
    """Id and content hash of each version, in the order of their use."""
    version_id = content_hash = ""
    if before.session is not None:
        version_id, content_hash = before.session.version_id, before.session.content_hash
        yield version_id, content_hash
    for entry in entries:
        changed = as_object(entry.delta.get("session"))
        if "contentHash" in changed:
            version_id = str(changed.get("versionId", version_id))
            yield version_id, str(changed["contentHash"])


def recorded(entry: JournalEntry) -> RecordedEntry:
    """What a recording tells of an entry. Times are in UTC."""
    return RecordedEntry(
        seq=entry.seq,
        at=entry.at,
        by=entry.by,
        input=entry.input,
        outcome=entry.outcome,
        rationale=entry.rationale,
        heard=_heard(entry),
    )


def _heard(entry: JournalEntry) -> Heard | None:
    op, delta = entry.input.get("op"), entry.delta
    if op == "conclusion" and delta.get("rewritten") is True:
        return Heard(previous_contacts=cast("list[dict[str, object]]", delta.get("previousContacts")))
    if op != "extraction":
        return None
    mining, mined = as_object(delta.get("mining")), as_object(delta.get("mined"))
    provenance, reached = as_object(mining.get("provenance")), as_object(mining.get("checkpoints"))
    marks = {id: as_object(mark) for id, mark in reached.items()}
    return Heard(
        values={
            id: HeardValue(
                value=as_object(value).get("value"),
                source=cast("MinedBy", as_object(provenance.get(id)).get("source", "rules")),
                confidence=cast("float | None", as_object(provenance.get(id)).get("confidence")),
            )
            for id, value in mined.items()
        },
        checkpoints={
            id: str(mark.get("reason", ""))
            for id, mark in marks.items()
            if datetime.fromisoformat(str(mark["at"])) == entry.at
        },
        failed=mining.get("failedTurn") is not None,
    )


def whole_of(state: LoadedConversation) -> Mapping[str, object]:
    """A state in the form of the delta that makes it out of nothing, as JSON values; its messages are not in
    it."""
    entries = {"mined": state.mined, "tools": state.tools}
    return {
        "session": None if state.session is None else orjson.loads(encode_session(state.session)),
        "tenant": state.tenant,
        **{
            name: {id: orjson.loads(encode_entry(entry)) for id, entry in part.items()}
            for name, part in entries.items()
        },
        "mining": orjson.loads(encode_mining(state.mining)),
        "previousContacts": [orjson.loads(encode_previous_contact(c)) for c in state.previous_contacts],
        "lastUserTurn": state.last_user_turn,
        "memoryRevision": state.memory_revision,
        "memoryUpdatedAt": None if state.memory_updated_at is None else utc_text(state.memory_updated_at),
    }


def state_of(whole: Mapping[str, object], at: datetime) -> LoadedConversation:
    """The state that `whole_of` told; its memory was updated `at` (UTC) where it does not say. Raises
    CallTheOperator for one that does not fit its format."""
    revision, updated = whole.get("memoryRevision"), whole.get("memoryUpdatedAt")
    made = JournalEntry(
        seq=0,
        revision=0,
        memory_revision=revision if isinstance(revision, int) else 0,
        at=datetime.fromisoformat(updated) if isinstance(updated, str) else at,
        by="",
        input={},
        outcome={},
        delta=whole,
    )
    return folded(LoadedConversation(), made)
