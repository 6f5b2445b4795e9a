"""Compares what clients were told with what is stored. Reads only; says everything that is wrong.

1. A key gets one answer, byte for byte.
2. Every revision from 1 to the snapshot's was handed out once: by a change of task, or by the contact
   that made it; and the events of the outbox tell the same revisions, each event once.
3. The task changes of the outbox form one chain, from the first task to the snapshot's.
4. Every memory revision from 1 to the stored one was handed out once; what a writer wrote last is stored.
5. A message is stored once, and was acknowledged as new at most once.
6. The keys of a conversation are there together and expire together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.storage import LoadedConversation
from memory.connection import RedisMemory
from memory.keys import ConversationKeys
from tests.resilience.flow import FIRST_TASK, TENANT
from tests.resilience.operations import ChangeTask, Exchange, NewContact, Operation, Say, WriteMemory
from tests.resilience.workload import Workload

# What a request may be refused with while others change the conversation.
FAIR_REFUSALS = frozenset({"revision_conflict", "contact_not_active", "contact_ended"})
EXPIRY_SPREAD_MS = 1_000

Kind = Literal["replay", "refusal", "lost", "doubled", "chain", "half written"]
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Breach:
    kind: Kind
    detail: str


@dataclass(frozen=True, slots=True)
class Stored:
    """`expiries`: milliseconds by the name of each key that exists."""

    loaded: LoadedConversation
    events: Sequence[Event]
    expiries: dict[str, int]

    @property
    def revision_of_last_event(self) -> int:
        return max((revision for revision, _ in system_events(self.events)), default=0)


async def read_stored(redis: RedisMemory, conversation: str) -> Stored:
    ref = ConversationRef(TENANT, conversation)
    keys = ConversationKeys.of(ref)
    loaded = await redis.conversations.load(ref, with_turns=True)
    entries = await redis.driver.client.xrange(keys.state[-1])
    expiries = {key.rpartition("::")[2]: int(await redis.driver.client.pttl(key)) for key in keys.state}
    events = [orjson.loads(fields[b"event"]) for _, fields in entries]
    return Stored(loaded, events, {name: expiry for name, expiry in expiries.items() if expiry != -2})


async def breaches_of(workload: Workload, redis: RedisMemory) -> list[Breach]:
    found = [Breach("lost", read) for read in workload.ledger.stale_reads]
    found += [
        Breach("refusal", "503 without Retry-After")
        for reply in workload.ledger.unavailable
        if reply.retry_after is None
    ]
    for conversation in workload.conversations:
        stored = await read_stored(redis, conversation)
        exchanges = workload.ledger.of(conversation)
        found += [Breach(b.kind, f"{conversation}: {b.detail}") for b in breaches(exchanges, stored)]
    return found


def breaches(exchanges: Sequence[Exchange], stored: Stored) -> Iterator[Breach]:
    yield from _replies(exchanges)
    acknowledged = list(_acknowledged(exchanges))
    yield from _revisions(acknowledged, stored)
    yield from _tasks(acknowledged, stored)
    yield from _memory(acknowledged, stored)
    yield from _messages(acknowledged, stored)
    yield from _contacts(acknowledged, stored)
    yield from wholeness(stored)


def system_events(events: Sequence[Event]) -> Iterator[tuple[int, Event]]:
    for event in events:
        if event["type"] == "system":
            yield int(event["eventId"].rsplit(":", 2)[1]), event


def _replies(exchanges: Sequence[Exchange]) -> Iterator[Breach]:
    first: dict[str, bytes] = {}
    for exchange in exchanges:
        reply, key = exchange.reply, exchange.key
        if reply.status != 200 and (reply.status != 409 or reply.json["code"] not in FAIR_REFUSALS):
            yield Breach("refusal", f"{exchange.operation}: {reply.status} {reply.body!r}")
        if reply.status == 200 and key is not None and first.setdefault(key, reply.body) != reply.body:
            yield Breach("replay", f"{exchange.operation} got two answers under key {key}")


def _acknowledged(exchanges: Sequence[Exchange]) -> Iterator[tuple[Operation, dict[str, Any]]]:
    """What was promised: one reply of each key, and every reply without one."""
    keys: set[str] = set()
    for exchange in exchanges:
        if exchange.reply.status == 200 and exchange.key not in keys:
            if exchange.key is not None:
                keys.add(exchange.key)
            yield exchange.operation, exchange.reply.json


def _once_each(what: str, numbers: Iterable[int], last: int) -> Iterator[Breach]:
    counted = Counter(numbers)
    for number, times in counted.items():
        if times > 1:
            yield Breach("doubled", f"{what} {number} was handed out {times} times")
        if number > last:
            yield Breach("lost", f"{what} {number} was handed out, stored is {last}")
    missing = [number for number in range(1, last + 1) if number not in counted]
    if missing:
        yield Breach("lost", f"{what}s {missing[:10]} were handed out to nobody")


def _revisions(acknowledged: Sequence[tuple[Operation, dict[str, Any]]], stored: Stored) -> Iterator[Breach]:
    changes = [reply["revision"] for op, reply in acknowledged if isinstance(op, ChangeTask)]
    made: dict[str, int] = {}  # a contact's first reply made the revision, the later ones only saw it
    for operation, reply in acknowledged:
        if isinstance(operation, NewContact):
            known = made.get(operation.contact, reply["revision"])
            made[operation.contact] = min(known, reply["revision"])
    yield from _once_each("revision", [*changes, *made.values()], stored.loaded.revision)
    told = {revision for revision, _ in system_events(stored.events)}
    yield from _once_each("event revision", told, stored.loaded.revision)
    for event_id, times in Counter(event["eventId"] for event in stored.events).items():
        if times > 1:
            yield Breach("doubled", f"event {event_id} was told {times} times")


def _tasks(acknowledged: Sequence[tuple[Operation, dict[str, Any]]], stored: Stored) -> Iterator[Breach]:
    task, revision = FIRST_TASK, 0
    verdicts: dict[int, str] = {}
    for number, event in system_events(stored.events):
        if number < revision:
            yield Breach("chain", f"an event of revision {number} came after one of {revision}")
        revision, body = number, event["body"]
        if body["subtype"] == "task_changed":
            if body["from"] != task:
                yield Breach("chain", f"revision {revision} left {body['from']!r}, active was {task!r}")
            task = body["to"]
            verdicts[revision] = f"to {task}"
        elif body["subtype"] == "task_refused":
            verdicts[revision] = f"not to {body['task']}"
    session = stored.loaded.session
    if session is None or session.task.task_id != task:
        yield Breach("chain", f"the events end in task {task!r}, the snapshot does not")
    for operation, reply in acknowledged:
        if isinstance(operation, ChangeTask):
            expected = f"to {operation.task}" if reply["result"] else f"not to {operation.task}"
            if verdicts.get(reply["revision"]) != expected:
                yield Breach(
                    "lost", f"{operation} was acknowledged at {reply['revision']}, no event tells it"
                )


def _memory(acknowledged: Sequence[tuple[Operation, dict[str, Any]]], stored: Stored) -> Iterator[Breach]:
    revisions: list[int] = []
    last: dict[str, tuple[int, int]] = {}
    for operation, reply in acknowledged:
        if isinstance(operation, WriteMemory):
            revisions.append(reply["memoryRevision"])
            for name, value in operation.values.items():
                last[name] = max(last.get(name, (0, 0)), (reply["memoryRevision"], value))
    yield from _once_each("memory revision", revisions, stored.loaded.memory_revision)
    for name, (_, value) in last.items():
        found = stored.loaded.tools.get(name)
        if found is None or found.value != value:
            yield Breach("lost", f"{name} is {found and found.value}, acknowledged was {value}")


def _messages(acknowledged: Sequence[tuple[Operation, dict[str, Any]]], stored: Stored) -> Iterator[Breach]:
    said = {op.message for op, _ in acknowledged if isinstance(op, Say)}
    fresh = Counter(
        op.message for op, reply in acknowledged if isinstance(op, Say) and not reply["duplicate"]
    )
    turns = Counter(turn.message_id for turn in stored.loaded.turns)
    names = [event["eventId"].rpartition(":")[2] for event in stored.events if event["type"] == "message"]
    told = [name.replace("%2F", "/").rpartition("/")[2] for name in names]  # of the contact, its message
    for message in said | turns.keys():
        if fresh[message] > 1 or turns[message] > 1:
            yield Breach("doubled", f"message {message}: new {fresh[message]}×, stored {turns[message]}×")
        if turns[message] == 0:
            yield Breach("lost", f"message {message} was acknowledged and is not stored")
    if told != [turn.message_id for turn in stored.loaded.turns]:
        yield Breach("chain", "the outbox tells other messages, or in another order, than are stored")


def _contacts(acknowledged: Sequence[tuple[Operation, dict[str, Any]]], stored: Stored) -> Iterator[Breach]:
    announced = {op.contact for op, _ in acknowledged if isinstance(op, NewContact)}
    started = Counter(
        event["contactId"]
        for _, event in system_events(stored.events)
        if event["body"]["subtype"] == "contact_started"
    )
    for contact in announced:
        if started[contact] != 1:
            kind: Kind = "doubled" if started[contact] else "lost"
            yield Breach(kind, f"contact {contact} was started {started[contact]} times")
    superseded, summed_up = len(started) - 1, len(stored.loaded.previous_contacts)
    if summed_up != superseded:
        kind = "lost" if summed_up < superseded else "doubled"
        yield Breach(kind, f"{superseded} contacts were superseded, {summed_up} summed up")


def wholeness(stored: Stored) -> Iterator[Breach]:
    expected = {"snapshot", "tenant", "convMiner", "tools", "outbox", "journal"}
    expected |= {"utterances", "messages"} if stored.loaded.turns else set()
    expected |= {"previousContacts"} if stored.loaded.previous_contacts else set()
    if stored.expiries.keys() - {"segments"} != expected:  # those are there once the journal is long
        yield Breach("half written", f"keys {sorted(stored.expiries)}, expected {sorted(expected)}")
    spread = max(stored.expiries.values()) - min(stored.expiries.values())
    if spread > EXPIRY_SPREAD_MS or min(stored.expiries.values()) < 0:
        yield Breach("half written", f"the keys do not expire together: {stored.expiries}")
    if stored.revision_of_last_event != stored.loaded.revision:
        told = f"the last event is of revision {stored.revision_of_last_event}"
        yield Breach("half written", f"{told}, the snapshot of {stored.loaded.revision}")
