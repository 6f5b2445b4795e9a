"""A flow_service over stores that can fail: what the tests of the designers' use cases start from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

from flow_engine.errors import RetryLater
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.flow_store import FlowRecord, FlowStore, StoredVersion, VersionEntry, VersionStore
from flow_engine.use_cases.flow_service import FlowService
from flows.sqlite_store import MEMORY, SqliteDatabase, SqliteFlowStore, SqliteVersionStore

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = IdempotencyKey("key", "print")


@dataclass
class SetClock:
    time: datetime = T0

    def now(self) -> datetime:
        return self.time


@dataclass
class FailingFlows:
    """A flow store whose next replacement fails, before it is done or after."""

    inner: FlowStore
    fail: str | None = None

    async def insert(self, tenant_id: str, flow: FlowRecord) -> bool:
        return await self.inner.insert(tenant_id, flow)

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool:
        fail, self.fail = self.fail, None
        if fail == "before":
            raise RetryLater("flow_store_unavailable", "gone before the write")
        done = await self.inner.replace(tenant_id, flow, expected_revision)
        if fail == "after":
            raise RetryLater("flow_store_unavailable", "gone after the write")
        return done

    async def get(self, tenant_id: str, flow_id: str) -> FlowRecord | None:
        return await self.inner.get(tenant_id, flow_id)

    async def list(self, tenant_id: str, campaign_id: str | None) -> Sequence[FlowRecord]:
        return await self.inner.list(tenant_id, campaign_id)


@dataclass
class Overtaken(FailingFlows):
    """A flow store in which somebody else is faster once, and does `first`."""

    first: Callable[[], Awaitable[object]] | None = None

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool:
        first, self.first = self.first, None
        if first is not None:
            await first()
        return await super().replace(tenant_id, flow, expected_revision)


class AlwaysSlower(FailingFlows):
    """A flow store in which somebody else is always faster."""

    async def replace(self, tenant_id: str, flow: FlowRecord, expected_revision: int) -> bool:
        return False


@dataclass
class FailingVersions:
    """A version store whose next insert fails before it is done; counts the inserts that were asked for."""

    inner: VersionStore
    fail: bool = False
    inserts: list[str] = field(default_factory=list[str])

    async def insert(self, tenant_id: str, version: StoredVersion) -> bool:
        self.inserts.append(version.version_id)
        fail, self.fail = self.fail, False
        if fail:
            raise RetryLater("flow_store_unavailable", "gone before the write")
        return await self.inner.insert(tenant_id, version)

    async def get(self, tenant_id: str, version_id: str) -> StoredVersion | None:
        return await self.inner.get(tenant_id, version_id)

    async def remove(self, tenant_id: str, version: StoredVersion) -> bool:
        return await self.inner.remove(tenant_id, version)


@dataclass
class Scene:
    """A flow_service over stores that can fail, with shorthands for the designers' requests."""

    flows: FailingFlows
    versions: FailingVersions
    clock: SetClock
    ids: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.flow_service = FlowService(
            flows=self.flows,
            versions=self.versions,
            clock=self.clock,
            new_id=lambda: f"f{next(self.ids)}",
        )

    async def create(
        self,
        tenant: str = "t",
        *,
        name: str = "n",
        campaign: str = "c",
        key: IdempotencyKey | None = None,
    ) -> str:
        reply = await self.flow_service.create_flow(
            tenant,
            name=name,
            campaign_id=campaign,
            schema_version="1.0.0",
            updated_by="anna",
            respond=lambda flow: FinalReply(201, flow.flow_id.encode()),
            idempotency=key,
        )
        return reply.body.decode()

    async def save(
        self,
        flow_id: str,
        version_id: str,
        parent: str | None = None,
        tag: str | None = None,
        *,
        tenant: str = "t",
        document: bytes = b"{}",
        channels: tuple[str, ...] = ("phone",),
        key: IdempotencyKey | None = None,
    ) -> FinalReply:
        return await self.flow_service.save_version(
            tenant,
            flow_id,
            document=document,
            entry=VersionEntry(version_id, False, channels, "hash", "anna", self.clock.now()),
            parent_version_id=parent,
            tag=tag,
            respond=lambda flow: FinalReply(201, f"{version_id} at {flow.revision}".encode()),
            idempotency=key,
        )

    async def move(
        self,
        flow_id: str,
        tag: str,
        version_id: str,
        *,
        tenant: str = "t",
        key: IdempotencyKey | None = None,
    ) -> FinalReply:
        return await self.flow_service.move_tag(
            tenant,
            flow_id,
            tag=tag,
            version_id=version_id,
            moved_by="bruno",
            respond=lambda flow: FinalReply(200, f"at {flow.revision}".encode()),
            idempotency=key,
        )

    async def rename(self, flow_id: str, name: str, *, key: IdempotencyKey | None = None) -> FinalReply:
        return await self.flow_service.rename_flow(
            "t",
            flow_id,
            name=name,
            updated_by="bruno",
            respond=lambda flow: FinalReply(200, f"at {flow.revision}".encode()),
            idempotency=key,
        )

    async def tags(self, flow_id: str) -> dict[str, str]:
        flow = await self.flow_service.get_flow("t", flow_id)
        return {entry.tag: entry.version_id for entry in flow.tags}


@asynccontextmanager
async def open_scene() -> AsyncGenerator[Scene, None]:
    database = SqliteDatabase(MEMORY)
    await database.open()
    yield Scene(
        FailingFlows(SqliteFlowStore(database)), FailingVersions(SqliteVersionStore(database)), SetClock()
    )
    await database.close()
