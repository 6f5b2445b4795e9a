"""What operators see of the chat: which agent its messages went to, and what became of that.

The chat is a program of its own; its accounts stand in the database of the flows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from typing_extensions import TypedDict

from flow_engine.errors import LookElsewhere
from flow_engine.ports.records import Record, RecordStore
from flow_engine.use_cases.operating import before_invalid


class ChatCandidate(TypedDict):
    agent: str
    score: float


class ChatDecisionRow(TypedDict):
    """Which agent a message of a session goes to: `action` is `accept`, `clarify`, `refuse` or `continue`,
    `decidedBy` `model` or `scores`. Scores and `confidence` are from 0 to 1. `at` is in UTC."""

    id: str
    at: str
    session: str
    messageId: str
    action: str
    agent: str | None
    confidence: float | None
    decidedBy: str
    reason: str
    candidates: Sequence[ChatCandidate]


class ChatDecisionsReply(TypedDict):
    """The newest first; `nextBefore` is where to read on, null at the end."""

    decisions: Sequence[ChatDecisionRow]
    nextBefore: str | None


class ChatRunRow(TypedDict):
    """An answer of an agent. `tools` are the names of those that it called; `costUsd` is null where a model
    has no public price. `at`, its end, is in UTC."""

    at: str
    agent: str
    messageId: str
    status: str
    finalMessage: str | None
    error: str | None
    tools: Sequence[str]
    inputTokens: int
    outputTokens: int
    costUsd: float | None


class ChatSessionReply(TypedDict):
    """Both oldest first."""

    session: str
    decisions: Sequence[ChatDecisionRow]
    runs: Sequence[ChatRunRow]


@dataclass(frozen=True, slots=True)
class ChatWatch:
    """What the chat keeps in the database of the flows. Raises RetryLater while that is away."""

    kept_decisions: RecordStore
    kept_runs: RecordStore

    async def decisions(self, tenant_id: str, before: str | None, *, limit: int) -> ChatDecisionsReply:
        """Raises CorrectTheInput `before_invalid`."""
        after = None if before is None else await self.place(tenant_id, before)
        found = await self.kept_decisions.list(tenant_id, None, after=after, limit=limit + 1)
        page = found[:limit]
        return ChatDecisionsReply(
            decisions=[_decision(each) for each in page],
            nextBefore=page[-1].id if len(found) > limit else None,
        )

    async def place(self, tenant_id: str, before: str) -> tuple[int, str]:
        """Of the decision `before` in the order of all. Raises CorrectTheInput `before_invalid`."""
        last = await self.kept_decisions.get(tenant_id, before)
        if last is None:
            raise before_invalid()
        return last.position, last.id

    async def session(self, tenant_id: str, session: str) -> ChatSessionReply:
        """Raises LookElsewhere `session_unknown`."""
        decisions = await self.kept_decisions.list(tenant_id, session)
        runs = await self.kept_runs.list(tenant_id, session) if decisions else ()
        if not decisions:
            raise LookElsewhere("session_unknown", f"the chat knows no session {session!r}")
        return ChatSessionReply(
            session=session,
            decisions=[_decision(each) for each in decisions],
            runs=[
                ChatRunRow(
                    at=body["at"],
                    agent=body["profile"],
                    messageId=body["message"],
                    status=body["status"],
                    finalMessage=body["final_message"],
                    error=body["error"],
                    tools=[str(line["tool"]) for line in body["tool_calls_log"]],
                    inputTokens=body["usage"]["input_tokens"],
                    outputTokens=body["usage"]["output_tokens"],
                    costUsd=body["usage"]["cost"],
                )
                for body in (cast("Mapping[str, Any]", each.body) for each in runs)
            ],
        )


def _decision(record: Record) -> ChatDecisionRow:
    body = cast("Mapping[str, Any]", record.body)
    return ChatDecisionRow(
        id=record.id,
        at=body["at"],
        session=body["session"],
        messageId=body["message"],
        action=body["action"],
        agent=body["agent"],
        confidence=body["confidence"],
        decidedBy=body["decided_by"],
        reason=body["reason"],
        candidates=body["candidates"],
    )
