"""Erasure of a conversation on Redis: its own keys by one script, and whatever lies outside of them.

1. The script that deletes the keys sets a fence beside them: while it stands, nobody begins under the id, so
   that whatever is found by the id belongs to what is erased.
2. What follows is done by the request, or by whoever finds the fence: a repetition, a job of a minute later.
   It may be done again, and by several at once; who is not the first to be done finds the fence gone.
3. The fence goes last.

forks           conversations that began with what this one held: erased as it is, each with its event
jobs            pending ones, their leases, dead letters
kept replies    by their Idempotency-Keys, but for the receipt
index           its place in the lists of its tenant
events          those that are in the reporting stream already; word of an erasure stays
"""

from collections.abc import Mapping, Set
from datetime import datetime, timedelta
from uuid import uuid4

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job
from flow_engine.runtime import storage
from flow_engine.runtime.events import erasure_event
from memory import codec
from memory.driver import Argument, Driver, Script
from memory.keys import (
    DEAD_LETTER_TEXTS_KEY,
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
FENCE_LIFETIME_S = 24 * 60 * 60
FINISHED_AFTER = timedelta(minutes=1)
"""When the job looks whether an erasure was cut off; most take seconds."""
EVENTS_AT_ONCE = 1_000
"""Of the reporting stream, that one script looks at."""
KEYS_AT_ONCE = 1_000
JOBS_AT_ONCE = 1_000
"""That one script looks at: every conversation may have a job that is due in days."""
FORKS_AT_MOST = 10_000
EARLY_JOB_DELAY = timedelta(seconds=5)
"""Longer than a commit takes: a job that is written down before its commit is not due meanwhile."""


_FORGET_EVENTS = Script.read("forget_events")
_NEWEST = {"before": "", "at_most": 1, "examined": 1, "tenant": ""}


class Eraser:
    """Raises what `Driver` raises; then a repetition goes on where this one was cut off, or the job does."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._erase = Script.read("erase")
        self._find_jobs = Script.read("find_jobs")
        self._erase_jobs = Script.read("erase_jobs")
        self._forget_listed = Script.read("forget_listed")
        self._latest = Script.read("latest_entries")
        self._end = Script.read("end_erasure")

    async def erase(
        self, conversation: ConversationRef, erasure: storage.Erasure, within: Set[str] = frozenset()
    ) -> bool:
        """False, and nothing is changed, where nothing is stored. `within`: ids whose erasures this is part
        of.

        The forks before, so that the fence of the original stands for less long, and once more behind it: one
        that began meanwhile has written its name down, or finds the original gone.
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
        await self._erase_forks(conversation, erasure.now, erasure.elsewhere, within)
        erased = await self._erase_keys(conversation, erasure)
        await self.finish(conversation, erasure.now, erasure.elsewhere, within)
        return erased

    async def finish(
        self,
        conversation: ConversationRef,
        now: datetime,
        elsewhere: storage.RemoveElsewhere,
        within: Set[str] = frozenset(),
    ) -> None:
        """What is outside of the conversation's own keys, while its fence stands. `now` is in UTC."""
        keys = ConversationKeys.of(conversation)
        fence = await self._driver.get(keys.erasing)
        if fence is None:
            return
        await self._erase_forks(conversation, now, elsewhere, within)
        await self._sweep(keys, conversation, fence)
        jobs, letters = await self._jobs_of(conversation)
        if await self._driver.get(keys.erasing) == fence:
            await self._forget_jobs(jobs, letters)
            await elsewhere(conversation)
            await self._end_erasure(keys, conversation, fence, now)

    async def _erase_keys(self, conversation: ConversationRef, erasure: storage.Erasure) -> bool:
        keys, key = ConversationKeys.of(conversation), erasure.idempotency
        due = (
            DueJob(Job("relay", conversation), erasure.now),
            DueJob(Job("erase", conversation), erasure.now + FINISHED_AFTER),
        )
        script_keys = {
            **keys.named,
            "webhook_queue": keys.webhook_queue,
            "confirmation": keys.confirmation,
            "reply": keys.reply(key.key if key else None),
            "erasing": keys.erasing,
        }
        if self._driver.single_node:
            script_keys["jobs"] = JOBS_KEY
        else:
            early = erasure.now + EARLY_JOB_DELAY
            await self._write_down(*(DueJob(each.job, max(each.due_at, early)) for each in due))
        args: Mapping[str, Argument] = {
            "event": erasure.event,
            "event_lifetime": ERASED_EVENT_LIFETIME_S,
            "receipt": codec.encode_reply_head(key.fingerprint, 200) + erasure.receipt if key else b"",
            "receipt_lifetime": REPLY_LIFETIME_S,
            "fence": f"{uuid4().hex} {script_keys['reply']}",
            "fence_lifetime": FENCE_LIFETIME_S,
            "archived": "1" if erasure.archived else "0",
            "due": [part for each in due for part in (due_score(each.due_at), each.job.name)],
        }
        return bool(await self._driver.run(self._erase, script_keys, args, confirmed=True))

    async def _end_erasure(
        self, keys: ConversationKeys, conversation: ConversationRef, fence: bytes, now: datetime
    ) -> None:
        """The fence goes before the job that would have finished it: nobody else would take it away."""
        relay, job = DueJob(Job("relay", conversation), now), Job("erase", conversation)
        script_keys = {"erasing": keys.erasing}
        if self._driver.single_node:
            script_keys["jobs"] = JOBS_KEY
        else:
            await self._write_down(relay)
        args = {
            "fence": fence,
            "relay_due": due_score(relay.due_at),
            "relay_job": relay.job.name,
            "finish_job": job.name,
        }
        ended = await self._driver.run(self._end, script_keys, args)
        if ended and not self._driver.single_node:
            await self._driver.run(self._forget_listed, {"index": JOBS_KEY}, {"ids": [job.name]})

    async def _jobs_of(self, conversation: ConversationRef) -> tuple[Set[str], Set[str]]:
        """The names of its jobs, pending or held, but for those of the erasure itself, and the ids of its
        dead letters."""
        owner = job_owner(conversation)
        pending = await self._owned("ZSCAN", JOBS_KEY, owner, f"*{owner}*")
        held = await self._owned("HSCAN", JOB_LEASES_KEY, owner, f"*{owner}*")
        letters = await self._owned("HSCAN", DEAD_LETTER_TEXTS_KEY, owner, "*")
        return (pending | held) - {Job("relay", conversation).name, Job("erase", conversation).name}, letters

    async def _owned(self, scan: str, collection: str, owner: str, named: str) -> Set[str]:
        owned = set[str]()
        args = {"scan": scan, "cursor": "0", "named": named, "at_most": JOBS_AT_ONCE, "owner": owner}
        while True:
            cursor, *found = await self._driver.run(self._find_jobs, {"collection": collection}, args)
            owned.update(name.decode() for name in found)
            if cursor == b"0":
                return owned
            args["cursor"] = cursor

    async def _forget_jobs(self, names: Set[str], letters: Set[str]) -> None:
        of_jobs = {"jobs": JOBS_KEY, "leases": JOB_LEASES_KEY, **LETTER_KEYS}
        await self._driver.run(self._erase_jobs, of_jobs, {"names": [*names], "ids": [*letters]})

    async def _erase_forks(
        self,
        conversation: ConversationRef,
        now: datetime,
        elsewhere: storage.RemoveElsewhere,
        within: Set[str],
    ) -> None:
        """Those of forks before the forks. An id that was taken by another conversation since is left; an
        erasure of one that was cut off is finished. By ids that were used again, forks may go round in a
        circle."""
        known, found = {*within, conversation.conversation_id}, [(conversation, False)]
        for original, _ in found:  # which grows by what was forked from each
            key = ConversationKeys.of(original).forks
            for id, _ in await self._driver.zrange(key, at_most=FORKS_AT_MOST):
                fork = ConversationRef(original.tenant_id, id.decode())
                if fork.conversation_id in known:
                    continue
                origin = await self._driver.hget(ConversationKeys.of(fork).named["snapshot"], "origin")
                if origin is None or forked_from(origin) == original.conversation_id:
                    known.add(fork.conversation_id)
                    found.append((fork, origin is not None))
        for fork, is_there in reversed(found[1:]):
            if is_there:
                erasure = storage.Erasure(erasure_event(fork, now), b"", now, elsewhere=elsewhere)
                await self.erase(fork, erasure, known)
            else:
                await self.finish(fork, now, elsewhere, known)

    async def _sweep(self, keys: ConversationKeys, conversation: ConversationRef, fence: bytes) -> None:
        """Kept replies but for the receipt, the lists and the events. Looking for them takes seconds: what is
        found is deleted only if the fence stands after that."""
        spared = fence.decode().partition(" ")[2]
        replies = {key async for key in self._driver.scan(keys.replies)} - {spared}
        _, newest = await self._driver.run(self._latest, {"stream": EVENTS_KEY}, _NEWEST)
        if await self._driver.get(keys.erasing) != fence:
            return
        gone = [keys.forks, *replies]
        for first in range(0, len(gone), KEYS_AT_ONCE):
            await self._driver.delete(gone[first : first + KEYS_AT_ONCE])
        listed = {"index": index_key(conversation.tenant_id)}
        await self._driver.run(self._forget_listed, listed, {"ids": [conversation.conversation_id]})
        if newest:
            await forget_events(self._driver, conversation, last=newest[0][0].decode())

    async def _write_down(self, *due: DueJob) -> None:
        scores = {each.job.name: float(due_score(each.due_at)) for each in due}
        await self._driver.zadd(JOBS_KEY, scores, confirmed=True)


async def forget_events(driver: Driver, conversation: ConversationRef, *, last: str = "+") -> None:
    """Takes a conversation's events up to the id `last` out of the reporting stream, all but word of its
    erasures. Rare, so nothing is indexed: each event is looked at."""
    args = {"last": last, "tenant": conversation.tenant_id, "conversation": conversation.conversation_id}
    after = "0-0"
    while after:
        part = {**args, "after": after, "at_most": EVENTS_AT_ONCE}
        after = (await driver.run(_FORGET_EVENTS, {"stream": EVENTS_KEY}, part)).decode()
