"""The journal of conversations on Redis: how an entry is stored, and how it is read again.

An entry is a JSON text; beside it stands, as it is, what its commit writes as a whole: variables, and the
session of a start. seq, memory revision and base are commit.lua's too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast
from zlib import compress, crc32, decompress

import orjson

from flow_engine.errors import CallTheOperator
from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationRef, is_user_turn
from flow_engine.ports.flow_store import ArchivedPart
from flow_engine.runtime.journal import ENTRIES_AT_MOST, JournalEntry, session_delta
from flow_engine.runtime.memory import (
    decode_previous_contact,
    encode_entry,
    encode_previous_contact,
)
from flow_engine.runtime.mining_state import NOTHING_MINED, decode_mining, encode_mining
from flow_engine.runtime.session import decode_session, encode_session
from flow_engine.runtime.storage import Changes, JournalNote, LoadedConversation
from memory.codec import decode_entries, decode_instant, encode_instant, encode_turn
from memory.driver import Argument, Driver, Script
from memory.keys import ConversationKeys, due_score
from memory.listing import INDEX_KEPT, encode_head, encode_origin

SEGMENT_ENTRIES = 64
"""So many entries are folded at most to get a state."""
SEGMENT_BYTES = 512 * 1024
LARGEST_SEQ = 10**12
JOURNAL_BYTES = 4 * 1024 * 1024
"""Of the ended segments of a conversation; beyond it the oldest make room."""


def journal_arguments(
    conversation: ConversationRef, changes: Changes, arguments: Mapping[str, Argument]
) -> Mapping[str, Argument]:
    """What commit.lua takes for journal and index. `arguments` are the commit's others."""
    note = changes.journal
    if note is None:
        return {}
    args: dict[str, Argument] = {
        "journal": _encode_note(note, changes, arguments),
        "journal_bounds": b"%d %d %d" % (SEGMENT_ENTRIES, SEGMENT_BYTES, JOURNAL_BYTES),
    }
    if note.head is not None:
        args["head"] = encode_head(note.head)
        if changes.new_memory is not None or changes.forked is not None:
            args["origin"] = encode_origin(note.head)
            index = f"{INDEX_KEPT} {due_score(note.head.started_at)} {conversation.conversation_id}"
            args["index"] = index.encode()
    if changes.forked is not None:
        args["forked"] = _encode_base(changes.forked)
        turns = changes.forked.turns
        args["forked_turns"] = _in_netstrings(
            [part for t in turns for part in (t.name.encode(), encode_turn(t))]
        )
    return args


def _encode_note(note: JournalNote, changes: Changes, arguments: Mapping[str, Argument]) -> bytes:
    """The entry of a commit but for what the script adds, which takes `at` from its beginning. `arguments`
    are those of the commit: what is encoded in them is taken as it is. JSON in UTF-8."""
    delta: dict[str, object] = {}
    if changes.session is not None and changes.new_memory is None and changes.forked is None:
        delta["session"] = session_delta(note.before, changes.session)  # a fork's state is the entry's base
    if changes.mining is not None:
        delta["mining"] = orjson.Fragment(cast("bytes", arguments["mining"]))
    if changes.previous_contacts or changes.rewrite_previous_contacts:
        contacts = cast("Sequence[bytes]", arguments.get("previous_contacts", ()))
        delta["previousContacts"] = [orjson.Fragment(each) for each in contacts]
        delta["rewritten"] = changes.rewrite_previous_contacts
    if changes.turn is not None and is_user_turn(changes.turn):
        delta["lastUserTurn"] = changes.turn.name
    reply = changes.reply
    return orjson.dumps(
        {
            "at": changes.now,
            "by": note.by,
            "revision": changes.expected_revision if changes.session is None else changes.session.revision,
            "input": {"op": note.asked.op, **note.asked.fields},
            "outcome": note.outcome,
            "delta": delta,
            "rationale": note.asked.rationale,
            "reply": crc32(reply.head) if reply.head and reply.tail is None else None,
        },
        option=orjson.OPT_UTC_Z,
    )


_DOCUMENTS = (b"session", b"tenant")


def _completed(stored: Iterable[tuple[bytes, bytes]]) -> _Fields:
    """The fields of an entry; what stands beside its text is in the text's delta then. Raises
    CallTheOperator `journal_unreadable`."""
    fields: dict[bytes, bytes] = {}
    delta: dict[str, Any] = {}
    try:
        for name, text in stored:
            part, dot, id = name.partition(b".")
            if name in _PACKED:
                fields[name] = text
            elif name in _DOCUMENTS:
                delta[name.decode()] = orjson.Fragment(text)
            else:
                flat = [id, text] if dot else list(_netstrings(text))
                entries = zip(flat[::2], flat[1::2], strict=True)
                delta.setdefault(part.decode(), {}).update(
                    (i.decode(), orjson.Fragment(e)) for i, e in entries
                )
        if delta:
            told = orjson.loads(fields[b"entry"])
            fields[b"entry"] = orjson.dumps({**told, "delta": {**delta, **told["delta"]}})
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable() from error
    return fields


def _unreadable() -> CallTheOperator:
    return CallTheOperator("journal_unreadable", "an entry of a journal does not fit its format")


class RedisJournal:
    """Implements `ReleasingJournal`. Raises what `Driver` raises."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._read = Script.read("read_journal")
        self._release = Script.read("release_journal")

    async def after(self, conversation: ConversationRef, seq: int, *, at_most: int) -> Sequence[JournalEntry]:
        return await self._entries(conversation, seq, min(at_most, ENTRIES_AT_MOST), "0")

    async def next(
        self, conversation: ConversationRef, seq: int, *, at_most: int, within_s: float
    ) -> Sequence[JournalEntry]:
        key = ConversationKeys.of(conversation).named["journal"]
        found = await self._driver.xread(key, f"{seq}-0", at_most=at_most, within_s=within_s)
        return [_decode(_seq(number.encode()), _completed(fields.items())) for number, fields in found]

    async def up_to(self, conversation: ConversationRef, seq: int) -> Sequence[JournalEntry]:
        found = await self._entries(conversation, seq, SEGMENT_ENTRIES, "1")
        return found[::-1] if found and found[0].seq == seq else ()

    async def newest(self, conversation: ConversationRef) -> Sequence[JournalEntry]:
        return (await self._entries(conversation, LARGEST_SEQ, SEGMENT_ENTRIES, "1"))[::-1]

    async def packed(self, conversation: ConversationRef) -> Sequence[ArchivedPart]:
        key = ConversationKeys.of(conversation).named["journal"]
        groups: list[list[_Stored]] = []
        seq = 0
        while page := await self._stored(key, seq, ENTRIES_AT_MOST, "0"):
            for seq, fields in page:
                if b"base" in fields or not groups:
                    groups.append([])
                groups[-1].append((seq, fields))
        return [_packed(group) for group in groups]

    def unpacked(self, part: ArchivedPart) -> Sequence[JournalEntry]:
        texts = list(_netstrings(decompress(part.content)))
        entries: list[JournalEntry] = []
        for at in range(0, len(texts), 1 + len(_PACKED)):
            fields = zip(_PACKED, texts[at + 1 : at + 1 + len(_PACKED)], strict=True)
            entries.append(_decode(int(texts[at]), {name: text for name, text in fields if text}))
        return entries

    async def release(self, conversation: ConversationRef, seq: int, *, kept: timedelta) -> bool:
        args = {"seq": seq, "kept_ms": kept // timedelta(milliseconds=1)}
        named = ConversationKeys.of(conversation).named
        return await self._driver.run(self._release, {n: named[n] for n in self._release.keys}, args) == 1

    async def released(self, conversation: ConversationRef) -> int | None:
        snapshot = ConversationKeys.of(conversation).named["snapshot"]
        revision, seq = await self._driver.hmget(snapshot, ("revision", "released"))
        return None if revision is None else int(seq or 0)

    async def _entries(
        self, conversation: ConversationRef, seq: int, at_most: int, backwards: str
    ) -> Sequence[JournalEntry]:
        key = ConversationKeys.of(conversation).named["journal"]
        return [_decode(*each) for each in await self._stored(key, seq, at_most, backwards)]

    async def _stored(self, key: str, seq: int, at_most: int, backwards: str) -> Sequence[_Stored]:
        args = {"seq": seq, "at_most": at_most, "backwards": backwards}
        found = await self._driver.run(self._read, {"journal": key}, args)
        return [(_seq(number), _completed(zip(flat[::2], flat[1::2], strict=True))) for number, flat in found]


def _seq(number: bytes) -> int:
    return int(number.partition(b"-")[0])


_Fields = Mapping[bytes, bytes]
_Stored = tuple[int, _Fields]
_PACKED = (b"memoryRevision", b"entry", b"base")


def _packed(group: Sequence[_Stored]) -> ArchivedPart:
    """Netstrings, compressed: of each entry its number and its fields, empty where it has not one."""
    (first, begins), (last, _) = group[0], group[-1]
    began = decode_instant(orjson.loads(begins[b"entry"])["at"].encode())
    texts = [text for seq, fields in group for text in (b"%d" % seq, *(fields.get(n, b"") for n in _PACKED))]
    return ArchivedPart(first, last, due_score(began), compress(_in_netstrings(texts)))


def _decode(seq: int, fields: Mapping[bytes, bytes]) -> JournalEntry:
    """Raises CallTheOperator `journal_unreadable`, and what decoding its parts raises."""
    try:
        stored = orjson.loads(fields[b"entry"])
        return JournalEntry(
            seq=seq,
            revision=stored["revision"],
            memory_revision=int(fields[b"memoryRevision"]),
            at=decode_instant(stored["at"].encode()),
            by=stored["by"],
            input=as_object(stored["input"]),
            outcome=as_object(stored["outcome"]),
            delta=as_object(stored["delta"]),
            rationale=stored["rationale"],
            reply_crc32=stored["reply"],
            base=_decode_base(fields[b"base"]) if b"base" in fields else None,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable() from error


def _encode_base(state: LoadedConversation) -> bytes:
    """As `whole_state` of commit.lua. Raises ValueError for a conversation that has not begun."""
    if state.session is None:
        raise ValueError("only a conversation that has begun has a whole state")
    mined, tools = (
        [part for id, entry in entries.items() for part in (id.encode(), encode_entry(entry))]
        for entries in (state.mined, state.tools)
    )
    previous = [encode_previous_contact(each) for each in state.previous_contacts]
    updated_at = state.memory_updated_at
    parts = [
        encode_session(state.session),
        b"%d" % state.memory_revision,
        b"" if updated_at is None else encode_instant(updated_at).encode(),
        (state.last_user_turn or "").encode(),
        encode_mining(state.mining) if state.mining_revision else b"",
        b"%d" % state.mining_revision,
        orjson.dumps(state.tenant),
    ]
    for flat in (mined, tools, previous):
        parts += (b"%d" % len(flat), *flat)
    return _in_netstrings(parts)


def _in_netstrings(parts: Sequence[bytes]) -> bytes:
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])


def _decode_base(stored: bytes) -> LoadedConversation:
    """What `whole_state` of commit.lua wrote."""
    parts = _netstrings(stored)
    session, memory_revision, updated_at, last_user_turn, mining, mining_revision, tenant = (
        next(parts) for _ in range(7)
    )
    mined, tools, previous = ([next(parts) for _ in range(int(next(parts)))] for _ in range(3))
    mined_entries, tools_entries = decode_entries(mined, tools)
    return LoadedConversation(
        session=decode_session(session),
        memory_revision=int(memory_revision or 0),
        memory_updated_at=decode_instant(updated_at) if updated_at else None,
        mined=mined_entries,
        tools=tools_entries,
        tenant=as_object(orjson.loads(tenant)),
        previous_contacts=tuple(map(decode_previous_contact, previous)),
        last_user_turn=last_user_turn.decode() or None,
        mining=decode_mining(mining) if mining else NOTHING_MINED,
        mining_revision=int(mining_revision or 0),
    )


def _netstrings(stored: bytes) -> Iterator[bytes]:
    """Raises ValueError for anything else."""
    at = 0
    while at < len(stored):
        colon = stored.index(b":", at)
        end = colon + 1 + int(stored[at:colon])
        yield stored[colon + 1 : end]
        at = end
