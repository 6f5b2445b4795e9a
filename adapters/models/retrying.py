"""Trying again and trying elsewhere, as models around models.

A request whose first piece is out is tried neither again nor elsewhere: its reader would get two answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from flow_engine.ports.models import FailureReason, LanguageModel, LLMRequest, ModelEvent, ModelFailed

PASSING: Final[frozenset[FailureReason]] = frozenset(("timeout", "unreachable"))
"""What another attempt may cure. A refusal or an unusable answer would only be paid for twice."""


ALSO_UNUSABLE: Final[frozenset[FailureReason]] = PASSING | frozenset[FailureReason](("unusable_answer",))
"""For whoever shows answers to people at once: another attempt is cheaper than an apology."""

RETRIES: Final = 2


class RetryBudget:
    """Limits retries to a share of the calls: a model that is down is not asked many times as often.

    Each call earns `per_call` of a retry, up to `most`; a retry costs one. Full at the start.
    """

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
    """Implements `LanguageModel`: asks again, up to `retries` times, after a failure for one of `reasons`.

    Between attempts it waits a random time up to `backoff_s`, twice as long each time. No attempt begins
    later than `within_s` after the call: with the model's own timeout, that bounds the whole.
    """

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
                wait = self._dice() * self._backoff_s * 2**retried
                late = self._clock() + wait - began > self._within_s
                if shown or failure.reason not in self._reasons or retried >= self._retries or late:
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
