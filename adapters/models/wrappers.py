"""Models around a model: the platform's limits on calls, trying again, and trying elsewhere.

A request whose first piece is out is tried neither again nor elsewhere: its reader would get two answers.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol

from flow_engine.errors import RetryLater
from flow_engine.ports.models import FailureReason, LanguageModel, LLMRequest, ModelEvent, ModelFailed

CALLS_A_MINUTE = 600
AT_ONCE = 16
WINDOW_S = 60.0


class CallBudget(Protocol):
    """Calls a minute, over all processes that share it. Raises RetryLater when its store is away."""

    async def take(self, tenant_id: str = "") -> float:
        """0 when a call is granted, else the seconds until it is worth asking again.

        Once half of a minute's calls are gone, no tenant gets more than its equal part while others call;
        calls without a tenant are of none's part.
        """
        ...


class ProcessCallBudget:
    """Implements `CallBudget` for one process: fixed windows of a minute."""

    def __init__(
        self, calls_a_minute: int = CALLS_A_MINUTE, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = calls_a_minute
        self._clock = clock
        self._window = -1
        self._taken: Counter[str] = Counter()

    async def take(self, tenant_id: str = "") -> float:
        window, into = divmod(self._clock(), WINDOW_S)
        if window != self._window:
            self._window = int(window)
            self._taken.clear()
        total, tenants = self._taken.total(), {*self._taken, tenant_id} - {""}
        over = bool(tenant_id) and self._taken[tenant_id] >= self._calls / len(tenants)
        if total >= self._calls or (over and 2 * total >= self._calls):
            return WINDOW_S - into
        self._taken[tenant_id] += 1
        return 0.0


class Limits:
    """At most `at_once` calls at a time, and what `budget` grants a minute: for all models that share it.

    A call beyond that waits up to `wait_s`, then fails as `too_many_calls`.
    """

    def __init__(
        self,
        budget: CallBudget,
        *,
        at_once: int = AT_ONCE,
        wait_s: float = 2.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._budget = budget
        self._at_once = at_once
        self._places = asyncio.Semaphore(at_once)
        self._wait_s = wait_s
        self._sleep = sleep

    @asynccontextmanager
    async def admitted(self, tenant_id: str) -> AsyncGenerator[None]:
        """Raises ModelFailed `too_many_calls`, or `unreachable` when the budget's store is away."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError:
            detail = f"{self._at_once} calls are under way"
            raise ModelFailed("too_many_calls", detail) from None
        try:
            waited = 0.0
            try:
                while wait := await self._budget.take(tenant_id):
                    waited += wait
                    if waited > self._wait_s:
                        raise ModelFailed(
                            "too_many_calls", f"the minute's calls are used up for {wait:.0f} s"
                        )
                    await self._sleep(wait)
            except RetryLater as away:
                raise ModelFailed("unreachable", "the budget of model calls does not answer") from away
            yield
        finally:
            self._places.release()


class LimitedModel:
    """Implements `LanguageModel` within `limits`. A call that they refuse fails with `too_many_calls`."""

    def __init__(self, model: LanguageModel, limits: Limits) -> None:
        self._model = model
        self._limits = limits

    async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        tenant_id = request.conversation.tenant_id if request.conversation else ""
        async with self._limits.admitted(tenant_id), aclosing(self._model.stream(request)) as events:
            async for event in events:
                yield event


PASSING: Final[frozenset[FailureReason]] = frozenset(("timeout", "unreachable"))
"""What another attempt may cure. A refusal or an unusable answer would only be paid for twice."""


ALSO_UNUSABLE: Final[frozenset[FailureReason]] = PASSING | frozenset[FailureReason](("unusable_answer",))
"""For whoever shows answers to people at once: another attempt is cheaper than an apology."""

MOST_ASKED_S: Final = 2.0
"""Seconds that a provider of too many calls may ask for; who asks for more, or for nothing, is not tried
again."""

RETRIES: Final = 2


class RetryBudget:
    """Limits retries to a share of the calls: a model that fails is not asked many times as often. Each call
    earns `per_call` of a retry (0 to 1), up to `most`; a retry costs one. Full at the start."""

    def __init__(self, *, per_call: float = 0.2, most: float = 10.0) -> None:
        self._per_call = per_call
        self._most = most
        self._left = most

    def earn(self) -> None:
        self._left = min(self._most, self._left + self._per_call)

    def spend(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RetryingModel:
    """Implements `LanguageModel`: asks again, up to `retries` times, after a failure for one of `reasons`,
    and for `too_many_calls` where the provider says how soon. Between attempts it waits a random time up to
    `backoff_s` seconds, twice as long each time, or as long as it was told.
    No attempt begins later than `within_s` seconds after the call: with the model's own timeout, that
    bounds the whole."""

    def __init__(
        self,
        model: LanguageModel,
        budget: RetryBudget,
        *,
        retries: int = RETRIES,
        reasons: frozenset[FailureReason] = PASSING,
        backoff_s: float = 0.25,
        within_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._budget = budget
        self._retries = retries
        self._reasons = reasons
        self._backoff_s = backoff_s
        self._within_s = within_s
        self._clock = clock
        self._sleep = sleep
        self._dice = dice

    async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        self._budget.earn()
        began, retried, shown = self._clock(), 0, False
        while True:
            try:
                async with aclosing(self._model.stream(request)) as events:
                    async for event in events:
                        shown = True
                        yield event
                return
            except ModelFailed as failure:
                asked = failure.retry_after_s if failure.reason == "too_many_calls" else None
                passes = failure.reason in self._reasons or (asked is not None and asked <= MOST_ASKED_S)
                wait = max(self._dice() * self._backoff_s * 2**retried, asked or 0.0)
                late = self._clock() + wait - began > self._within_s
                if shown or not passes or retried >= self._retries or late:
                    raise
                if not self._budget.spend():
                    raise
            retried += 1
            await self._sleep(wait)


class FallbackModel:
    """Implements `LanguageModel`: asks the next model when one fails; raises the last one's failure.

    A model that a request names is asked for first only: those after it answer with their own.
    """

    def __init__(self, models: Sequence[LanguageModel]) -> None:
        if not models:
            raise ValueError("a fallback needs at least one model")
        self._models = tuple(models)

    async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        for number, model in enumerate(self._models, start=1):
            shown = False
            try:
                async with aclosing(model.stream(request)) as events:
                    async for event in events:
                        shown = True
                        yield event
                return
            except ModelFailed:
                if shown or number == len(self._models):
                    raise
                request = replace(request, model=None)
