"""What a client asks of the engine, and the one protocol through which every store is driven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson


@dataclass(frozen=True, slots=True)
class NewContact:
    conversation: str
    contact: str


@dataclass(frozen=True, slots=True)
class ChangeTask:
    conversation: str
    contact: str
    task: str


@dataclass(frozen=True, slots=True)
class WriteMemory:
    """One batch; `values` by variable id."""

    conversation: str
    contact: str
    tool: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Say:
    conversation: str
    contact: str
    message: str


@dataclass(frozen=True, slots=True)
class ReadMemory:
    conversation: str


Operation = NewContact | ChangeTask | WriteMemory | Say | ReadMemory


@dataclass(frozen=True, slots=True)
class Reply:
    """`retry_after` is the header's value, None without one."""

    status: int
    body: bytes
    retry_after: str | None = None

    @property
    def json(self) -> dict[str, Any]:
        return orjson.loads(self.body)


class Unanswered(Exception):
    """The process went away before it replied: nobody knows whether the operation took effect."""


class Engine(Protocol):
    """Engine processes on one store, numbered from 0."""

    @property
    def processes(self) -> int: ...

    async def send(self, process: int, operation: Operation, key: str | None) -> Reply:
        """Raises Unanswered."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    operation: Operation
    key: str | None
    reply: Reply
