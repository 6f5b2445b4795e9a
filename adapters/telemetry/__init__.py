"""Traces by OpenTelemetry, whose SDK is imported here, when they are wanted; and stores observed: their
errors counted, and their calls as spans where traces are on.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Literal

import msgspec

from flow_engine.errors import RetryLater
from flow_engine.idempotency import IdempotencyKey
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import FlowRecord, FlowStore, StoredVersion, VersionStore
from flow_engine.ports.telemetry import Observer, Tracing, Untraced
from flow_engine.runtime.storage import (
    Changes,
    ConversationMemory,
    Erasure,
    LoadedConversation,
    Outcome,
    RemoveElsewhere,
)

Destination = Literal["otlp", "console"]


@contextmanager
def tracing_to(destination: Destination | None) -> Generator[Tracing]:
    """`otlp`: to the collector that the standard OTEL_EXPORTER_OTLP_ENDPOINT names; `console`: to standard
    error, one JSON object a line. On leaving, what is not sent yet is sent."""
    if destination is None:
        yield Untraced()
        return
    from adapters.telemetry.otel import exporting  # noqa: PLC0415

    tracing = exporting(destination)
    try:
        yield tracing
    finally:
        tracing.close()


class StoreErrors:
    """A context that counts the failures of a store, RetryLater, and lets them through."""

    def __init__(self, observer: Observer, store: Literal["flows", "memory"] = "flows") -> None:
        self._observer, self._store = observer, store

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RetryLater):
            self._observer.count("store_errors", store=self._store)


def observed_memory(memory: ConversationMemory, observer: Observer, tracing: Tracing) -> ConversationMemory:
    observed = ObservedMemory(memory, observer)
    return TracedMemory(observed, tracing) if tracing.on else observed


class ObservedMemory:
    """Implements `ConversationMemory`: counts its failures, RetryLater. What every request passes does so by
    handlers, which cost nothing until they are needed, as a context does."""

    def __init__(self, memory: ConversationMemory, observer: Observer) -> None:
        self._memory = memory
        self._observer = observer
        self._errors = StoreErrors(observer, "memory")

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> LoadedConversation:
        try:
            return await self._memory.load(conversation, idempotency=idempotency, with_turns=with_turns)
        except RetryLater:
            self._count_failure()
            raise

    def held(self, conversation: ConversationRef) -> LoadedConversation | None:
        return self._memory.held(conversation)

    def may_be_new(self, conversation: ConversationRef) -> bool:
        return self._memory.may_be_new(conversation)

    async def commit(self, conversation: ConversationRef, changes: Changes) -> Outcome:
        try:
            return await self._memory.commit(conversation, changes)
        except RetryLater:
            self._count_failure()
            raise

    async def erase(self, conversation: ConversationRef, erasure: Erasure) -> bool:
        with self._errors:
            return await self._memory.erase(conversation, erasure)

    async def finish_erasure(
        self, conversation: ConversationRef, now: datetime, elsewhere: RemoveElsewhere
    ) -> None:
        with self._errors:
            await self._memory.finish_erasure(conversation, now, elsewhere)

    def _count_failure(self) -> None:
        self._observer.count("store_errors", store="memory")


class TracedMemory:
    """Implements `ConversationMemory`: a span for each call, and the W3C `traceparent` that background jobs
    will continue."""

    def __init__(self, memory: ConversationMemory, tracing: Tracing) -> None:
        self._memory = memory
        self._tracing = tracing

    async def load(
        self,
        conversation: ConversationRef,
        *,
        idempotency: IdempotencyKey | None = None,
        with_turns: bool = False,
    ) -> LoadedConversation:
        with self._tracing.span("memory load", "client"):
            return await self._memory.load(conversation, idempotency=idempotency, with_turns=with_turns)

    def held(self, conversation: ConversationRef) -> LoadedConversation | None:
        return self._memory.held(conversation)

    def may_be_new(self, conversation: ConversationRef) -> bool:
        return self._memory.may_be_new(conversation)

    async def commit(self, conversation: ConversationRef, changes: Changes) -> Outcome:
        if changes.jobs:
            changes = msgspec.structs.replace(changes, trace=self._tracing.traceparent())
        with self._tracing.span("memory commit", "client"):
            outcome = await self._memory.commit(conversation, changes)
            self._tracing.note({"flow_engine.commit.outcome": type(outcome).__name__})
            return outcome

    async def erase(self, conversation: ConversationRef, erasure: Erasure) -> bool:
        with self._tracing.span("memory erase", "client"):
            return await self._memory.erase(conversation, erasure)

    async def finish_erasure(
        self, conversation: ConversationRef, now: datetime, elsewhere: RemoveElsewhere
    ) -> None:
        with self._tracing.span("memory erase", "client"):
            await self._memory.finish_erasure(conversation, now, elsewhere)


class ObservedFlowStore:
    """Implements `FlowStore`: counts its errors."""

    def __init__(self, flows: FlowStore, observer: Observer) -> None:
        self._flows = flows
        self._errors = StoreErrors(observer)

    async def insert(self, tenant_id: str, flow: FlowRecord) -> bool:
        with self._errors:
            return await self._flows.insert(tenant_id, flow)

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool:
        with self._errors:
            return await self._flows.replace(tenant_id, flow, expected_revision)

    async def get(self, tenant_id: str, flow_id: str) -> FlowRecord | None:
        with self._errors:
            return await self._flows.get(tenant_id, flow_id)

    async def list(self, tenant_id: str, campaign_id: str | None) -> Sequence[FlowRecord]:
        with self._errors:
            return await self._flows.list(tenant_id, campaign_id)


class ObservedVersionStore:
    """Implements `VersionStore`: counts its errors."""

    def __init__(self, versions: VersionStore, observer: Observer) -> None:
        self._versions = versions
        self._errors = StoreErrors(observer)

    async def insert(self, tenant_id: str, version: StoredVersion) -> bool:
        with self._errors:
            return await self._versions.insert(tenant_id, version)

    async def get(self, tenant_id: str, version_id: str) -> StoredVersion | None:
        with self._errors:
            return await self._versions.get(tenant_id, version_id)

    async def remove(self, tenant_id: str, version: StoredVersion) -> bool:
        with self._errors:
            return await self._versions.remove(tenant_id, version)
