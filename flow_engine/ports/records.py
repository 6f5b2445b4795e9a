"""The port to tables of JSON documents: agents, their runs and model calls, decisions (C1, C8, M14)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol, get_args

from flow_engine.values import JsonValue

RecordTable = Literal["ai_agents", "agent_runs", "llm_calls", "chat_decisions", "email_events", "mail_state"]
RECORD_TABLES: Final[tuple[RecordTable, ...]] = get_args(RecordTable)


@dataclass(frozen=True, slots=True)
class Record:
    """One document. `id` is unique in its table and tenant; `parent` groups documents, such as the runs of
    one session; `position` orders those of one parent, usually microseconds since 1970: `position_at`.

    `serial` counts the writes from 1: what a replacement is compared with.
    """

    id: str
    body: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    parent: str = ""
    position: int = 0
    serial: int = 1


def position_at(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


class RecordStore(Protocol):
    """One table. Raises RetryLater `flow_store_unavailable` when the database does not answer,
    CallTheOperator `stored_record_unreadable` for a document that is no JSON object."""

    async def insert(self, tenant_id: str, record: Record) -> bool:
        """False, and nothing is changed, for an id that is there already. `body` is stored as JSON."""
        ...

    async def replace(self, tenant_id: str, record: Record, expected_serial: int) -> bool:
        """Stores only over `expected_serial`; else False, and nothing is changed. `body` is stored as
        JSON."""
        ...

    async def get(self, tenant_id: str, record_id: str) -> Record | None: ...

    async def list(
        self,
        tenant_id: str,
        parent: str | None = "",
        *,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
    ) -> Sequence[Record]:
        """By position, those at the same one by id; from behind the position and id `after` on, at most
        `limit`. With None for the parent those of every parent, the other way round: the newest first. Bodies
        are JSON objects; empty for an unknown parent."""
        ...

    async def delete(self, tenant_id: str, record_id: str, expected_serial: int) -> bool:
        """Deletes only `expected_serial`; else False, and nothing is changed."""
        ...
