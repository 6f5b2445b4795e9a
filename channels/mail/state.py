"""What is remembered of a mailbox beside its runs, for all processes together: counts, and replies (M1, M15).

1. A count is one document of the table `mail_state`: who counts writes it by compare-and-set, so that of many
   at once none passes the bound. What is counted has a key, and the same key again counts once.
2. A reply that is to be sent is stored under its Message-ID before SMTP is spoken; later what became of it.
3. Both are forgotten in their time: counts after a day, replies when their run has ended and is old.
"""

import hashlib
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal, cast

from channels.mail.config import Limits
from channels.mail.runs import RunStore
from flow_engine.errors import RetryLater
from flow_engine.ports.records import Record, RecordStore, position_at
from flow_engine.values import JsonValue, utc_text

WINDOW: Final = timedelta(hours=24)
REMEMBERED: Final = timedelta(days=7)
"""A reply's document after its last change, at least."""

ATTEMPTS: Final = 50
PAGE: Final = 500

OutboxState = Literal["intent", "sent", "drafted"]


class MailboxState:
    """The state of one mailbox. Implements `ports.Allowance`: addresses and threads are stored as digests,
    counts hold for 24 hours. `runs` are those of the same installation. Every method raises RetryLater when
    the store is away."""

    def __init__(self, records: RecordStore, runs: RunStore, limits: Limits, mailbox: str) -> None:
        self._records = records
        self._runs = runs
        self._limits = limits
        self._mailbox = mailbox

    # --- counts

    async def reply(self, message_id: str, thread: str, recipients: Collection[str]) -> str | None:
        per_person, per_thread = self._limits.replies_per_correspondent, self._limits.replies_per_thread
        for address in sorted({address.lower() for address in recipients}):
            if await self._count("to", address, message_id, 1, per_person) is None:
                await self.unsent(message_id, thread, recipients)
                return f"a recipient has had {per_person} replies in 24 hours"
        if await self._count("thread", thread, message_id, 1, per_thread) is None:
            await self.unsent(message_id, thread, recipients)
            return f"the thread has had {per_thread} replies in 24 hours"
        return None

    async def unsent(self, message_id: str, thread: str, recipients: Collection[str]) -> None:
        for address in sorted({address.lower() for address in recipients}):
            await self._count("to", address, message_id, 0, None)
        await self._count("thread", thread, message_id, 0, None)

    async def run(self, run_id: str, sender: str) -> str | None:
        most = self._limits.runs_per_sender
        if await self._count("from", sender.lower(), run_id, 1, most) is None:
            return f"the sender has had {most} runs in 24 hours"
        return None

    async def tokens(self, run_id: str, sender: str, tokens: int) -> str | None:
        most = self._limits.tokens_per_sender
        total = await self._count("tokens", sender.lower(), run_id, tokens, None)
        return None if (total or 0) <= most else f"the sender has used {most} tokens in 24 hours"

    async def _count(self, kind: str, subject: str, key: str, amount: int, most: int | None) -> int | None:
        """The sum with `amount` for the key, in place of what it was; None, and nothing is counted, where it
        would be over `most`."""
        digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        name, parent = f"count:{self._mailbox}:{kind}:{digest}", f"counts:{self._mailbox}"
        for _ in range(ATTEMPTS):
            now = self._runs.clock.now()
            record = await self._records.get(self._runs.tenant_id, name)
            stored = {} if record is None else record.body.get("counted", {})
            counted = cast("Mapping[str, list[float]]", stored)
            recent: dict[str, JsonValue] = {
                each: [at, number]
                for each, (at, number) in counted.items()
                if at > (now - WINDOW).timestamp() and each != key
            }
            total = sum(int(cast("list[float]", each)[1]) for each in recent.values()) + amount
            if counted.get(key, [0, 0])[1] == amount:
                return total
            if most is not None and total > most:
                return None
            body: dict[str, JsonValue] = {"counted": {**recent, key: [now.timestamp(), amount]}}
            if await self._write(name, body, parent, record):
                return total
        raise RetryLater("mail_count_contended", "a count is being changed by many at once")

    # --- replies

    async def intend(self, message_id: str) -> Mapping[str, JsonValue] | None:
        """Store that this reply is to be sent: None, and it is this caller who sends it. Else what is stored
        of it, `{state, reason?}` with a state of `OutboxState`, and nothing is changed."""
        name = self._reply(message_id)
        body: dict[str, JsonValue] = {"state": "intent", "message_id": message_id}
        if await self._write(name, body, f"outbox:{self._mailbox}", None):
            return None
        found = await self._records.get(self._runs.tenant_id, name)
        return body if found is None else found.body

    async def became(self, message_id: str, state: OutboxState, reason: str | None) -> None:
        """Store what became of it; where another has said so meanwhile, that stays."""
        name = self._reply(message_id)
        body: dict[str, JsonValue] = {"state": state, "reason": reason, "message_id": message_id}
        found = await self._records.get(self._runs.tenant_id, name)
        await self._write(name, body, f"outbox:{self._mailbox}", found)

    def _reply(self, message_id: str) -> str:
        digest = hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"outbox:{self._mailbox}:{digest}"

    async def _write(
        self, name: str, body: Mapping[str, JsonValue], parent: str, before: Record | None
    ) -> bool:
        """False where the document is another than `before`."""
        now = self._runs.clock.now()
        serial = 1 if before is None else before.serial + 1
        stamped: dict[str, JsonValue] = {**body, "at": utc_text(now)}
        record = Record(name, stamped, parent, position_at(now), serial)
        if before is None:
            return await self._records.insert(self._runs.tenant_id, record)
        return await self._records.replace(self._runs.tenant_id, record, before.serial)

    # --- forgetting

    async def prune(self) -> int:
        """Delete counts of more than 24 hours, and replies of `REMEMBERED` days whose run has ended: how many
        documents."""
        now = self._runs.clock.now()
        counts = await self._old(f"counts:{self._mailbox}", now - WINDOW)
        replies = await self._old(f"outbox:{self._mailbox}", now - REMEMBERED)
        under_way = {run.id for run in await self._runs.under_way()} if replies else set[str]()
        # A reply's Message-ID begins with its run (`composing.new_message_id`).
        gone = counts + [
            reply
            for reply in replies
            if str(reply.body.get("message_id", "")).lstrip("<").partition(".")[0] not in under_way
        ]
        return sum([await self._records.delete(self._runs.tenant_id, each.id, each.serial) for each in gone])

    async def _old(self, parent: str, before: datetime) -> list[Record]:
        """Those that were written last before that moment."""
        found: list[Record] = []
        after, bound = None, position_at(before)
        while page := await self._records.list(self._runs.tenant_id, parent, after=after, limit=PAGE):
            found += [record for record in page if record.position <= bound]
            if page[-1].position > bound:
                break
            after = (page[-1].position, page[-1].id)
        return found
