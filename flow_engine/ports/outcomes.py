"""The port to what is counted of the conversations of a split."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CountedConversation:
    """What one conversation adds to the sums of its version: whole numbers, not negative, by what they count.

    `conversation` tells it from all others and does not name it. What was counted of a conversation is
    replaced by what comes with the same `order` or a later one.
    """

    split_id: str
    version_id: str
    conversation: str
    order: int
    counts: Mapping[str, int]


class OutcomeCounts(Protocol):
    """Sums by split. Raises RetryLater `memory_unavailable` when the store does not answer."""

    async def put(self, tenant_id: str, counted: CountedConversation) -> None:
        """Add a conversation, or replace what it has added before."""
        ...

    async def read(self, tenant_id: str, split_id: str) -> Mapping[str, Mapping[str, int]]:
        """Sums by version id and by what they count; empty for a split of which nothing was counted."""
        ...
