"""What a commit writes, as the arguments of commit.lua."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import orjson

from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef, DialogueTurn, is_user_turn
from flow_engine.runtime import storage
from flow_engine.runtime.memory import MemoryEntry, encode_entry, encode_previous_contact
from flow_engine.runtime.mining_state import encode_mining
from flow_engine.runtime.session import encode_session
from memory import codec
from memory.driver import Argument, Value
from memory.erasing import REPLY_LIFETIME_S
from memory.journal import journal_arguments
from memory.keys import due_score

TURNS_KEPT = 1_000
"""The newest messages of a conversation, as far as MAX_TURN_BYTES hold them."""
MESSAGES_KEPT = 10_000
"""So many messages are known again, at least half as many: beyond it the older half is forgotten."""

HELD_ARGUMENTS = frozenset(
    {
        "new_tenant",
        "new_variables",
        "added_variables",
        "set_tools",
        "set_mined",
        "previous_contacts",
        "mining",
    }
)
"""Those of which a process holds a decoded copy, beside the session."""


def commit_arguments(
    conversation: ConversationRef, changes: storage.Changes, stamp: bytes
) -> dict[str, Argument]:
    """By the names that commit.lua has for them; what is not wanted is left out. Those that most commits have
    are bytes: that is how they are sent."""
    args: dict[str, Argument] = {
        "expected_revision": b"%d" % changes.expected_revision,
        "lifetime": b"%d" % changes.lifetime_s,
        "stamp": stamp,
    }
    session, new_memory = changes.session, changes.new_memory
    if changes.expected_state:
        args["expected_state"] = changes.expected_state  # which has the revisions of memory and mining too
    elif changes.expected_memory_revision is not None:
        args["expected_memory_revision"] = b"%d" % changes.expected_memory_revision
    if session is not None:
        args["new_revision"] = b"%d" % session.revision
        args["session"] = encode_session(session)
        args["version_id"] = session.version_id.encode()
    if new_memory is not None:
        args["reset"] = b"1"
        args["new_tenant"] = orjson.dumps(new_memory.tenant)
        args["new_variables"] = _flat_shared(new_memory.variables)
    if changes.set_tools:
        args["set_tools"] = _flat(changes.set_tools)
    if changes.set_mined:
        args["set_mined"] = _flat(changes.set_mined)
    if changes.added_variables:
        args["added_variables"] = _flat_shared(changes.added_variables)
    if changes.set_tools or changes.set_mined or new_memory is not None:
        # That the memory has changed, but for its revision, which the script knows.
        revision = changes.expected_revision if session is None else session.revision
        told = orjson.dumps(conversation.conversation_id), revision
        args["notice_head"] = b'{"conversationId":%b,"revision":%d,"memoryRevision":' % told
        if changes.journal is None:  # else the entry tells when
            args["now"] = codec.encode_instant(changes.now).encode()
    if changes.events:
        args["events"] = changes.events
    if changes.jobs:
        due = changes.jobs
        args["jobs"] = [part for d in due for part in (b"%d" % due_score(d.due_at), d.job.name.encode())]
    if changes.idempotency is not None:
        args |= _kept_reply(changes, changes.idempotency)
    args |= _seldom(changes)
    args |= journal_arguments(conversation, changes, args)
    return args


def _seldom(changes: storage.Changes) -> dict[str, Argument]:
    """Of the arguments those that few commits have."""
    args: dict[str, Argument] = {}
    if changes.previous_contacts:
        args["previous_contacts"] = [encode_previous_contact(each) for each in changes.previous_contacts]
    if changes.rewrite_previous_contacts:
        args["rewrite_previous"] = "1"
    if changes.turn is not None:
        args |= _message(changes.turn)
    if changes.late is not None:
        args |= {**_message(changes.late), "turn": b"", "is_user_turn": "0"}
    if changes.mining is not None:
        args["mining"] = encode_mining(changes.mining)
    if changes.expected_mining_revision is not None and not changes.expected_state:
        args["expected_mining_revision"] = changes.expected_mining_revision
    if changes.former is not None:
        args["former_name"] = changes.former.name
        args["former"] = codec.encode_former(changes.former)
    if changes.forget_former is not None:
        args["forget_former"] = changes.forget_former
    if changes.trace is not None:
        args["trace"] = changes.trace
    return args


def _kept_reply(changes: storage.Changes, idempotency: IdempotencyKey) -> Mapping[str, Argument]:
    """What a repetition of the request will get."""
    reply, seen = changes.reply, changes.on_seen
    args: dict[str, Argument] = {
        "reply_prefix": codec.encode_reply_head(idempotency.fingerprint, reply.status),
        "reply_lifetime": REPLY_LIFETIME_S,
        "reply_head": reply.head,
    }
    if reply.tail is not None:
        args |= {"reply_has_tail": "1", "reply_tail": reply.tail}
    if seen is not None:
        args["reply_when_seen"] = codec.encode_reply_head(idempotency.fingerprint, seen.status) + seen.head
    return args


def _message(turn: DialogueTurn) -> Mapping[str, Argument]:
    return {
        "message_id": turn.message_id,
        "message": turn.name,
        "turn": codec.encode_turn(turn),
        "turns_kept": TURNS_KEPT,
        "turn_bytes_kept": storage.MAX_TURN_BYTES,
        "messages_kept": MESSAGES_KEPT,
        "is_user_turn": "1" if is_user_turn(turn) else "0",
    }


def weight(arguments: Mapping[str, Any], names: frozenset[str]) -> int:
    """The bytes of these arguments, which are texts and lists of texts, as far as they are there."""
    weight = 0
    for name in names.intersection(arguments):
        value = arguments[name]
        weight += len(value) if isinstance(value, bytes) else sum(map(len, value))
    return weight


def _flat(entries: Mapping[str, MemoryEntry]) -> Sequence[Value]:
    """Id, entry, id, entry, …"""
    return [part for var_id, entry in entries.items() for part in (var_id.encode(), encode_entry(entry))]


def _flat_shared(entries: Mapping[str, MemoryEntry]) -> Sequence[Value]:
    """As `_flat`, of many: an entry that several variables share, as all empty ones of a type do, is encoded
    once."""
    each = [*entries.values()]
    distinct = dict(zip(map(id, each), each, strict=True))
    texts = {number: encode_entry(entry) for number, entry in distinct.items()}
    shared = map(texts.__getitem__, map(id, each))
    return [*chain.from_iterable(zip(map(str.encode, entries), shared, strict=True))]
