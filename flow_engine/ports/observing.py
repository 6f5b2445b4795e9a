"""The port by which the engine's work is counted; names and labels are listed where they are exported."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    def count(self, what: str, amount: int = 1, /, **labels: str) -> None: ...


class Unobserved:
    """Implements `Observer` where nobody counts."""

    def count(self, what: str, amount: int = 1, /, **labels: str) -> None:
        return
