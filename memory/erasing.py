"""Erasure of a conversation on Redis: its own keys by one script, and whatever lies outside of them.

forks           conversations that began with what this one held: erased as it is, each with its event
jobs            pending ones, their leases, dead letters
kept replies    by their Idempotency-Keys, but for the receipt
index           its place in the lists of its tenant
events          those that are in the reporting stream already; word of an erasure stays
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.runtime import storage
from flow_engine.runtime.events import erasure_event
from memory import codec
from memory.driver import Argument, Driver, Script
from memory.keys import (
    EVENTS_KEY,
    JOB_LEASES_KEY,
    JOBS_KEY,
    LETTER_KEYS,
    ConversationKeys,
    due_score,
    index_key,
    job_owner,
)
from memory.listing import forked_from

REPLY_LIFETIME_S = 24 * 60 * 60
ERASED_EVENT_LIFETIME_S = 24 * 60 * 60
EVENTS_AT_ONCE = 1_000
"""Of the reporting stream, that one script looks at."""
FORKS_AT_MOST = 10_000
EARLY_JOB_DELAY = timedelta(seconds=5)
"""Longer than a commit takes: a job that is written down before its commit is not due meanwhile."""


_FORGET_EVENTS = Script.read("forget_events")


class Eraser:
    """Raises what `Driver` raises; then a repetition goes on where this one was cut off."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._erase = Script.read("erase")
        self._erase_jobs = Script.read("erase_jobs")
        self._forget_listed = Script.read("forget_listed")

    async def erase(self, conversation: ConversationRef, erasure: storage.Erasure) -> bool:
        """False, and nothing is changed, where nothing is stored.

        First the forks and the jobs: a job that is left would find nothing to do, but tell the conversation's
        name. The forks once more behind it: one that began meanwhile has written its name down, or finds the
        original gone. What is outside is swept before, for a repetition would not find the conversation any
        more, and after: requests under way may have left something meanwhile.
        """
        keys = ConversationKeys.of(conversation)
        revision, origin = await self._driver.hmget(keys.named["snapshot"], ("revision", "origin"))
        if revision is None and not erasure.archived:
            return False
        original = None if origin is None else forked_from(origin)
        if original is not None:
            of_original = ConversationKeys.of(ConversationRef(conversation.tenant_id, original)).forks
            await self._driver.run(
                self._forget_listed, {"index": of_original}, {"ids": [conversation.conversation_id]}
            )
        await self._erase_forks(conversation, erasure)
        await self._forget_jobs(conversation)
        await self._sweep(conversation, spared="")
        relay = DueJob(Job("relay", conversation), erasure.now)
        if not self._driver.single_node:
            await self._write_down(DueJob(relay.job, erasure.now + EARLY_JOB_DELAY))
        receipt_key = keys.reply(erasure.idempotency.key if erasure.idempotency else None)
        erased = await self._erase_keys(keys, erasure, relay, receipt_key)
        if not self._driver.single_node:
            await self._write_down(relay)
        await self._erase_forks(conversation, erasure)
        await self._driver.delete([keys.forks])
        await self._sweep(conversation, spared=receipt_key)
        return erased

    async def _erase_keys(
        self, keys: ConversationKeys, erasure: storage.Erasure, relay: DueJob, receipt_key: str
    ) -> bool:
        script_keys = {
            **keys.named,
            "webhook_queue": keys.webhook_queue,
            "confirmation": keys.confirmation,
            "reply": receipt_key,
        }
        if self._driver.single_node:
            script_keys["jobs"] = JOBS_KEY
        key = erasure.idempotency
        args: Mapping[str, Argument] = {
            "event": erasure.event,
            "event_lifetime": ERASED_EVENT_LIFETIME_S,
            "receipt": codec.encode_reply_head(key.fingerprint, 200) + erasure.receipt if key else b"",
            "receipt_lifetime": REPLY_LIFETIME_S,
            "relay_due": due_score(relay.due_at),
            "relay_job": relay.job.name,
            "archived": "1" if erasure.archived else "0",
        }
        return bool(await self._driver.run(self._erase, script_keys, args, confirmed=True))

    async def _forget_jobs(self, conversation: ConversationRef) -> None:
        """Pending ones, their leases and dead letters."""
        of_jobs = {"jobs": JOBS_KEY, "leases": JOB_LEASES_KEY, **LETTER_KEYS}
        await self._driver.run(self._erase_jobs, of_jobs, {"owner": job_owner(conversation)})

    async def _erase_forks(self, conversation: ConversationRef, erasure: storage.Erasure) -> None:
        """An id that was taken by another conversation since is left."""
        key = ConversationKeys.of(conversation).forks
        for id, _ in await self._driver.zrange(key, at_most=FORKS_AT_MOST):
            fork = ConversationRef(conversation.tenant_id, id.decode())
            origin = await self._driver.hget(ConversationKeys.of(fork).named["snapshot"], "origin")
            if origin is not None and forked_from(origin) == conversation.conversation_id:
                event = erasure_event(fork, erasure.now)
                await self.erase(fork, storage.Erasure(event, b"", erasure.now))

    async def _sweep(self, conversation: ConversationRef, spared: str) -> None:
        """What lies outside of the conversation's own keys, but for the kept reply `spared`."""
        replies: Sequence[str] = [
            key async for key in self._driver.scan(ConversationKeys.of(conversation).replies)
        ]
        for key in replies:
            if key != spared:
                await self._driver.delete([key])
        listed = {"index": index_key(conversation.tenant_id)}
        await self._driver.run(self._forget_listed, listed, {"ids": [conversation.conversation_id]})
        await forget_events(self._driver, conversation)

    async def _write_down(self, due: DueJob) -> None:
        await self._driver.zadd(JOBS_KEY, {due.job.name: float(due_score(due.due_at))}, confirmed=True)


async def forget_events(driver: Driver, conversation: ConversationRef) -> None:
    """Takes a conversation's events out of the reporting stream, all but word of its erasures. Rare, so
    nothing is indexed: each event is looked at."""
    args = {"tenant": conversation.tenant_id, "conversation": conversation.conversation_id}
    after = "0-0"
    while after:
        part = {**args, "after": after, "at_most": EVENTS_AT_ONCE}
        after = (await driver.run(_FORGET_EVENTS, {"stream": EVENTS_KEY}, part)).decode()
