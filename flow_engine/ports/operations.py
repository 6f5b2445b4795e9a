"""The ports through which operators see an installation at work: processes, jobs, events, model calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from flow_engine.ports.jobs import Job

ProcessKind = Literal["serve", "worker", "mcp"]


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process of this installation and when it last said that it lives. `name` is its machine's and its
    number. Times are in UTC."""

    name: str
    kind: ProcessKind
    release: str
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job that is written down: `held` by somebody until `due_at` (UTC), or due then."""

    job: Job
    due_at: datetime
    held: bool


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Entries of a stream, the newest first: their ids and fields. `next` is the id to read on before, None
    at the end of the stream."""

    entries: Sequence[tuple[str, Mapping[str, bytes]]]
    next: str | None


class OperationsLog(Protocol):
    """What all processes on one memory leave behind for operators. Raises RetryLater when it does not
    answer."""

    async def processes(self) -> Sequence[SeenProcess]:
        """Those seen in the last ten minutes, the latest first. Times are in UTC."""
        ...

    async def jobs(self, now: datetime, *, at_most: int) -> Sequence[SeenJob]:
        """The first to be due, of every tenant. `now` is in UTC."""
        ...

    async def backlog(self, now: datetime) -> tuple[int, float, int]:
        """Due jobs that nobody has taken, the age of the oldest in seconds, and buried jobs."""
        ...

    async def events(self, tenant_id: str, before: str | None, *, at_most: int) -> StreamPart:
        """Of the reporting stream: fields `event` (JSON), `conversation` and `kind`."""
        ...

    async def model_calls(self, tenant_id: str, before: str | None, *, at_most: int) -> StreamPart:
        """Attempts at model calls: one field `call`, a JSON object."""
        ...
