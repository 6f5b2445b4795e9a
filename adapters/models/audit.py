"""A record of every model call: who, when, for what, how long and how much, never what was said."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import structlog

from adapters.models.chat import LanguageModel, LLMAnswer, LLMRequest
from flow_engine.ports.clock import Clock
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import FailureReason, ModelAnswer, ModelCall, ModelFailed

_log: Any = structlog.get_logger("flow_engine.llm")

AnswerT = TypeVar("AnswerT", ModelAnswer, LLMAnswer)


@dataclass(frozen=True, slots=True)
class ModelCallRecord:
    """One attempt. `reason` tells a failure; tokens are 0 where the model gave no answer."""

    id: str
    at: datetime
    tenant: str | None
    conversation: str | None
    purpose: str
    model: str
    status: Literal["ok", "failed", "cancelled"]
    reason: FailureReason | None
    input_tokens: int
    output_tokens: int
    duration_ms: int


class CallLog(Protocol):
    """Keeps records. Never fails a call: what cannot be kept is the log's own affair."""

    async def write(self, record: ModelCallRecord) -> None: ...


class RecentCalls:
    """Implements `CallLog` in this process: the newest `most` records."""

    def __init__(self, most: int = 1_000) -> None:
        self._records: deque[ModelCallRecord] = deque(maxlen=most)

    async def write(self, record: ModelCallRecord) -> None:
        self._records.append(record)

    @property
    def records(self) -> Sequence[ModelCallRecord]:
        """Oldest first."""
        return tuple(self._records)


class LoggedCalls:
    """Implements `CallLog` with one event a line of the service's log (F46)."""

    async def write(self, record: ModelCallRecord) -> None:
        _log.info("model_call", **(asdict(record) | {"at": record.at.isoformat()}))


_BEHALF: ContextVar[ConversationRef | None] = ContextVar("model_calls_on_behalf_of", default=None)


@contextmanager
def on_behalf_of(conversation: ConversationRef) -> Generator[None]:
    """Records of the calls within carry this conversation and its tenant."""
    token = _BEHALF.set(conversation)
    try:
        yield
    finally:
        _BEHALF.reset(token)


class AuditedModel:
    """Implements `LanguageModel`: writes a record of every call, answered, failed or cancelled.

    `name` stands for the model in records of calls that name none and get no answer.
    """

    def __init__(
        self,
        model: LanguageModel,
        log: CallLog,
        clock: Clock,
        new_id: Callable[[], str],
        *,
        name: str,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._log = log
        self._clock = clock
        self._new_id = new_id
        self._name = name
        self._stopwatch = stopwatch

    async def ask(self, call: ModelCall) -> ModelAnswer:
        return await self._recorded(call.purpose, call.model, lambda: self._model.ask(call))

    async def chat(self, request: LLMRequest) -> LLMAnswer:
        return await self._recorded(request.purpose, request.model, lambda: self._model.chat(request))

    async def _recorded(
        self, purpose: str, model: str | None, attempt: Callable[[], Awaitable[AnswerT]]
    ) -> AnswerT:
        behalf, at, began = _BEHALF.get(), self._clock.now(), self._stopwatch()
        answer: ModelAnswer | LLMAnswer | None = None
        reason: FailureReason | None = None
        try:
            answered = answer = await attempt()
        except ModelFailed as failure:
            reason = failure.reason
            raise
        finally:
            record = ModelCallRecord(
                id=self._new_id(),
                at=at,
                tenant=behalf.tenant_id if behalf else None,
                conversation=behalf.conversation_id if behalf else None,
                purpose=purpose,
                model=answer.model if answer else model or self._name,
                status="ok" if answer else "failed" if reason else "cancelled",
                reason=reason,
                input_tokens=answer.input_tokens if answer else 0,
                output_tokens=answer.output_tokens if answer else 0,
                duration_ms=round((self._stopwatch() - began) * 1000),
            )
            await self._log.write(record)
        return answered
