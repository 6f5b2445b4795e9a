"""The webhook: signed, one event at a time, in order, and never given up while it is away (F40, F45)."""

from __future__ import annotations

import gzip
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
import pytest
from fakeredis import FakeAsyncRedis

from adapters.outbound.client import GuardedClient
from adapters.outbound.fake import Answer, ScriptedOutbound
from adapters.outbound.policy import AllowList
from adapters.webhook import ANSWER_WITHIN_S, Webhook
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import DueJob, Job, TryJobAgain
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundReply, UnusableAnswer
from flow_engine.use_cases import delivery as delivery_module
from flow_engine.use_cases.delivery import Delivery, Relay
from tests.adapters.outbound.local_server import ok, serving
from tests.api.harness import SettableClock
from tests.memory.events_scene import (
    Breaking,
    Killed,
    Moment,
    events_on,
    firsts,
    fresh_ref,
    ids_in_stream,
    left_for_webhook,
    new_redis,
    some_events,
    write_down,
)

pytestmark = pytest.mark.anyio
URL = "https://cti.example.com/events?token=1"
SECRET = "sixteen characters"
TAKEN, BUSY, AWAY = OutboundReply(204, b""), OutboundReply(503, b""), OutboundFailed("no answer")


@dataclass
class Counted:
    """Implements `Observer`."""

    outcomes: list[str] = field(default_factory=list)

    def warn(self, event: str, /, **details: str) -> None:
        raise AssertionError("no warning is expected here")

    def count(self, what: str, amount: int = 1, /, **labels: str) -> None:
        if what == "webhook_events":
            self.outcomes += [labels["outcome"]] * amount


class Scene:
    """One process that delivers. `again` replaces it by a new one after it was killed."""

    def __init__(self, *answers: Answer) -> None:
        self.redis: FakeAsyncRedis = new_redis()
        self.conversation: ConversationRef = fresh_ref()
        self.clock = SettableClock()
        self.outbound = ScriptedOutbound({URL: answers})
        self.scheduled: list[DueJob] = []
        self.counted = Counted()
        self.job = Job("deliver", self.conversation)
        self.delivery = self.delivering(self.redis)

    def delivering(self, client: Any, caller: Any = None, url: str = URL) -> Delivery:
        webhook = Webhook(caller or self.outbound, url, SECRET, self.clock)
        return Delivery(events_on(client, webhook=True), webhook, self.schedule, self.clock, self.counted)

    async def schedule(self, due: DueJob) -> None:
        self.scheduled.append(due)

    async def happened(self, events: Sequence[bytes], conversation: ConversationRef | None = None) -> None:
        conversation = conversation or self.conversation
        await write_down(self.redis, conversation, events)
        on = events_on(self.redis, webhook=True)
        relay = Relay(on, self.clock, self.counted, self.schedule, has_webhook=True)
        await relay.relay(Job("relay", conversation))
        self.scheduled.clear()

    async def deliver(self) -> None:
        await self.delivery.deliver(self.job)

    async def deliver_of_another(self, number: int) -> None:
        """An event of another conversation."""
        other = fresh_ref()
        await self.happened(some_events(1, number), other)
        await self.delivery.deliver(Job("deliver", other))

    @property
    def sent(self) -> list[str]:
        return [call.headers["X-Flow-Engine-Event-Id"] for call in self.outbound.calls]

    async def waiting(self) -> int:
        return len(await left_for_webhook(self.redis, self.conversation))


class TestSending:
    async def test_every_event_is_posted_once_in_order_and_signed(self) -> None:  # F40
        scene = Scene(TAKEN)
        await scene.happened(some_events(3))
        await scene.deliver()
        await scene.deliver()
        assert scene.sent == ["e0", "e1", "e2"]
        assert (await scene.waiting(), scene.scheduled) == (0, [])
        last = scene.outbound.calls[-1]
        assert (last.method, last.content, last.timeout_s) == ("POST", some_events(3)[2], ANSWER_WITHIN_S)
        assert last.headers["X-Flow-Engine-Kind"] == "checkpoint"
        assert last.headers["X-Flow-Engine-Tenant"] == scene.conversation.tenant_id.replace(" ", "%20")
        seconds = int(scene.clock.at.timestamp())
        digest = hmac.new(SECRET.encode(), b"%d." % seconds + last.content, hashlib.sha256).hexdigest()
        assert last.headers["X-Flow-Engine-Signature"] == f"t={seconds},v1={digest}"

    async def test_more_than_a_batch_goes_in_one_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delivery_module, "BATCH", 3)
        scene = Scene(TAKEN)
        await scene.happened(some_events(10))
        await scene.deliver()
        assert scene.sent == [f"e{n}" for n in range(10)]

    async def test_a_run_makes_room_for_others_after_a_while(self) -> None:
        scene = Scene(TAKEN)
        await scene.happened(some_events(3))

        class Slow:
            async def request(self, *args: Any, **options: Any) -> OutboundReply:
                scene.clock.advance(seconds=15)
                return await scene.outbound.request(*args, **options)

        await scene.delivering(scene.redis, Slow()).deliver(scene.job)
        assert (scene.sent, await scene.waiting()) == (["e0", "e1"], 1)
        assert scene.scheduled == [DueJob(scene.job, scene.clock.at)]

    async def test_without_a_webhook_what_is_left_of_an_earlier_one_is_no_error(self) -> None:
        scene = Scene(TAKEN)
        await scene.happened(some_events(1))
        events = events_on(scene.redis)
        await Delivery(events, None, scene.schedule, scene.clock, scene.counted).deliver(scene.job)
        assert (await scene.waiting(), scene.scheduled, scene.sent) == (1, [], [])


class TestFailing:
    async def test_a_webhook_that_is_away_is_waited_for_and_then_gets_everything_in_order(
        self,
    ) -> None:  # F40
        scene = Scene(TAKEN, AWAY, AWAY, TAKEN)
        await scene.happened(some_events(4))
        await scene.deliver()
        assert scene.scheduled == [DueJob(scene.job, scene.clock.at + timedelta(seconds=1))]
        scene.clock.advance(seconds=1)
        await scene.deliver()
        assert scene.scheduled[1].due_at == scene.clock.at + timedelta(seconds=2)
        scene.clock.advance(seconds=2)
        await scene.deliver()
        assert scene.sent == ["e0", "e1", "e1", "e1", "e2", "e3"]
        assert (await scene.waiting(), len(scene.scheduled)) == (0, 2)
        assert scene.counted.outcomes == ["taken", "away", "away", "taken", "taken", "taken"]

    async def test_one_that_hangs_up_at_one_event_is_not_away(self) -> None:  # A8
        """Once others were answered since it did so; where none was, it is away as before."""
        scene = Scene(AWAY, TAKEN, AWAY, AWAY, TAKEN)
        await scene.happened(some_events(1))
        await scene.deliver()
        scene.clock.advance(seconds=1)
        await scene.deliver_of_another(7)
        with pytest.raises(TryJobAgain, match="answers others, and not this event: no answer"):
            await scene.deliver()
        await scene.deliver()
        assert scene.scheduled[-1] == DueJob(scene.job, scene.clock.at + timedelta(seconds=1))
        scene.clock.advance(seconds=1)
        await scene.deliver_of_another(8)
        assert scene.sent == ["e0", "e7", "e0", "e0", "e8"]
        assert scene.counted.outcomes == ["away", "taken", "refused", "away", "taken"]

    async def test_while_it_rests_no_conversation_troubles_it(self) -> None:
        scene = Scene(AWAY)
        await scene.happened(some_events(1))
        for _ in range(5):
            await scene.deliver()
        assert len(scene.outbound.calls) == 1
        assert {due.due_at for due in scene.scheduled} == {scene.clock.at + timedelta(seconds=1)}

    async def test_it_rests_at_most_a_minute(self) -> None:
        scene = Scene(AWAY)
        await scene.happened(some_events(1))
        rests: list[float] = []
        for _ in range(9):
            await scene.deliver()
            rests.append((scene.scheduled[-1].due_at - scene.clock.at).total_seconds())
            scene.clock.at = scene.scheduled[-1].due_at
        assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    async def test_a_clock_that_is_put_back_ends_its_rest(self) -> None:
        scene = Scene(AWAY, TAKEN)
        await scene.happened(some_events(2))
        await scene.deliver()
        scene.clock.advance(seconds=-600)
        await scene.deliver()
        assert scene.sent == ["e0", "e0", "e1"]

    async def test_an_answer_of_5xx_pauses_its_own_conversation_only(self) -> None:  # A8
        scene = Scene(BUSY, TAKEN)
        await scene.happened(some_events(1))
        with pytest.raises(TryJobAgain, match="status 503"):
            await scene.deliver()
        await scene.deliver_of_another(7)
        assert scene.sent == ["e0", "e7"]

    @pytest.mark.parametrize(
        "refusal",
        [BUSY, *(OutboundReply(status, b"") for status in (302, 400, 429, 500)), OutboundRefused("private")],
    )
    async def test_an_event_that_is_refused_is_a_failed_job_and_none_overtakes_it(
        self, refusal: Answer
    ) -> None:  # F40, F45
        scene = Scene(TAKEN, refusal)
        await scene.happened(some_events(3))
        for _ in range(2):
            with pytest.raises(TryJobAgain):
                await scene.deliver()
        assert scene.sent == ["e0", "e1", "e1"]
        assert (await scene.waiting(), scene.scheduled) == (2, [])

    async def test_a_redirect_refuses_its_own_event_only(self) -> None:  # A8
        scene = Scene(UnusableAnswer("redirects a POST", 302))
        await scene.happened(some_events(1))
        with pytest.raises(TryJobAgain, match="status 302"):
            await scene.deliver()
        assert (scene.scheduled, scene.counted.outcomes) == ([], ["refused"])

    async def test_a_dead_webhook_does_not_hold_up_the_stream(self) -> None:  # F40
        scene = Scene(AWAY)
        await scene.happened(some_events(2))
        await scene.deliver()
        await scene.happened(some_events(2, 2))
        assert await ids_in_stream(scene.redis, scene.conversation) == ["e0", "e1", "e2", "e3"]
        assert await scene.waiting() == 4


class TestKilledInBetween:
    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize("at", range(5))
    async def test_every_event_arrives_in_order_at_least_once(self, at: int, moment: Moment) -> None:  # F41
        scene = Scene(TAKEN)
        await scene.happened(some_events(4))
        with pytest.raises(Killed):
            await scene.delivering(Breaking(scene.redis, at, moment)).deliver(scene.job)
        await scene.deliver()
        assert firsts(scene.sent) == ["e0", "e1", "e2", "e3"]
        assert await scene.waiting() == 0


class TestOverTheNetwork:
    async def test_a_receiver_on_an_allowed_address_gets_the_very_bytes_that_were_signed(self) -> None:  # F45
        scene = Scene(TAKEN)
        await scene.happened(some_events(2))
        async with serving(ok(b"", status=b"204 No Content"), ok(b"fine")) as receiver:
            client = GuardedClient(AllowList.parse(f"127.0.0.1:{receiver.port}"))
            url = f"http://127.0.0.1:{receiver.port}/hook"
            await scene.delivering(scene.redis, client, url).deliver(scene.job)
            await client.aclose()
        bodies: list[str] = []
        for request in receiver.requests:
            head, _, body = request.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
            timestamp, given = headers["x-flow-engine-signature"].split(",")
            signed = timestamp.removeprefix("t=").encode() + b"." + body
            assert given == f"v1={hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()}"
            assert headers["content-type"] == "application/json"
            bodies.append(orjson.loads(body)["eventId"])
        assert bodies == ["e0", "e1"]

    @pytest.mark.parametrize(
        "answered",
        [ok(gzip.compress(b"fine"), b"Content-Encoding: gzip"), ok(b"x" * 2_000_000)],
        ids=["encoded", "large"],
    )
    async def test_any_2xx_means_taken_whatever_its_body(self, answered: bytes) -> None:  # F40
        scene = Scene(TAKEN)
        await scene.happened(some_events(1))
        async with serving(answered) as receiver:
            client = GuardedClient(AllowList.parse(f"127.0.0.1:{receiver.port}"))
            url = f"http://127.0.0.1:{receiver.port}/hook"
            await scene.delivering(scene.redis, client, url).deliver(scene.job)
            await client.aclose()
        assert (await scene.waiting(), scene.scheduled, scene.counted.outcomes) == (0, [], ["taken"])

    async def test_an_address_that_nobody_allowed_is_never_called(self) -> None:  # F45
        scene = Scene(TAKEN)
        await scene.happened(some_events(1))
        async with serving(ok()) as receiver:
            client = GuardedClient(AllowList.parse(""))
            url = f"http://127.0.0.1:{receiver.port}/hook"
            with pytest.raises(TryJobAgain):
                await scene.delivering(scene.redis, client, url).deliver(scene.job)
            await client.aclose()
        assert receiver.requests == []
