"""The port to time."""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The only source of time. `now` is aware and in UTC."""

    def now(self) -> datetime: ...


class SystemClock:
    """Implements `Clock` by this machine's."""

    def now(self) -> datetime:
        return datetime.now(UTC)
