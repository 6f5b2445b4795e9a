"""The outcomes of splits on Redis: two hashes a split, sums and what each conversation has added to them.

{tenant:rollout:split}::sums      hash: `version:what` → a whole number, ids percent-encoded
{tenant:rollout:split}::counted   hash: digest of a conversation → its part, see count_outcome.lua
"""

from collections.abc import Mapping
from urllib.parse import unquote

from flow_engine.ports.dialogue import encoded_id
from flow_engine.ports.outcomes import CountedConversation
from memory.driver import Driver, Script
from memory.keys import outcome_keys

LIFETIME_S = 90 * 24 * 60 * 60
"""After the last conversation that was counted."""
COUNTED_KEPT = 20_000
"""The newest conversations of a split whose part can be replaced; one that ends again later counts twice."""


class RedisOutcomes:
    """Implements `OutcomeCounts`. Raises what `Driver` raises."""

    def __init__(self, driver: Driver, *, kept: int = COUNTED_KEPT) -> None:
        self._driver = driver
        self._kept = kept
        self._count, self._read = Script.read("count_outcome"), Script.read("read_outcomes")

    async def put(self, tenant_id: str, counted: CountedConversation) -> None:
        version = encoded_id(counted.version_id)
        counts = " ".join(
            f"{version}:{encoded_id(name)}={number}" for name, number in counted.counts.items() if number
        )
        args = {
            "conversation": counted.conversation,
            "order": counted.order,
            "counts": counts,
            "kept": self._kept,
            "lifetime": LIFETIME_S,
        }
        await self._driver.run(self._count, outcome_keys(tenant_id, counted.split_id), args)

    async def read(self, tenant_id: str, split_id: str) -> Mapping[str, Mapping[str, int]]:
        sums = outcome_keys(tenant_id, split_id)["sums"]
        flat = await self._driver.run(self._read, {"sums": sums}, {})
        found: dict[str, dict[str, int]] = {}
        for field, number in zip(flat[::2], flat[1::2], strict=True):
            version, colon, name = field.decode().partition(":")
            if colon:
                found.setdefault(unquote(version), {})[unquote(name)] = int(number)
        return found
