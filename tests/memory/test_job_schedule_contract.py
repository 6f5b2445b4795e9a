"""What every job schedule and its dead letters promise, on each way to open Redis (F41)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.errors import RetryLater
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Claim, DueJob, Job, JobKind
from memory.connection import RedisMemory, connect
from memory.in_process import embedded
from memory.keys import (
    DEAD_LETTER_TEXTS_KEY,
    DEAD_LETTERS_KEY,
    JOB_LEASES_KEY,
    JOBS_KEY,
    due_score,
)
from memory.operations import RedisOperations
from memory.schedule import MOST_LETTERS, RedisDeadLetters, RedisJobSchedule
from tests.memory.conversation_samples import Conversation
from tests.redis_fixture import RedisServer, StartRedis, client_of

pytestmark = pytest.mark.anyio

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE_S = 15.0
KEYS = (JOBS_KEY, JOB_LEASES_KEY, DEAD_LETTERS_KEY, DEAD_LETTER_TEXTS_KEY)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def job(conversation_id: str = "c", kind: JobKind = "mine", subject: str = "") -> Job:
    return Job(kind, ConversationRef("tenant", conversation_id), subject)


@dataclass(frozen=True, slots=True)
class Place:
    """A schedule with its dead letters, on one store."""

    store: RedisMemory
    schedule: RedisJobSchedule
    letters: RedisDeadLetters

    async def put(self, *jobs: Job, at: datetime = T0) -> None:
        """As a commit does."""
        await client_of(self.store).zadd(JOBS_KEY, {job.name: due_score(at) for job in jobs})

    async def claim(self, at: datetime = T0, at_most: int = 100) -> Sequence[Claim]:
        return await self.schedule.claim(at, at_most=at_most, lease_s=LEASE_S)

    async def claim_one(self, at: datetime = T0) -> Claim:
        (claim,) = await self.claim(at)
        return claim

    async def due(self) -> Mapping[str, float]:
        return {
            name.decode(): score
            for name, score in await client_of(self.store).zrange(JOBS_KEY, 0, -1, withscores=True)
        }

    async def empty(self) -> bool:
        return not await self.due() and not await client_of(self.store).hgetall(JOB_LEASES_KEY)


@pytest.fixture(params=["embedded", "standalone", "cluster"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "embedded":
        opened = embedded()
    else:
        name = "redis_cluster" if request.param == "cluster" else "redis_server"
        server: RedisServer = request.getfixturevalue(name)
        opened = connect(server.url, cluster=request.param == "cluster")
        await client_of(opened).delete(*KEYS)
    yield Place(opened, RedisJobSchedule(opened.driver), RedisDeadLetters(opened.driver))
    if request.param != "embedded":
        await client_of(opened).delete(*KEYS)
    await opened.close()


class TestClaiming:
    async def test_nothing_is_due_before_its_time(self, place: Place) -> None:
        await place.put(job(), at=after(1))
        assert await place.claim(after(0.999)) == []
        assert [claim.job for claim in await place.claim(after(1))] == [job()]

    async def test_what_a_commit_wrote_down_is_claimed(self, place: Place) -> None:
        talk = Conversation.fresh(place.store)
        due = DueJob(Job("conclude", talk.ref, "call 1"), after(2))
        await talk.start(jobs=(due,))
        assert await place.claim(after(1.9)) == []
        assert (await place.claim_one(after(2))).job == due.job

    async def test_the_longest_due_come_first_and_no_more_than_asked_for(self, place: Place) -> None:
        for number in (3, 1, 2):
            await place.put(job(f"c{number}"), at=after(number))
        first = await place.claim(after(9), at_most=2)
        assert [claim.job.conversation.conversation_id for claim in first] == ["c1", "c2"]
        rest = await place.claim(after(9), at_most=2)
        assert [claim.job.conversation.conversation_id for claim in rest] == ["c3"]

    async def test_a_claimed_job_is_nobody_elses_until_its_lease_ends(self, place: Place) -> None:  # F41
        await place.put(job())
        first = await place.claim_one()
        assert first.attempt == 1
        assert await place.claim(after(LEASE_S)) == []
        second = await place.claim_one(after(LEASE_S + 0.001))
        assert (second.job, second.attempt) == (first.job, 2)
        assert second.token != first.token

    async def test_of_many_at_once_each_job_goes_to_one(self, place: Place) -> None:  # F41
        await place.put(*(job(f"c{number}") for number in range(60)))
        taken = await asyncio.gather(*(place.claim(at_most=4) for _ in range(20)))
        names = [claim.job.name for claims in taken for claim in claims]
        assert sorted(names) == sorted(job(f"c{number}").name for number in range(60))

    async def test_a_kind_that_only_a_later_release_knows_is_left_for_it(self, place: Place) -> None:
        await client_of(place.store).zadd(JOBS_KEY, {"rewind:t:c:": due_score(T0)})
        assert await place.claim() == []
        assert await place.claim(after(LEASE_S + 1)) == []
        assert list(await place.due()) == ["rewind:t:c:"]

    @pytest.mark.parametrize("name", [b"\xff\xfe", b"mine:t:\xff:", b"", b":", b"mine:t:c", b"mine:t:c::x"])
    async def test_a_name_that_nobody_can_read_holds_up_no_other(self, place: Place, name: bytes) -> None:
        await client_of(place.store).zadd(JOBS_KEY, {name: due_score(T0)})  # F41
        await place.put(job())
        assert [job.job for job in await RedisOperations(place.store.driver).jobs(T0, at_most=9)] == [job()]
        await place.schedule.finish(await place.claim_one())
        assert await place.claim(after(LEASE_S + 1)) == []
        assert await client_of(place.store).zrange(JOBS_KEY, 0, -1) == [name]

    async def test_a_server_that_forgot_its_scripts_goes_on(self, place: Place) -> None:
        await place.put(job())
        await client_of(place.store).script_flush()
        claim = await place.claim_one()
        await client_of(place.store).script_flush()
        await place.schedule.finish(claim)
        assert await place.empty()


class TestGivingBack:
    async def test_a_finished_job_leaves_nothing(self, place: Place) -> None:
        await place.put(job())
        await place.schedule.finish(await place.claim_one())
        assert await place.empty()

    async def test_a_retried_job_is_due_when_asked_and_its_attempts_count_on(self, place: Place) -> None:
        await place.put(job())
        for attempt in (1, 2, 3):
            claim = await place.claim_one(after(10 * attempt))
            assert claim.attempt == attempt
            await place.schedule.retry(claim, after(10 * attempt + 5))
            assert await place.claim(after(10 * attempt + 4.9)) == []
        await place.schedule.finish(await place.claim_one(after(60)))
        assert await place.empty()

    async def test_one_that_is_delayed_counts_its_delays_in_place_of_its_attempts(self, place: Place) -> None:
        await place.put(job())  # F41, F44
        for delays in (0, 1, 2):
            claim = await place.claim_one(after(10 * delays))
            assert (claim.attempt, claim.delays) == (1, delays)
            await place.schedule.retry(claim, after(10 * delays + 5), delayed=True)
        claim = await place.claim_one(after(60))
        assert (claim.attempt, claim.delays) == (1, 3)
        await place.schedule.retry(claim, after(65))
        claim = await place.claim_one(after(70))
        assert (claim.attempt, claim.delays) == (2, 0)
        assert (await place.claim_one(after(100))).attempt == 3  # its holder was killed

    async def test_who_holds_an_older_lease_changes_nothing(self, place: Place) -> None:  # F41
        await place.put(job())
        stale = await place.claim_one()
        held = await place.claim_one(after(16))
        before = await place.due()
        await place.schedule.finish(stale)
        await place.schedule.retry(stale, after(1))
        await place.schedule.bury(stale, "reason", after(17))
        assert await place.schedule.renew(stale, after(17), lease_s=99) is False
        assert await place.due() == before
        assert await place.letters.list(at_most=9) == []
        await place.schedule.finish(held)
        assert await place.empty()

    async def test_a_renewed_lease_lasts_longer(self, place: Place) -> None:
        await place.put(job())
        claim = await place.claim_one()
        assert await place.schedule.renew(claim, after(10), lease_s=LEASE_S) is True
        assert await place.claim(after(25)) == []
        assert (await place.claim_one(after(25.001))).attempt == 2


class TestScheduledAnewWhileHeld:
    async def test_it_is_not_forgotten(self, place: Place) -> None:  # F41
        await place.put(job())
        claim = await place.claim_one()
        await place.put(job(), at=after(1))
        await place.schedule.finish(claim)
        assert (await place.claim_one(after(1))).attempt == 1

    async def test_it_waits_for_its_holder(self, place: Place) -> None:
        await place.put(job())
        claim = await place.claim_one()
        await place.put(job(), at=after(1))
        assert await place.claim(after(2)) == []
        await place.schedule.finish(claim)
        again = await place.claim_one(after(2))
        assert again.attempt == 1
        await place.schedule.finish(again)
        assert await place.empty()

    async def test_it_waits_no_longer_than_the_lease(self, place: Place) -> None:
        await place.put(job())
        await place.claim_one()
        await place.put(job(), at=after(1))
        assert await place.claim(after(2)) == []
        assert await place.claim(after(LEASE_S)) == []
        assert (await place.claim_one(after(LEASE_S + 0.001))).attempt == 2

    @pytest.mark.parametrize("seconds", [LEASE_S, LEASE_S + 0.001])
    async def test_for_the_very_moment_of_the_leases_end_too(self, place: Place, seconds: float) -> None:
        await place.put(job())
        claim = await place.claim_one()
        await place.put(job(), at=after(seconds))
        await place.schedule.finish(claim)
        assert list(await place.due()) == [job().name]

    async def test_a_failed_attempt_does_not_put_it_off(self, place: Place) -> None:
        await place.put(job())
        claim = await place.claim_one()
        await place.put(job(), at=after(1))
        await place.schedule.retry(claim, after(300))
        assert (await place.claim_one(after(1))).attempt == 1

    async def test_renewing_does_not_put_it_off(self, place: Place) -> None:
        await place.put(job())
        claim = await place.claim_one()
        await place.put(job(), at=after(1))
        assert await place.schedule.renew(claim, after(5), lease_s=LEASE_S)
        await place.schedule.finish(claim)
        assert (await place.claim_one(after(5))).attempt == 1

    async def test_a_holder_that_renewed_after_it_was_asked_for_again_gives_it_back(
        self, place: Place
    ) -> None:
        await place.put(job())
        claim = await place.claim_one()
        await place.put(job(), at=after(1))
        assert await place.claim(after(2)) == []
        assert await place.schedule.renew(claim, after(10), lease_s=LEASE_S)
        assert await place.claim(after(16)) == []
        await place.schedule.finish(claim)
        assert (await place.claim_one(after(16))).attempt == 1

    async def test_a_buried_attempt_leaves_the_new_one(self, place: Place) -> None:
        await place.put(job())
        claim = await place.claim_one()
        await place.put(job(), at=after(1))
        await place.schedule.bury(claim, "no good", after(1))
        assert (await place.claim_one(after(1))).attempt == 1
        assert len(await place.letters.list(at_most=9)) == 1


class TestAWorkerKiller:
    async def test_its_attempts_count_on_however_busy_its_conversation_is(self, place: Place) -> None:  # C
        await place.put(job())
        for attempt in (1, 2, 3):
            at = 20.0 * attempt
            assert (await place.claim_one(after(at))).attempt == attempt  # and its worker is killed
            await place.put(job(), at=after(at + 1))
            assert await place.claim(after(at + 2)) == []
            await place.put(job(), at=after(at + LEASE_S + 1))

    async def test_who_gives_it_back_in_order_begins_anew(self, place: Place) -> None:
        await place.put(job())
        await place.claim_one()
        await place.schedule.finish(await place.claim_one(after(LEASE_S + 1)))
        await place.put(job(), at=after(20))
        assert (await place.claim_one(after(20))).attempt == 1


class TestSharesOfTenants:
    def jobs_of(self, tenant: str, number: int) -> list[Job]:
        return [Job("mine", ConversationRef(tenant, f"c{n}")) for n in range(number)]

    @pytest.mark.parametrize("when_s", [0.5, 1.0, 2.0])
    async def test_a_tenants_backlog_is_not_everybodys(self, place: Place, when_s: float) -> None:  # C
        heavy = self.jobs_of("heavy", 1_500)
        await client_of(place.store).zadd(
            JOBS_KEY, {each.name: due_score(after(number / 1_000)) for number, each in enumerate(heavy)}
        )
        light = self.jobs_of("light", 4)
        await place.put(*light, at=after(when_s))
        found: list[str] = []
        for claims in range(1, 60):
            taken = await place.claim(after(3 + claims / 1_000), at_most=16)
            found += [c.job.name for c in taken if c.job.conversation.tenant_id == "light"]
            if len(found) == 4:
                break
        assert sorted(found) == sorted(each.name for each in light)
        assert claims < 1_500 / 16 / 2

    async def test_a_job_that_waits_for_its_next_attempt_is_not_hurried(self, place: Place) -> None:  # A8
        await place.put(job())
        await place.schedule.retry(await place.claim_one(), after(60))
        await place.schedule.schedule(DueJob(job(), after(1)))
        assert await place.claim(after(59)) == []
        assert (await place.claim_one(after(61))).attempt == 2
        await place.schedule.schedule(DueJob(job(), after(62)))  # held: it is not forgotten
        await place.schedule.finish(Claim(job(), "nobody's", 1))
        assert list(await place.due()) == [job().name]


class TestDeadLetters:
    async def test_a_buried_job_is_listed_with_why_and_is_due_no_more(self, place: Place) -> None:
        await place.put(job(subject="call 1"))
        claim = replace(await place.claim_one(), attempt=7)
        await place.schedule.bury(claim, "the model refused", after(3))
        (letter,) = await place.letters.list(at_most=9)
        assert (letter.job, letter.reason, letter.attempts) == (job(subject="call 1"), "the model refused", 7)
        assert letter.buried_at == after(3)
        assert await place.empty()

    async def test_the_latest_come_first_and_no_more_than_asked_for(self, place: Place) -> None:
        for number in range(3):
            await place.put(job(f"c{number}"), at=after(number))
            await place.schedule.bury(await place.claim_one(after(number)), "r", after(number))
        listed = await place.letters.list(at_most=2)
        assert [letter.job.conversation.conversation_id for letter in listed] == ["c2", "c1"]

    async def test_a_replayed_job_is_due_at_once_with_its_attempts_anew(self, place: Place) -> None:
        await place.put(job())
        await place.schedule.bury(await place.claim_one(), "r", after(1))
        (letter,) = await place.letters.list(at_most=9)
        assert await place.letters.replay(letter.id, after(60)) is True
        assert await place.letters.list(at_most=9) == []
        assert await place.letters.replay(letter.id, after(60)) is False
        assert (await place.claim_one(after(60))).attempt == 1

    async def test_a_job_that_is_buried_again_has_one_letter(self, place: Place) -> None:
        for number in range(2):
            await place.put(job())
            await place.schedule.bury(await place.claim_one(), f"reason {number}", after(number))
        assert [letter.reason for letter in await place.letters.list(at_most=9)] == ["reason 1"]

    async def test_a_kind_that_only_a_later_release_knows_hides_no_other(self, place: Place) -> None:  # F41
        later = b'{"job":"rewind:t:c:","reason":"r","attempts":1,"buriedAt":"2026-03-01T12:00:00Z"}'
        await client_of(place.store).zadd(DEAD_LETTERS_KEY, {"later": due_score(after(9))})
        await client_of(place.store).hset(DEAD_LETTER_TEXTS_KEY, "later", later)
        await place.put(job())
        await place.schedule.bury(await place.claim_one(), "r", after(1))
        assert [letter.job for letter in await place.letters.list(at_most=9)] == [job()]
        assert await place.letters.one("later") is None
        assert await client_of(place.store).hget(DEAD_LETTER_TEXTS_KEY, "later") == later

    async def test_the_oldest_beyond_the_cap_go(self, place: Place) -> None:
        filling = {f"id{number}": number for number in range(MOST_LETTERS)}
        await client_of(place.store).zadd(DEAD_LETTERS_KEY, filling)
        await client_of(place.store).hset(DEAD_LETTER_TEXTS_KEY, mapping=dict.fromkeys(filling, "{}"))
        await place.put(job())
        await place.schedule.bury(await place.claim_one(), "r", after(1))
        assert await client_of(place.store).zcard(DEAD_LETTERS_KEY) == MOST_LETTERS
        assert await client_of(place.store).hlen(DEAD_LETTER_TEXTS_KEY) == MOST_LETTERS
        assert await client_of(place.store).zscore(DEAD_LETTERS_KEY, "id0") is None


async def test_a_redis_that_is_away_is_said_so(start_redis: StartRedis) -> None:  # F44
    server = start_redis()
    store = connect(server.url)
    schedule, letters = RedisJobSchedule(store.driver), RedisDeadLetters(store.driver)
    server.kill()
    claim = Claim(job(), "token", 1)
    for call in (
        schedule.claim(T0, at_most=1, lease_s=1),
        schedule.finish(claim),
        schedule.renew(claim, T0, lease_s=1),
        letters.list(at_most=1),
        letters.replay("id", T0),
    ):
        with pytest.raises(RetryLater):
            await call
    await store.close()


@given(st.text(), st.text(), st.text())
def test_a_name_tells_its_job(tenant_id: str, conversation_id: str, subject: str) -> None:
    named = Job("expire", ConversationRef(tenant_id, conversation_id), subject)
    assert Job.named(named.name) == named
