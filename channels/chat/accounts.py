"""The accounts of agents (M14): runs, calls of models, decisions; and what they cost."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, cast
from uuid import uuid4

import structlog

from adapters.models.prices import price
from channels.chat.agents import ModelUse
from channels.chat.decisions import Decision
from channels.chat.frames import AnswerFrames
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.outages import Outage
from flow_engine.ports.chat import SessionRef
from flow_engine.ports.clock import Clock
from flow_engine.ports.models import ModelFailed
from flow_engine.ports.records import Record, RecordStore, position_at
from flow_engine.ports.telemetry import Observer, Unobserved
from flow_engine.values import JsonValue, utc_text

KEPT_AGAIN_S: Final = 0.2
FORGET_EVERY_S: Final = 60 * 60
PAGE: Final = 500

RunStatus = Literal["completed", "max_iterations", "error", "cancelled"]

log: Any = structlog.get_logger("flow_engine.chat")


@dataclass(slots=True)
class AgentRun:
    """One answer of one agent, to `message`. A line of `tool_calls_log` is a JSON object `{tool, arguments,
    result, iteration}`, iterations from 1."""

    profile: str
    message: str
    status: RunStatus = "completed"
    tool_calls_log: list[JsonValue] = field(default_factory=list[JsonValue])
    final_message: str | None = None
    error: str | None = None
    uses: Sequence[ModelUse] = ()


class Accounts:
    """Keeps them. An account that cannot be kept fails no answer: it is tried once more after `KEPT_AGAIN_S`,
    as the store may only be locked by another replica, then logged and given up. Who waits for one may be
    cancelled, also twice: it is kept all the same, and `aclose` waits for it."""

    def __init__(
        self,
        runs: RecordStore,
        calls: RecordStore,
        decisions: RecordStore,
        clock: Clock,
        observer: Observer | None = None,
    ) -> None:
        self._runs = runs
        self._calls = calls
        self._decisions = decisions
        self._clock = clock
        self._observer = observer or Unobserved()
        self._keeping: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Returns once everything is kept or given up, before the store is closed."""
        await asyncio.gather(*self._keeping)

    async def decided(
        self, ref: SessionRef, message_id: str, decision: Decision, agent_revision: int | None
    ) -> None:
        body: dict[str, JsonValue] = {
            **decision.reply(),
            "message": message_id,
            "session": ref.session_id,
            "agent_revision": agent_revision,
            "at": utc_text(self._clock.now()),
        }
        record = Record(uuid4().hex, body, ref.session_id, position_at(self._clock.now()))
        await self._kept(ref, [(self._decisions, record)])
        self._observer.count("chat_decisions", action=decision.action, decided_by=decision.decided_by)

    async def routed(self, ref: SessionRef, message_id: str, uses: Sequence[ModelUse]) -> None:
        """The calls of the orchestrator's model for one message."""
        await self._kept(ref, self._called(ref, ref.session_id, uses, "routing", message_id))

    async def ran(self, ref: SessionRef, run: AgentRun) -> None:
        run_id = uuid4().hex
        body: dict[str, JsonValue] = {
            "profile": run.profile,
            "message": run.message,
            "status": run.status,
            "tool_calls_log": run.tool_calls_log,
            "final_message": run.final_message,
            "iterations": len(run.uses),
            "error": run.error,
            "usage": usage_of(run.uses),
            "session": ref.session_id,
            "at": utc_text(self._clock.now()),
        }
        record = Record(run_id, body, ref.session_id, position_at(self._clock.now()))
        calls = self._called(ref, run_id, run.uses, "agent", run.message)
        await self._kept(ref, [(self._runs, record), *calls])
        self._observer.count("chat_runs", status=run.status)
        self._observer.count("chat_tool_calls", len(run.tool_calls_log))

    @asynccontextmanager
    async def running(self, ref: SessionRef, run: AgentRun, frames: AnswerFrames) -> AsyncGenerator[None]:
        """The run is kept once this is left, with the text that was shown, and why it failed."""
        try:
            yield
        except ModelFailed as failure:
            run.status, run.error = "error", str(failure)
            raise
        except asyncio.CancelledError:
            run.status = "cancelled"
            raise
        finally:
            run.final_message = frames.text or None
            await self.ran(ref, run)

    async def decisions(self, ref: SessionRef) -> list[Mapping[str, JsonValue]]:
        """The decisions of a session as JSON objects, oldest first; empty for an unknown one."""
        return [record.body for record in await self._decisions.list(ref.tenant_id, ref.session_id)]

    async def runs(self, ref: SessionRef) -> list[Mapping[str, JsonValue]]:
        """The runs of a session as JSON objects, oldest first, each with its calls of models, and those that
        led its message to it; empty for an unknown one."""
        routing = await self._calls.list(ref.tenant_id, ref.session_id)
        return [
            {
                **record.body,
                "llm_calls": [dict(call.body) for call in await self._calls.list(ref.tenant_id, record.id)],
                "routing_calls": [
                    dict(call.body) for call in routing if call.body["message"] == record.body["message"]
                ],
            }
            for record in await self._runs.list(ref.tenant_id, ref.session_id)
        ]

    async def usage(self, ref: SessionRef) -> dict[str, JsonValue]:
        """Of all runs of a session and of its routing: tokens, and the cost in US dollars, None where a model
        has no known price."""
        runs = await self._runs.list(ref.tenant_id, ref.session_id)
        routing = await self._calls.list(ref.tenant_id, ref.session_id)
        spent = [
            *(cast("Mapping[str, JsonValue]", run.body["usage"]) for run in runs),
            *(call.body for call in routing),
        ]
        total: dict[str, JsonValue] = {
            name: sum(cast("int", each[name]) for each in spent) for name in ("input_tokens", "output_tokens")
        }
        costs = [cast("float | None", each["cost"]) for each in spent]
        known = [cost for cost in costs if cost is not None]
        return {**total, "cost": sum(known) if len(known) == len(costs) else None}

    @asynccontextmanager
    async def forgetting(self, tenants: Collection[str], kept_days: int) -> AsyncGenerator[None]:
        """While this is open, what is older than so many days is deleted, once an hour."""
        kept = timedelta(days=kept_days)

        async def forget() -> None:
            outage = Outage(log, "accounts_not_forgotten", "accounts_forgotten_again")
            while True:
                try:
                    for tenant_id in tenants:
                        await self.forget(tenant_id, self._clock.now() - kept)
                except (RetryLater, CallTheOperator) as away:
                    outage.met(away)
                else:
                    outage.ended()
                await asyncio.sleep(FORGET_EVERY_S)

        forgets = asyncio.create_task(forget())
        try:
            yield
        finally:
            forgets.cancel()
            await asyncio.wait({forgets})

    async def forget(self, tenant_id: str, before: datetime) -> None:
        """Delete the decisions that are older than that moment (UTC), and what came of their messages. Raises
        RetryLater, CallTheOperator."""
        bound = position_at(before)
        after = (bound, "")
        while page := await self._decisions.list(tenant_id, None, after=after, limit=PAGE):
            messages: dict[str, set[JsonValue]] = {}
            for decision in page:
                messages.setdefault(decision.parent, set()).add(decision.body["message"])
            for session, own in messages.items():
                await self._forget_messages(SessionRef(tenant_id, session), own, bound)
            for decision in page:  # after what is found by them
                await self._decisions.delete(tenant_id, decision.id, decision.serial)
            after = (page[-1].position, page[-1].id)

    async def _forget_messages(self, ref: SessionRef, messages: Collection[JsonValue], bound: int) -> None:
        """What is as old as `bound` too: of a message whose model failed there is no decision."""

        def is_old(record: Record) -> bool:
            return record.position <= bound or record.body["message"] in messages

        runs = [*filter(is_old, await self._runs.list(ref.tenant_id, ref.session_id))]
        for parent in (ref.session_id, *(run.id for run in runs)):
            for call in await self._calls.list(ref.tenant_id, parent):
                if is_old(call):
                    await self._calls.delete(ref.tenant_id, call.id, call.serial)
        for run in runs:
            await self._runs.delete(ref.tenant_id, run.id, run.serial)

    def _called(
        self,
        ref: SessionRef,
        parent: str,
        uses: Sequence[ModelUse],
        call_type: Literal["agent", "routing"],
        message_id: str,
    ) -> list[tuple[RecordStore, Record]]:
        found: list[tuple[RecordStore, Record]] = []
        for number, use in enumerate(uses, start=1):
            body: dict[str, JsonValue] = {
                "call_type": call_type,
                "iteration": number,
                "model": use.model,
                "status": use.status,
                "input_tokens": use.input_tokens,
                "output_tokens": use.output_tokens,
                "cost": cost([use]),
                "duration_ms": use.duration_ms,
                "session": ref.session_id,
                "message": message_id,
                "at": utc_text(self._clock.now()),
            }
            position = position_at(self._clock.now()) + number
            found.append((self._calls, Record(uuid4().hex, body, parent, position)))
        return found

    async def _kept(self, ref: SessionRef, entries: Sequence[tuple[RecordStore, Record]]) -> None:
        keeping = asyncio.create_task(self._keep(ref, entries))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)
        await asyncio.shield(keeping)

    async def _keep(self, ref: SessionRef, entries: Sequence[tuple[RecordStore, Record]]) -> None:
        for store, record in entries:
            try:
                try:
                    await store.insert(ref.tenant_id, record)
                except RetryLater:
                    await asyncio.sleep(KEPT_AGAIN_S)
                    await store.insert(ref.tenant_id, record)
            except RetryLater as away:
                log.error("account_lost", code=away.code)


def usage_of(uses: Sequence[ModelUse]) -> dict[str, JsonValue]:
    """Tokens, and the cost in US dollars; None where a model has no known price."""
    return {
        "input_tokens": sum(use.input_tokens for use in uses),
        "output_tokens": sum(use.output_tokens for use in uses),
        "cost": cost(uses),
    }


def cost(uses: Sequence[ModelUse]) -> float | None:
    """In US dollars by the public prices of models for their tokens; None where one of them is not listed."""
    answered = [use for use in uses if use.status != "failed"]  # the others cost nothing
    prices = [price(use.model, use.input_tokens, use.output_tokens) for use in answered]
    known = [each for each in prices if each is not None]
    return sum(known, 0.0) if len(known) == len(prices) else None
