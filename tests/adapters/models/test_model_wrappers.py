"""Retries, fallback, limits and the audit, as models around models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import pytest

from adapters.models.audit import AuditedModel
from adapters.models.scripted import DropsStream, Fails, Says, ScriptedModel, Stalls, Step
from adapters.models.wrappers import (
    FallbackModel,
    LimitedModel,
    Limits,
    ProcessCallBudget,
    RetryBudget,
    RetryingModel,
)
from flow_engine.errors import RetryLater
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import (
    LanguageModel,
    LLMAnswer,
    LLMRequest,
    Message,
    ModelEvent,
    ModelFailed,
    TextDelta,
    ask,
    instruction,
)
from tests.adapters.models.model_worlds import FixedClock, RecentCalls, call, streamed

pytestmark = pytest.mark.anyio

CHAT = LLMRequest([Message("user", "Hello.")])
STREAMED = replace(CHAT, deltas=True)


@dataclass
class Time:
    """A clock that moves only by sleeping."""

    now: float = 1_000.0
    slept: list[float] = field(default_factory=list[float])

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def retrying(
    model: LanguageModel, time: Time, *, budget: RetryBudget | None = None, within_s: float = 15
) -> RetryingModel:
    return RetryingModel(
        model,
        budget or RetryBudget(),
        within_s=within_s,
        clock=time,
        sleep=time.sleep,
        dice=lambda: 1.0,
    )


class TestRetrying:
    async def test_a_passing_failure_is_tried_again_after_a_growing_wait(self) -> None:
        time = Time()
        script = ScriptedModel([Fails("unreachable"), Fails("timeout"), Says("yes")])
        assert (await ask(retrying(script, time), call())).text == "yes"
        assert time.slept == [0.25, 0.5]

    async def test_a_chat_is_tried_again_too(self) -> None:
        script = ScriptedModel([Fails("unreachable"), Says("yes")])
        assert (await ask(retrying(script, Time()), CHAT)).message.content == "yes"

    @pytest.mark.parametrize("reason", ["refused", "unusable_answer", "too_many_calls", "not_configured"])
    async def test_what_would_fail_again_is_not_tried_again(self, reason: str) -> None:
        script = ScriptedModel(lambda asked: Fails(reason))  # pyright: ignore[reportArgumentType]
        with pytest.raises(ModelFailed):
            await ask(retrying(script, Time()), call())
        assert len(script.requests) == 1

    @pytest.mark.parametrize(("asked", "attempts"), [(1.5, 2), (2.5, 1), (None, 1)])
    async def test_too_many_calls_are_tried_again_when_the_provider_says_how_soon(
        self, asked: float | None, attempts: int
    ) -> None:  # F37
        time, tries = Time(), list[LLMRequest]()

        class Busy:
            async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
                tries.append(request)
                if len(tries) == 1:
                    raise ModelFailed("too_many_calls", "status 429", retry_after_s=asked)
                yield LLMAnswer(Message("assistant", "yes"), "m", 1, 1)

        events, failure = await streamed(retrying(Busy(), time), STREAMED)
        assert (len(events), failure) == ((1, None) if attempts == 2 else (0, "too_many_calls"))
        assert time.slept == [1.5] * (attempts - 1)

    async def test_a_stream_that_breaks_after_its_first_piece_is_not_begun_again(self) -> None:
        script = ScriptedModel([DropsStream("It was"), Says("yes")])
        events, failure = await streamed(retrying(script, Time()), STREAMED)
        assert (events, failure) == ([TextDelta("It was")], "unreachable")
        events, failure = await streamed(retrying(script, Time()), STREAMED)
        assert (events[:-1], failure) == ([TextDelta("yes")], None)

    async def test_a_break_that_nobody_saw_is_tried_again(self) -> None:
        script = ScriptedModel([DropsStream("It was"), Says("yes")])
        assert (await ask(retrying(script, Time()), CHAT)).text == "yes"

    async def test_attempts_are_counted(self) -> None:
        script = ScriptedModel([Fails("unreachable")])
        with pytest.raises(ModelFailed):
            await ask(retrying(script, Time()), call())
        assert len(script.requests) == 3

    async def test_no_attempt_begins_when_the_time_is_over(self) -> None:
        time = Time()
        script = ScriptedModel([Stalls(30)], timeout_s=10, sleep=time.sleep)
        with pytest.raises(ModelFailed):
            await ask(retrying(script, time, within_s=15), call())
        assert len(script.requests) == 2
        assert time.now - 1_000 < 25

    async def test_a_model_that_is_down_is_not_asked_many_times_as_often(self) -> None:
        script = ScriptedModel([Fails("unreachable")])
        model = retrying(script, Time(), budget=RetryBudget(per_call=0.2, most=10))
        for _ in range(100):
            with pytest.raises(ModelFailed):
                await ask(model, call())
        assert len(script.requests) <= 100 + 10 + 20


class TestFallback:
    async def test_the_next_model_answers_when_one_fails(self) -> None:
        first, second = ScriptedModel([Fails("refused")]), ScriptedModel([Says("yes")])
        model = FallbackModel([first, second])
        assert (await ask(model, call())).text == "yes"
        assert (await ask(model, CHAT)).message.content == "yes"

    async def test_a_model_that_a_call_names_is_asked_of_the_first_only(self) -> None:
        first, second = ScriptedModel([Fails("refused")]), ScriptedModel([Says("yes")])
        await ask(FallbackModel([first, second]), call(model="openai:x"))
        assert [asked.model for asked in (*first.requests, *second.requests)] == ["openai:x", None]

    async def test_the_last_failure_is_told(self) -> None:
        model = FallbackModel([ScriptedModel([Fails("timeout")]), ScriptedModel([Fails("refused")])])
        with pytest.raises(ModelFailed) as failed:
            await ask(model, call())
        assert failed.value.reason == "refused"

    async def test_a_stream_goes_to_the_next_model_only_before_its_first_piece(self) -> None:
        second = ScriptedModel([Says("yes")])
        events, failure = await streamed(FallbackModel([ScriptedModel([DropsStream()]), second]), STREAMED)
        assert (len(events), failure, second.requests) == (1, "unreachable", [])
        events, failure = await streamed(FallbackModel([ScriptedModel([Fails("refused")]), second]), STREAMED)
        assert (events[:-1], failure) == ([TextDelta("yes")], None)

    def test_no_model_at_all_is_no_fallback(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            FallbackModel([])


class Gate:
    """Lets stalls end when told, and counts how many wait at once."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.waiting = self.most = 0

    async def sleep(self, seconds: float) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.opened.wait()
        self.waiting -= 1


class TestLimits:
    async def test_no_more_calls_run_at_once_than_allowed(self) -> None:
        gate = Gate()
        script = ScriptedModel([Stalls(1, Says("yes"))], sleep=gate.sleep)
        model = LimitedModel(script, Limits(ProcessCallBudget(), at_once=3))
        asking = [asyncio.create_task(ask(model, call())) for _ in range(10)]
        while gate.waiting < 3:
            await asyncio.sleep(0)
        gate.opened.set()
        assert [answer.text for answer in await asyncio.gather(*asking)] == ["yes"] * 10
        assert gate.most == 3

    async def test_a_call_that_finds_no_place_in_time_fails(self) -> None:
        gate = Gate()
        script = ScriptedModel([Stalls(1, Says("yes"))], sleep=gate.sleep)
        model = LimitedModel(script, Limits(ProcessCallBudget(), at_once=1, wait_s=0.01))
        first = asyncio.create_task(ask(model, call()))
        while not gate.waiting:
            await asyncio.sleep(0)
        with pytest.raises(ModelFailed) as failed:
            await ask(model, call())
        gate.opened.set()
        await first
        assert failed.value.reason == "too_many_calls"
        assert (await ask(model, call())).text == "yes"

    async def test_limits_hold_over_all_models_that_share_them(self) -> None:
        limits = Limits(ProcessCallBudget(2, clock=Time()), wait_s=0)
        models = [LimitedModel(ScriptedModel([Says("yes")]), limits) for _ in range(3)]
        await ask(models[0], call())
        await ask(models[1], CHAT)
        with pytest.raises(ModelFailed) as failed:
            await ask(models[2], call())
        assert failed.value.reason == "too_many_calls"

    async def test_a_call_waits_for_the_next_minute_when_that_is_near(self) -> None:
        time = Time(now=59.0)
        limits = Limits(ProcessCallBudget(1, clock=time), wait_s=2, sleep=time.sleep)
        model = LimitedModel(ScriptedModel([Says("yes")]), limits)
        await ask(model, call())
        assert (await ask(model, call())).text == "yes"
        assert time.now == 60.0

    async def test_a_refused_call_gives_its_place_back(self) -> None:
        time = Time(now=0.0)
        limits = Limits(ProcessCallBudget(1, clock=time), at_once=1, wait_s=1, sleep=time.sleep)
        model = LimitedModel(ScriptedModel([Says("yes")]), limits)
        await ask(model, call())
        with pytest.raises(ModelFailed):
            await ask(model, call())
        time.now = 60.0
        assert (await ask(model, call())).text == "yes"

    async def test_a_call_counts_for_the_tenant_whose_conversation_it_is_for(self) -> None:  # C
        limits = Limits(ProcessCallBudget(4, clock=Time()), wait_s=0)
        model = LimitedModel(ScriptedModel([Says("yes")]), limits)
        busy, other = (replace(call(), conversation=ConversationRef(t, "c-1")) for t in ("busy", "other"))
        await ask(model, other)
        await ask(model, busy)
        await ask(model, busy)
        with pytest.raises(ModelFailed):
            await ask(model, busy)
        assert (await ask(model, other)).text == "yes"

    async def test_a_budget_that_is_away_is_a_failure_of_the_call(self) -> None:
        class Away:
            async def take(self, tenant_id: str = "") -> float:
                raise RetryLater("memory_unavailable", "away")

        model = LimitedModel(ScriptedModel([Says("yes")]), Limits(Away()))
        with pytest.raises(ModelFailed) as failed:
            await ask(model, call())
        assert failed.value.reason == "unreachable"


class TestAudit:
    def audited(self, *steps: Step, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        time = Time()
        self.log = RecentCalls()

        async def lasting(seconds: float) -> None:
            time.now += seconds
            await sleep(0)

        script = ScriptedModel(steps, sleep=lasting)
        ids = iter("abcdefgh")
        self.model = AuditedModel(
            script, self.log, FixedClock(), lambda: next(ids), name="scripted:model", stopwatch=time
        )

    async def test_an_answered_call_is_recorded_with_what_it_took(self) -> None:
        self.audited(Stalls(1.5, Says("On Monday.")))
        await ask(self.model, replace(call(), conversation=ConversationRef("acme", "c-1")))
        [record] = self.log.records
        assert (record.id, record.at, record.tenant, record.conversation) == (
            "a",
            FixedClock().now(),
            "acme",
            "c-1",
        )
        assert (record.purpose, record.model, record.status, record.reason) == (
            "mining",
            "scripted:model",
            "ok",
            None,
        )
        assert (record.output_tokens, record.duration_ms) == (3, 1500)
        assert record.input_tokens > 0

    async def test_neither_prompt_nor_answer_is_recorded(self) -> None:
        self.audited(Says("Anna is ill"))
        await ask(self.model, LLMRequest(instruction("About Ben.", "Carl said")))
        assert not any(name in repr(self.log.records) for name in ("Anna", "Ben", "Carl"))  # F46

    async def test_a_turn_of_an_agent_is_recorded_as_such(self) -> None:
        self.audited(Says("yes"))
        await ask(self.model, CHAT)
        assert self.log.records[0].purpose == "agent"  # M14

    async def test_a_failed_call_is_recorded_with_its_reason(self) -> None:
        self.audited(Fails("refused"))
        with pytest.raises(ModelFailed):
            await ask(self.model, call(model="openai:x"))
        [record] = self.log.records
        assert (record.status, record.reason, record.model) == ("failed", "refused", "openai:x")
        assert (record.tenant, record.conversation) == (None, None)

    async def test_a_stream_that_its_reader_leaves_is_recorded_as_cancelled(self) -> None:
        self.audited(Says("A long story, as it were."))
        async with aclosing(self.model.stream(STREAMED)) as events:
            assert isinstance(await anext(events), TextDelta)
        assert [record.status for record in self.log.records] == ["cancelled"]

    async def test_a_streamed_answer_is_recorded_once_and_before_its_reader_gets_it(self) -> None:
        self.audited(Says("yes"))
        async with aclosing(self.model.stream(STREAMED)) as events:
            async for event in events:
                assert len(self.log.records) == isinstance(event, LLMAnswer)

    async def test_a_cancelled_call_is_recorded(self) -> None:
        gate = Gate()
        self.audited(Stalls(1), sleep=gate.sleep)
        asking = asyncio.create_task(ask(self.model, call()))
        while not gate.waiting:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert self.log.records[0].status == "cancelled"
