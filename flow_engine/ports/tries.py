"""The port to tries: a designer's conversations with a document, kept between their turns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeptTry:
    """`document` is the version's JSON, `record` what happened so far, opaque bytes. `revision` counts the
    turns from 1. `expires_at` is in UTC."""

    document: bytes
    record: bytes
    revision: int
    expires_at: datetime


class TryStore(Protocol):
    """Tries of tenants, gone when they expire. Raises RetryLater `memory_unavailable` when the store does not
    answer."""

    async def create(self, tenant_id: str, try_id: str, kept: KeptTry, *, now: datetime, most: int) -> bool:
        """False, and nothing done, where the tenant has `most` tries that have not expired. UTC."""
        ...

    async def load(self, tenant_id: str, try_id: str) -> KeptTry | None:
        """None where there is none, or not any more."""
        ...

    async def save(self, tenant_id: str, try_id: str, kept: KeptTry, *, now: datetime) -> bool:
        """Over the revision before `kept.revision`, its document left as it is. False, and nothing done,
        where another one is stored. UTC."""
        ...

    async def remove(self, tenant_id: str, try_id: str) -> None: ...
