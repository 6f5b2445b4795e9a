"""Runs of the mail agent as people see them: listed, shown, and decided on where a call waits (M14).

A run is one document of the table `agent_runs`. Its own fields are the audit; `work` is what the process that
holds it needs, and leaves with the run's end. Runs under way, those that have ended, and those whose texts
were forgotten stand under three parents, so that looking for work does not read the past. A run moves from
one to the next and never back: whoever reads them in this order misses none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, cast, get_args

from flow_engine.errors import CorrectTheInput, LookElsewhere, ReloadAndDecide, RetryLater
from flow_engine.ports.clock import Clock
from flow_engine.ports.records import Record, RecordStore, position_at
from flow_engine.values import JsonValue, utc_text

RunStatus = Literal["queued", "running", "waiting", "completed", "max_iterations", "error"]
RUN_STATUSES: Final[tuple[RunStatus, ...]] = get_args(RunStatus)
Decision = Literal["approved", "rejected"]

OPEN: Final = "mail:open"
ENDED: Final = "mail:ended"
FORGOTTEN: Final = "mail:forgotten"
ATTEMPTS: Final = 20
CHUNK: Final = 500
"""Runs that are read at a time."""

Row = Mapping[str, JsonValue]


class AgentRuns:
    """Every method raises RetryLater when the store is away."""

    def __init__(self, runs: RecordStore, calls: RecordStore, events: RecordStore, clock: Clock) -> None:
        self._runs = runs
        self._calls = calls
        self._events = events
        self._clock = clock

    async def rows(
        self,
        tenant_id: str,
        status: RunStatus | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[Row]:
        """Oldest first; those of `status` only, where one is named; from behind the run `after` on, at most
        `limit`. Raises CorrectTheInput `after_invalid` for a run that is not there."""
        at = None if after is None else await self.place(tenant_id, after)
        found: list[Row] = []
        while limit is None or len(found) < limit:
            # One that moved between two reads stands in both; the later state counts.
            by_id: dict[str, Record] = {}
            for parent in (OPEN, ENDED, FORGOTTEN):
                for record in await self._runs.list(tenant_id, parent, after=at, limit=CHUNK):
                    by_id[record.id] = record
            ordered = sorted(by_id.values(), key=lambda record: (record.position, record.id))[:CHUNK]
            found += [_row(record) for record in ordered if status in (None, record.body.get("status"))]
            if len(ordered) < CHUNK:
                break
            at = (ordered[-1].position, ordered[-1].id)
        return found[:limit]

    async def place(self, tenant_id: str, after: str) -> tuple[int, str]:
        """Of the run `after` in the order of all. Raises CorrectTheInput `after_invalid`."""
        last = await self._runs.get(tenant_id, after)
        if last is None or last.parent not in (OPEN, ENDED, FORGOTTEN):
            message = f"there is no run {after!r}; accepted is a run's id"
            raise CorrectTheInput.breach("after_invalid", message)
        return last.position, last.id

    async def row(self, tenant_id: str, run_id: str) -> Row:
        """One run with `llm_calls`, `email_events`, oldest first, and while it waits `waiting`. Raises
        LookElsewhere `run_unknown`."""
        record = await self._record(tenant_id, run_id)
        calls = await self._calls.list(tenant_id, run_id)
        events = await self._events.list(tenant_id, run_id)
        row = {
            **_row(record),
            "llm_calls": cast("JsonValue", [dict(call.body) for call in calls]),
            "email_events": cast("JsonValue", [dict(event.body) for event in events]),
        }
        if record.body.get("status") == "waiting":
            work = cast("Mapping[str, Mapping[str, JsonValue]]", record.body["work"])
            waiting = cast("Sequence[Mapping[str, JsonValue]]", work["progress"]["waiting"])
            row["waiting"] = [{"tool": call["tool"], "arguments": call["arguments"]} for call in waiting]
        return row

    async def decide(self, tenant_id: str, run_id: str, decision: Decision) -> Row:
        """All calls that wait are decided, and the run is queued to go on. Raises LookElsewhere
        `run_unknown`, ReloadAndDecide `run_not_waiting`."""
        for _ in range(ATTEMPTS):
            record = await self._record(tenant_id, run_id)
            status = record.body.get("status")
            if status != "waiting":
                raise ReloadAndDecide(
                    "run_not_waiting", f"the run is {status!r}: no call of it waits", state={"status": status}
                )
            work = {**cast("Mapping[str, JsonValue]", record.body["work"]), "decision": decision}
            body: dict[str, JsonValue] = {**record.body, "status": "queued", "work": work}
            decided = replace(record, body=body, serial=record.serial + 1)
            if await self._runs.replace(tenant_id, decided, record.serial):
                event: dict[str, JsonValue] = {
                    **{name: body.get(name) for name in ("mailbox", "message_id", "rule")},
                    "event": decision,
                    "at": utc_text(self._clock.now()),
                }
                position = position_at(self._clock.now())
                # One decision for one state: the serial is that of the waiting run.
                line = Record(f"{run_id}:decided:{record.serial}", event, run_id, position)
                await self._events.insert(tenant_id, line)
                return _row(decided)
        raise RetryLater("run_contended", f"the run {run_id!r} is being changed by many at once")

    async def _record(self, tenant_id: str, run_id: str) -> Record:
        record = await self._runs.get(tenant_id, run_id)
        if record is None or record.parent not in (OPEN, ENDED, FORGOTTEN):
            raise LookElsewhere("run_unknown", f"there is no run {run_id!r}; GET /v1/agent-runs lists them")
        return record


def _row(record: Record) -> dict[str, JsonValue]:
    return {"id": record.id, **{name: value for name, value in record.body.items() if name != "work"}}
