"""What a proof counts: the ledger of the clients, against what Redis holds and what the stream was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from flow_engine.ports.dialogue import ConversationRef
from memory.connection import RedisMemory
from memory.keys import EVENTS_KEY, ConversationKeys
from tests.resilience.flow import TENANT
from tests.resilience.operations import ReadMemory
from tests.resilience.verifier import Breach, Stored, breaches
from tests.resilience.workload import Workload

COLUMNS = ("lost", "doubled", "chain", "replay", "half written", "refusal")
"""Kinds of breaches: acknowledged writes or events lost; doubled; gaps and wrong order; a repeated request
that got other bytes; a conversation that is not whole; an answer that nothing announces, as unknown 5xx."""


@dataclass
class Finding:
    """One row. `must_find` are kinds that a negative control has to show, `may_find` those by design."""

    promise: str
    acknowledged: int = 0
    breaches: list[Breach] = field(default_factory=list[Breach])
    recoveries_s: Sequence[float] = ()
    note: str = ""
    must_find: frozenset[str] = frozenset()
    may_find: frozenset[str] = frozenset()

    @property
    def counts(self) -> Counter[str]:
        return Counter(breach.kind for breach in self.breaches)

    @property
    def holds(self) -> bool:
        found = self.counts.keys()
        return self.must_find <= found and (bool(self.must_find) or found <= self.may_find)


async def stream_of(memory: RedisMemory) -> dict[str, list[dict[str, Any]]]:
    """What a consumer has seen of each conversation, in order."""
    seen: dict[str, list[dict[str, Any]]] = {}
    for _, fields in await memory.driver.xrange(EVENTS_KEY, at_most=1_000_000):
        seen.setdefault(fields[b"conversation"].decode(), []).append(orjson.loads(fields[b"event"]))
    return seen


async def examined(
    workload: Workload, memory: RedisMemory, *, repeats_allowed: bool = False
) -> tuple[int, list[Breach]]:
    """Acknowledged writes, and all that is wrong with them. `repeats_allowed`: events may come again."""
    found = [Breach("lost", read) for read in workload.ledger.stale_reads]
    for reply in workload.ledger.unavailable:
        if reply.retry_after is None or not reply.json["code"].startswith("memory_"):
            found.append(Breach("refusal", f"503 {reply.body!r}"))
    told = await stream_of(memory)
    for name in workload.conversations:
        ref = ConversationRef(TENANT, name)
        keys = ConversationKeys.of(ref)
        events = [*told.get(name, ())]
        waiting = await memory.driver.xrange(keys.named["outbox"], at_most=100_000)
        events += [orjson.loads(fields[b"event"]) for _, fields in waiting]
        if repeats_allowed:
            events = list({event["eventId"]: event for event in reversed(events)}.values())[::-1]
        expiries = {key.rpartition("::")[2]: await expiry_ms(memory, key) for key in keys.state}
        stored = Stored(
            await memory.conversations.load(ref, with_turns=True),
            events,
            {key: expiry for key, expiry in expiries.items() if expiry != -2},
        )
        if stored.loaded.session is None:
            kept = [e for e in workload.ledger.of(name) if e.reply.status == 200]
            found += [Breach("lost", f"{name} is gone, {len(kept)} replies acknowledged it")] * bool(kept)
            continue
        found += [Breach(b.kind, f"{name}: {b.detail}") for b in breaches(workload.ledger.of(name), stored)]
    acknowledged = sum(
        e.reply.status == 200 and not isinstance(e.operation, ReadMemory) for e in workload.ledger.exchanges
    )
    return acknowledged, found


async def expiry_ms(memory: RedisMemory, key: str) -> int:
    client: Any = memory.driver.client  # type: ignore[attr-defined]
    return int(await client.pttl(key))


def table(findings: Sequence[Finding]) -> str:
    width = max(len(finding.promise) for finding in findings)
    head = f"{'promise':{width}}  writes  " + "  ".join(COLUMNS) + "  back in s  verdict"
    lines = [head, "-" * len(head)]
    for finding in findings:
        counts = finding.counts
        cells = "  ".join(f"{counts[kind]:>{len(kind)}}" for kind in COLUMNS)
        slowest = f"{max(finding.recoveries_s):9.1f}" if finding.recoveries_s else " " * 9
        verdict = "holds" if finding.holds else "BROKEN"
        if finding.must_find:
            verdict = "caught" if finding.holds else "NOT CAUGHT"
        elif finding.breaches and finding.holds:
            verdict = "by design"
        lines.append(f"{finding.promise:{width}}  {finding.acknowledged:6}  {cells}  {slowest}  {verdict}")
        if finding.note:
            lines.append(f"{'':{width}}  {finding.note}")
    return "\n".join(lines)
