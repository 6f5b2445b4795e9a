"""Many clients on few conversations, and a ledger of every reply that they got.

A client knows its own variables only, so that what it wrote last is what must be stored. It announces
contacts twice, repeats messages, and sends keyed requests again, to the same and to another process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.resilience.flow import TASKS, WRITERS, count_of, twin_of
from tests.resilience.operations import (
    ChangeTask,
    Engine,
    Exchange,
    NewContact,
    Operation,
    ReadMemory,
    Reply,
    Say,
    Unanswered,
    WriteMemory,
)

CONVERSATIONS = 8
CLIENTS = CONVERSATIONS * WRITERS
PAUSE_BETWEEN_TRIES_S = 0.05
LONGEST_OPERATION_S = 40.0


@dataclass
class Ledger:
    """`stale_reads`: replies that did not show what their reader had been acknowledged before."""

    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    stale_reads: list[str] = field(default_factory=list[str])
    unavailable: list[Reply] = field(default_factory=list[Reply])
    unanswered: int = 0

    def of(self, conversation: str) -> list[Exchange]:
        return [e for e in self.exchanges if e.operation.conversation == conversation]

    @property
    def conflicts(self) -> int:
        return sum(is_conflict(exchange.reply) for exchange in self.exchanges)

    def summary(self) -> str:
        statuses = Counter(exchange.reply.status for exchange in self.exchanges)
        mutating = sum(not isinstance(exchange.operation, ReadMemory) for exchange in self.exchanges)
        ratio = self.conflicts / max(mutating, 1)
        away = f"{len(self.unavailable)} unavailable, {self.unanswered} unanswered"
        return f"{dict(statuses)}, {self.conflicts} revision conflicts of {mutating} ({ratio:.2%}), {away}"


def is_conflict(reply: Reply) -> bool:
    return reply.status == 409 and reply.json["code"] == "revision_conflict"


@dataclass
class Workload:
    """`prefix` keeps the conversations of two workloads apart. With `keep_trying`, clients send what was
    not answered, or answered 503, again until it is, as their users would: then every mutation has a key,
    or is a message with its id. Without, whatever comes is the answer. `rest_s` is what a client waits
    between two operations: it leaves a processor to the processes that have to start meanwhile."""

    engine: Engine
    prefix: str
    keep_trying: bool = False
    rest_s: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    contacts: dict[str, str] = field(default_factory=dict[str, str])
    _contact_numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def conversations(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(CONVERSATIONS)]

    async def run(self, operations: int) -> Ledger:
        """So many operations by every client."""
        return await self._run(lambda done: done < operations)

    async def run_during(self, events: Coroutine[Any, Any, None]) -> Ledger:
        """Operations until `events` has returned."""
        running = asyncio.create_task(events)
        ledger = await self._run(lambda done: not running.done())
        await running
        return ledger

    async def _run(self, going_on: Callable[[int], bool]) -> Ledger:
        clients = [_Client(self, number) for number in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(going_on))
        return self.ledger

    def next_contact(self) -> str:
        return f"contact-{next(self._contact_numbers)}"


class _Client:
    def __init__(self, workload: Workload, number: int) -> None:
        self._workload = workload
        self._number = number
        self._conversation = workload.conversations[number % CONVERSATIONS]
        self._writer = number // CONVERSATIONS
        self._random = Random(number)
        self._numbers = itertools.count(1)
        self._written = 0

    async def run(self, going_on: Callable[[int], bool]) -> None:
        contacts = self._workload.contacts
        contacts.setdefault(self._conversation, self._workload.next_contact())
        await self._ask(NewContact(self._conversation, contacts[self._conversation]), keyed=self._must_key)
        done = 0
        while going_on(done):
            async with asyncio.timeout(LONGEST_OPERATION_S):
                await self._something()
            done += 1
            await asyncio.sleep(self._workload.rest_s)

    @property
    def _must_key(self) -> bool:
        return self._workload.keep_trying

    async def _something(self) -> None:
        contact = self._workload.contacts[self._conversation]
        keyed = self._must_key or self._random.random() < 0.5
        choice = self._random.random()
        if choice < 0.30:
            await self._ask(ChangeTask(self._conversation, contact, self._random.choice(TASKS)), keyed=keyed)
        elif choice < 0.62:
            await self._write(contact, keyed)
        elif choice < 0.78:
            await self._say(contact)
        elif choice < 0.86:
            await self._ask(NewContact(self._conversation, contact), keyed=self._must_key)
        elif choice < 0.87:
            await self._take_over()
        else:
            await self._read()

    async def _write(self, contact: str, keyed: bool) -> None:
        number = next(self._numbers)
        values = {count_of(self._writer): number, twin_of(self._writer): number}
        write = WriteMemory(self._conversation, contact, f"tool-{self._number}", values)
        if (await self._ask(write, keyed=keyed)).status == 200:
            self._written = number

    async def _say(self, contact: str) -> None:
        keyed = self._random.random() < 0.5  # a message may always be repeated: it has its id
        message = f"m-{self._number}-{next(self._numbers)}"
        said = Say(self._conversation, contact, message)
        if self._random.random() < 0.25:  # the sender's own retry overtakes it
            await asyncio.gather(*(self._ask(said, keyed=keyed) for _ in range(2)))
        else:
            await self._ask(said, keyed=keyed)

    async def _take_over(self) -> None:
        """A new contact, announced by two processes at the same time."""
        contact = self._workload.next_contact()
        announced = NewContact(self._conversation, contact)
        replies = await asyncio.gather(*(self._ask(announced, keyed=self._must_key) for _ in range(2)))
        if any(reply.status == 200 for reply in replies):
            self._workload.contacts[self._conversation] = contact

    async def _read(self) -> None:
        reply = await self._ask(ReadMemory(self._conversation), keyed=False)
        if reply.status != 200:
            return
        values = {var["varId"]: var["value"] for var in reply.json["vars"]}
        seen = (values[count_of(self._writer)], values[twin_of(self._writer)])
        expected = (self._written or None,) * 2
        if seen != expected:
            self._workload.ledger.stale_reads.append(f"client {self._number}: {seen}, wrote {expected}")

    async def _ask(self, operation: Operation, *, keyed: bool) -> Reply:
        """Sometimes a keyed request goes to every process at once, or once more to another one."""
        processes = range(self._workload.engine.processes)
        process = self._random.choice(processes)
        if not keyed:
            return await self._send(process, operation, None)
        key = f"k-{self._workload.prefix}-{self._number}-{next(self._numbers)}"
        choice = self._random.random()
        if choice < 0.15:
            replies = await asyncio.gather(*(self._send(p, operation, key) for p in processes))
            return min(replies, key=lambda reply: reply.status)
        reply = await self._send(process, operation, key)
        if choice < 0.35:
            return await self._send(self._random.choice(processes), operation, key)
        return reply

    async def _send(self, process: int, operation: Operation, key: str | None) -> Reply:
        workload, ledger = self._workload, self._workload.ledger
        while True:
            try:
                reply = await workload.engine.send(process, operation, key)
            except Unanswered:
                ledger.unanswered += 1
                if not workload.keep_trying:
                    raise
            else:
                if reply.status == 503:
                    ledger.unavailable.append(reply)
                else:
                    ledger.exchanges.append(Exchange(operation, key, reply))
                if not workload.keep_trying or not (reply.status == 503 or is_conflict(reply)):
                    return reply
            await asyncio.sleep(PAUSE_BETWEEN_TRIES_S)
            process = self._random.randrange(workload.engine.processes)
