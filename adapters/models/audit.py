"""A record of every model call: who, when, for what, how long and how much, never the messages."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import uuid4

import structlog

from flow_engine.ports import models
from flow_engine.ports.clock import Clock

_log: Any = structlog.get_logger("flow_engine.llm")


@dataclass(frozen=True, slots=True)
class ModelCallRecord:
    """One attempt. `reason` is a failure's; tokens are 0 where the model gave no answer."""

    id: str
    at: datetime
    tenant: str | None
    conversation: str | None
    purpose: str
    model: str
    status: Literal["ok", "failed", "cancelled"]
    reason: models.FailureReason | None
    input_tokens: int
    output_tokens: int
    duration_ms: int


class CallLog(Protocol):
    """Keeps records. Never fails a call: what cannot be kept is the log's own affair."""

    async def write(self, record: ModelCallRecord) -> None: ...


class LoggedCalls:
    """Implements `CallLog` with one event a line of the service's log, JSON (F46)."""

    async def write(self, record: ModelCallRecord) -> None:
        _log.info("model_call", **(asdict(record) | {"at": record.at.isoformat()}))


class AuditedModel:
    """Implements `LanguageModel`: writes a record of every call, answered, failed or cancelled.

    `name` stands for the model in records of calls that name none and get no answer. `stopwatch` gives
    seconds.
    """

    def __init__(
        self,
        model: models.LanguageModel,
        log: CallLog,
        clock: Clock,
        new_id: Callable[[], str] = lambda: uuid4().hex,
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

    async def stream(self, request: models.LLMRequest) -> AsyncGenerator[models.ModelEvent]:
        at, began = self._clock.now(), self._stopwatch()
        answer: models.LLMAnswer | None = None
        reason: models.FailureReason | None = None
        try:
            async with aclosing(self._model.stream(request)) as events:
                async for event in events:
                    if isinstance(event, models.LLMAnswer):
                        answer = event
                        break
                    yield event
        except models.ModelFailed as failure:
            reason = failure.reason
            raise
        finally:
            conversation = request.conversation
            await self._log.write(
                ModelCallRecord(
                    id=self._new_id(),
                    at=at,
                    tenant=conversation.tenant_id if conversation else None,
                    conversation=conversation.conversation_id if conversation else None,
                    purpose=request.purpose,
                    model=answer.model if answer else request.model or self._name,
                    status="ok" if answer else "failed" if reason else "cancelled",
                    reason=reason,
                    input_tokens=answer.input_tokens if answer else 0,
                    output_tokens=answer.output_tokens if answer else 0,
                    duration_ms=round((self._stopwatch() - began) * 1000),
                )
            )
        if answer:
            yield answer
