"""The port to time."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The only source of time. `now` is aware and in UTC."""

    def now(self) -> datetime: ...
