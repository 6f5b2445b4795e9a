"""The port by which background work is counted; names and labels are listed where they are exported."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    def count(self, what: str, **labels: str) -> None: ...


class Unobserved:
    """Implements `Observer` where nobody counts."""

    def count(self, what: str, **labels: str) -> None:
        return
